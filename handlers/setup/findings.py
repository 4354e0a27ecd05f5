"""What a check of the set-up has found. `lakewarden doctor` prints one line per finding.

ok          as the agent needs it
warning     the agent runs, and a promise is weaker, or an operator should look
problem     the agent can't run, or a promise doesn't hold
unchecked   a check that this user, or a failure before it, doesn't allow; it says nothing about the set-up
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

_OUTSIDE_OF_PARENTHESES = re.compile(r"; (?![^()]*\))")

Result: TypeAlias = Literal["ok", "warning", "problem", "unchecked"]
Check: TypeAlias = Literal[
    "codecs",
    "kafka",
    "topic",
    "partitions",
    "group",
    "agents",
    "store",
    "store-clock",
    "table",
    "lock",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. The field names are the JSON of `lakewarden doctor`."""

    check: Check
    result: Result
    about: str
    """The topic, the store, the table or the servers that were checked."""
    found: str
    next: str | None = None
    """What to do. None if there is nothing to do."""


def failed(check: Check, about: str, message: str) -> Finding:
    """A problem from an error's message, which has the form `what happened; what to do`."""
    found, *do = _OUTSIDE_OF_PARENTHESES.split(message, maxsplit=1)
    return Finding(check, "problem", about, found, do[0] if do else None)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is a problem."""
    return any(each.result == "problem" for each in findings)
