"""Thrift's binary protocol: what a call sends, and what its answer has. Structs are dicts by the numbers of their fields."""

import struct
from collections.abc import Callable
from typing import Any, Final

_CALL: Final = 0x80010001
_EXCEPTION: Final = 3
_STOP, _I16, _STRING = 0, 6, 11
_NUMBERS: Final = {2: "?", 3: "b", 4: "d", 6: "h", 8: "i", 10: "q"}
_STRUCT, _MAP, _SETS = 12, 13, (14, 15)
MAX_DEPTH: Final = 32


class ThriftError(Exception):
    """The answer is none of this protocol, or the server doesn't know the call."""


class IncompleteError(Exception):
    """The answer goes on."""


def call_of(method: str, *arguments: str | int) -> bytes:
    """Return the message that calls a method. A number is an i16."""
    message = struct.pack(">I", _CALL) + _text(method) + struct.pack(">i", 0)
    for number, each in enumerate(arguments, start=1):
        is_text = isinstance(each, str)
        message += struct.pack(">bh", _STRING if is_text else _I16, number)
        message += _text(each) if isinstance(each, str) else struct.pack(">h", each)
    return message + bytes([_STOP])


def answer_of(received: bytes | bytearray) -> dict[int, Any]:
    """Return the fields of the answer: 0 is the result, others are exceptions. Raises `IncompleteError` if more is to come."""
    reader = _Reader(received)
    version = reader.number("I")
    if version >> 16 != 0x8001:
        raise ThriftError("the server doesn't speak Thrift's binary protocol without authentication")
    reader.text()
    reader.number("i")
    fields = reader.struct(MAX_DEPTH)
    if version & 0xFF == _EXCEPTION:
        raise ThriftError(str(fields.get(1)))
    return fields


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">i", len(encoded)) + encoded


class _Reader:
    def __init__(self, received: bytes | bytearray) -> None:
        self._received, self._at = received, 0

    def number(self, kind: str) -> Any:
        size = struct.calcsize(f">{kind}")
        return struct.unpack(f">{kind}", self._bytes(size))[0]

    def text(self) -> str:
        return bytes(self._bytes(self._size())).decode(errors="replace")

    def struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        while (kind := self.number("b")) != _STOP:
            number = self.number("h")
            fields[number] = self._value(kind, depth - 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth < 0:
            raise ThriftError("the answer is nested too deeply")
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _STRUCT:
            return self.struct(depth)
        if kind == _MAP:
            key, value = self.number("b"), self.number("b")
            return dict(self._several(lambda: (self._value(key, depth - 1), self._value(value, depth - 1))))
        if kind in _SETS:
            each = self.number("b")
            return self._several(lambda: self._value(each, depth - 1))
        raise ThriftError(f"the answer has a value of type {kind}")

    def _several(self, one: Callable[[], Any]) -> list[Any]:
        return [one() for _ in range(self._size())]

    def _size(self) -> int:
        size = int(self.number("i"))
        if size < 0:
            raise ThriftError("the answer has a negative size")
        return size

    def _bytes(self, size: int) -> bytes | bytearray:
        end = self._at + size
        if end > len(self._received):
            raise IncompleteError
        found, self._at = self._received[self._at : end], end
        return found
