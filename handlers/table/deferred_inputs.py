"""What happens to the locks of a paused owner, until it resumes (`handlers/group/ownership.py`).

The inputs are kept in their order. One that follows an input of the same kind of the same table replaces it: of several
renewals in a row, the last one has the lease in force.
"""

from __future__ import annotations

from lakewarden.handlers.table.machine import LockFailed, LockInput


class DeferredInputs:
    """The inputs of all tables of one owner."""

    def __init__(self) -> None:
        self._inputs: list[tuple[str, LockInput]] = []

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, uri: str, input_: LockInput) -> None:
        """Keep an input of a table."""
        of_table = [number for number, (other, _) in enumerate(self._inputs) if other == uri]
        if of_table and _kind(self._inputs[of_table[-1]][1]) == _kind(input_):
            del self._inputs[of_table[-1]]
        self._inputs.append((uri, input_))

    def take(self) -> list[tuple[str, LockInput]]:
        """Return the inputs in their order, and forget them."""
        inputs, self._inputs = self._inputs, []
        return inputs


def _kind(input_: LockInput) -> str:
    return input_.failure if isinstance(input_, LockFailed) else type(input_).__name__
