"""Commands to copy, and names and ids as people read them."""

import re
import shlex

from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.events import DEFAULT_PREFIX

_ID = re.compile(r"[0-9a-f]{32}")
_LONG = re.compile(r":[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?<![/\w])[0-9a-f]{32}\b")
"""The query id of a writer's name, and the id of a transaction. A table may have such a segment."""
SHORT_ID = 8
"""Digits of an id. Every command accepts the beginning of an id."""
_OF_LOCKS = ("lock", "doctor")
"""Commands that read the stores of the locks, and not only Kafka."""
_OF_STORES = (*_OF_LOCKS, "watch")


def short_id(transaction: str) -> str:
    """The beginning of an id that the gate has made, else all of it."""
    return transaction[:SHORT_ID] if _ID.fullmatch(transaction) else transaction


def short_names(text: str) -> str:
    """A sentence with the names of its writers and the beginnings of its ids."""
    return _LONG.sub(lambda found: "" if found[0].startswith(":") else short_id(found[0]), text)


class Command(str):
    """A command to copy. As text it is one line."""

    __slots__ = ("words",)
    words: tuple[str, ...]
    """Quoted for a shell, each option with its value."""

    def folded(self, width: int) -> list[str]:
        """Lines that a shell reads as the same command. One that has to be longer has a single word."""
        lines = [""]
        for word in self.words:
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if len(longer) + len(" \\") <= width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(f"  {word}")
        return [*(f"{each} \\" for each in lines[:-1]), lines[-1]]


def command(settings: KafkaSettings, *words: str) -> Command:
    """A command to copy, complete and quoted for a shell: it finds the same Kafka, topics and locks in a shell without settings.

    Credentials are not in it. Control characters are shown, never executed by pasting.
    """
    prefix = settings.topic_prefix
    names = [] if prefix == DEFAULT_PREFIX else [f"LAKEWARDEN_TOPIC_PREFIX={_quoted(prefix)}"]
    options: list[str] = []
    if words[0] != "lock":
        options += ["--bootstrap-servers", settings.bootstrap_servers]
    if words[0] in _OF_STORES and isinstance(settings, Settings):
        placed = "--lock" in words or words[0] == "watch" or words[:2] == ("lock", "probe")
        if settings.lock_root is not None and not placed:
            options += ["--lock-root", settings.lock_root]
        if settings.s3_endpoint is not None:
            options += ["--s3-endpoint", settings.s3_endpoint]
    parts: list[str] = []
    for word in (*names, *map(_quoted, ("lakewarden", *words, *options))):
        if parts and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    found = Command(" ".join(parts))
    found.words = tuple(parts)
    return found


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}" for each in word.replace("\\", "\\\\")
    )
    return "$'" + escaped.replace("'", "\\'") + "'"
