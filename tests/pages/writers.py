"""The tables of docs/writers.md that repeat the code: arguments and errors, from the docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from lakewarden.spark_jobs import CommitGate
from lakewarden.spark_jobs.gate import errors

_PAGE: Final = Path(__file__).parents[2] / "docs" / "writers.md"
_UNDOCUMENTED: Final = {"topic_prefix", "kafka", "observer", "clock"}
"""Arguments of the gate that the page explains in sections of their own, or that are for tests."""


def render() -> str:
    """The page, with its generated parts as they are in the code now."""
    tables: dict[str, tuple[str, Iterator[str]]] = {
        name: (f"| `{name}(…)` | default | |", _arguments(function))
        for name, function in (
            ("foreach_batch", CommitGate.foreach_batch),
            ("transaction", CommitGate.transaction),
            ("CommitGate", CommitGate.__init__),
        )
    } | {"errors": ("| error | what happened | what to do |", _errors())}

    def table(part: re.Match[str]) -> str:
        heading, rows = tables.pop(part["name"])
        return "\n".join([part["begin"] + heading, "| --- | --- | --- |", *rows, "<!-- end -->"])

    page = re.sub(
        r"(?P<begin><!-- generated: (?P<name>\w+) -->\n).*?<!-- end -->",
        table,
        _PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert not tables, f"docs/writers.md has no part for {list(tables)}"
    return page


def _arguments(function: Callable[..., Any]) -> Iterator[str]:
    """Yield a row for each point of the docstring."""
    parameters = inspect.signature(function).parameters
    points = re.findall(r"^- (.+?): (.+?)(?=\n- |\n\n|\Z)", _text(function), re.DOTALL | re.MULTILINE)
    named = [(re.findall(r"`(\w+)`", names), names, text) for names, text in points]
    documented = {each for names, _, _ in named for each in names}
    assert (
        documented
        == {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY} - _UNDOCUMENTED
    ), function
    for arguments, names, text in named:
        values = [parameters[name].default for name in arguments]
        defaults = [f"`{_literal(value)}`" for value in values if value is not inspect.Parameter.empty]
        yield f"| {names} | {', '.join(defaults) or '–'} | {_cell(text)} |"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _errors() -> Iterator[str]:
    """Yield a row for each error: the first paragraph of its docstring, and the second one."""
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.GateError) and error is not errors.GateError:
            happened, remedy = _text(error).split("\n\n")
            yield f"| `{name}` | {_cell(happened)} | {_cell(remedy)} |"


def _text(documented: object) -> str:
    return inspect.cleandoc(documented.__doc__ or "")


def _cell(text: str) -> str:
    """Return a paragraph in one line. Its links begin at the root of the project, those of the page at its folder."""
    return " ".join(text.split()).replace("](docs/", "](")
