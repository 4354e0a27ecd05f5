"""Stories: steps in the words of one language, and what follows. One story is one case of a test.

    The line of a story that isn't indented is its name.
        # When this happens in real life, or why it must be so.
        where END is complete A | abandon A
        intent A; intent B; lock; request A; request B; END → granted B

A step is a verb with its arguments, by position or as `name=value`; text with spaces stands in quotes. `where` makes one story of
each alternative; a line that begins with `|` has more of them. Behind the arrow is what the last step of its line must have done:

| text | the step |
| --- | --- |
| `nothing` | had no effects |
| `only ReleaseLock() and AcquireLock()` | had exactly these effects, as Python prints them |
| `no Abort` | had no effect of this kind |
| `Abort reason=operator` | had one effect of this kind, with this field (`≠`, `≤`, `≥`; `~`: contains; `≈`: about) |
| `some Abort transaction=B`, `first Abort …` | had such an effect among others, or as its first |
| `state.lock=None` | left this in the world |

Each language has more of them (`tests/unit/handlers/table/stories.py`, `tests/unit/handlers/lease/lease_keeper.py`).
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

OUTSIDE_QUOTES = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""A comma outside of quotes."""


@dataclass(frozen=True)
class Language:
    """What a story's words mean. A world has its last step's `effects`; `of` selects those of one kind."""

    begin: Callable[[], Any]
    effects: tuple[ModuleType, ...]
    """The modules of the kinds of effects."""
    argument: Callable[[str], object]
    """Reads a word behind a verb; a dictionary gives fields."""
    holds: Callable[[Any, str], bool]
    """Whether an expectation in this language's own words holds."""
    verbs: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Verbs beside the methods of the world."""

    def stories(self, text: str, **verbs: Callable[..., Any]) -> list[Story]:
        """The stories of this text, which may use further verbs."""
        language = replace(self, verbs={**self.verbs, **verbs})
        found: list[tuple[str, list[str]]] = []
        for line in textwrap.dedent(text).splitlines():
            if line.strip() and not line.startswith(" "):
                found.append((line.strip(), []))
            elif line.strip().startswith("|"):
                found[-1][1][-1] += line
            elif line.strip() and not line.strip().startswith("#"):
                found[-1][1].append(line.strip())
        assert all("→" in lines[-1] for _, lines in found), "the last line of a story says what follows"
        return [story for name, lines in found for story in language._alternatives(name, lines)]

    def _alternatives(self, name: str, lines: list[str]) -> list[Story]:
        if not lines[0].startswith("where "):
            return [Story(name, tuple(lines), self)]
        word, _, alternatives = lines[0].removeprefix("where ").partition(" is ")
        return [
            story
            for each in map(str.strip, alternatives.split("|"))
            for story in self._alternatives(
                f"{name}: {each}", [re.sub(rf"\b{word}\b", each, one) for one in lines[1:]]
            )
        ]

    def do(self, w: Any, verb: str, *words: str) -> Any:
        arguments: list[object] = []
        fields: dict[str, Any] = {}
        for word in words:
            name, equals, text = word.partition("=")
            is_field = equals and ("/" not in word or "://" in text)
            read = {name: value(text)} if is_field else self.argument(word)
            if isinstance(read, dict):
                fields |= read
            else:
                arguments.append(read)
        if verb in self.verbs:
            return self.verbs[verb](w, *arguments, **fields)
        return getattr(w, verb)(*arguments, **fields)

    def check(self, w: Any, expected: str) -> bool:
        """Whether an expectation holds."""
        what, _, rest = expected.partition(" ")
        if expected == "nothing":
            return not w.effects
        if what == "only":
            return [repr(each) for each in w.effects] == rest.split(" and ")
        if what in ("some", "first"):
            name, *fields = shlex.split(rest)
            kind = self._kind(name)
            among = w.effects if what == "some" else w.effects[:1]
            return any(type(one) is kind and all(fits(one, each) for each in fields) for one in among)
        if what == "no" and (kind := self._kind(rest)):
            return not w.of(kind)
        if kind := self._kind(what):
            found = w.of(kind)
            return len(found) == 1 and all(fits(found[0], each) for each in shlex.split(rest))
        if re.match(r"[a-z_][\w.-]*[=≠≈~≤≥]", expected):
            return fits(w, expected)
        return self.holds(w, expected)

    def _kind(self, name: str) -> type | None:
        kinds = (getattr(each, name, None) for each in self.effects if name[:1].isupper())
        return next((each for each in kinds if isinstance(each, type)), None)


@dataclass(frozen=True)
class Story:
    """A story and its steps."""

    name: str
    lines: tuple[str, ...]
    language: Language = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def play(self, world: Any = None) -> None:
        """Do the steps and check what follows, in this world or a new one. A step that returns nothing changes the world."""
        w = world or self.language.begin()
        for line in self.lines:
            steps, _, expected = line.partition("→")
            for step in filter(str.strip, steps.split(";")):
                w = self.language.do(w, *shlex.split(step)) or w
            for each in filter(None, map(str.strip, re.split(OUTSIDE_QUOTES, expected))):
                assert self.language.check(w, each), (
                    f"{self.name}: {line}\nexpected {each}, but: {getattr(w, 'effects', w)}"
                )


LITERALS: dict[str, object] = {"True": True, "False": False, "None": None, "()": (), "{}": {}}


def value(text: str) -> Any:
    """A number, True, False, None, an empty tuple or dictionary, or the text."""
    if text in LITERALS:
        return LITERALS[text]
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def fits(thing: object, expected: str) -> bool:
    """Whether a field, such as `conflicts.0.kind`, is equal (`=`), another (`≠`), about, bounded, or contains the text."""
    name, operator, text = re.split("([=≠≈~≤≥])", expected, maxsplit=1)
    text = text.strip('"')
    found: Any = thing
    for each in name.split("."):
        found = found[int(each)] if each.lstrip("-").isdigit() else getattr(found, each)
    found = found.value if isinstance(found, Enum) else found
    match operator:
        case "=":
            return bool(found == value(text))
        case "≠":
            return bool(found != value(text))
        case "≤":
            return bool(found <= float(text))
        case "≥":
            return bool(found >= float(text))
        case "≈":
            return bool(found == pytest.approx(float(text), abs=0.025))
        case _:
            return text in str(found)
