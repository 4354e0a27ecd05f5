"""The prose that people read first: the README's size, links that resolve, a complete index, and words that it avoids."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])

MOST_LINES, MOST_COLUMNS = 150, 100
MOST_WORDS, MOST_WORDS_IN_A_CELL, MOST_WORDS_IN_A_SENTENCE = 62_200, 25, 35

AVOIDED = re.compile(
    r"\b(whoever|somebody|anybody|nobody|anew|corpses?|deaf|mute"
    r"|tells?|told|hears?|heard|whisper\w*|mend(s|ed|ing)?|(gives?|gave|given|giving) up"
    r"|stands? still|stood still|standing still|in (its |their |our )?hands|what it lost to|take[ns]? up"
    r"|in vain|for people)\b",
    re.IGNORECASE,
)
"""CONTRIBUTING.md, "Language": people and programs publish, report and consume."""


PRONOUN = re.compile(
    r"\W*(It|They|(This|That|These|Those) (is|are|was|were|has|have|can|may|needs?|of|would|will|means?)) "
)
"""Begins a sentence whose subject is in the one before."""


def prose_of(page: Path) -> str:
    """The page without code: neither what programs print nor names in backticks are prose."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return without_names(text)


def without_names(text: str) -> str:
    """The text without names in backticks."""
    return re.sub(r"`[^`\n]*`", "``", text)


def links_of(page: Path) -> Iterator[str]:
    """The targets of the links and pictures of a page, but for those on the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_fits_on_a_few_screens() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()

    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_or_heading_resolves(page: Path) -> None:
    broken = []
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("folder", [DOCS, DOCS / "decisions"], ids=["docs", "decisions"])
def test_the_index_of_a_folder_lists_every_page(folder: Path) -> None:
    index = folder / "README.md"

    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= set(links_of(index))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    assert [match.group() for match in AVOIDED.finditer(prose_of(page))] == []


@pytest.mark.parametrize(
    "page", [README, *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_no_sentence_is_long_or_needs_the_one_before_the_last(page: Path) -> None:
    """A pronoun's noun is in the sentence before, which names it: not in another paragraph, nor two sentences back."""
    wrong = []
    for text in paragraphs_of(page):
        before = "It "
        for sentence in re.split(r"(?<=[.!?])\s+(?=\W*[A-Z`])", text):
            words = re.findall(r"``|\w[\w'’-]*", sentence)
            if len(words) > MOST_WORDS_IN_A_SENTENCE or (PRONOUN.match(sentence) and PRONOUN.match(before)):
                wrong.append(sentence)
            before = sentence

    assert wrong == []


def paragraphs_of(page: Path) -> Iterator[str]:
    """The paragraphs, items and cells of a page, each in one line, with `` for each name and without the targets of links."""
    for block in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )|\n(?= *\|)", prose_of(page)):
        text = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()))
        for each in re.split(r"(?<!\\)\|", text) if text.startswith("|") else [text]:
            yield re.sub(r"^(?:[-*]|\d+\.) ", "", each.strip())


@pytest.mark.parametrize(
    "page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_says_for_whom_it_is_and_has_no_paragraph_in_a_table(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    first = re.split(r"(?<=\.)\s", re.sub(r"^#.*$", "", text, count=1, flags=re.MULTILINE).strip())[:2]
    rows = re.sub(r"\]\([^)]*\)", "]", "\n".join(re.findall(r"^\|.*\|$", text, re.MULTILINE)))

    assert re.search(
        r"\b[Ff]or (authors|contributors|engineers|every|operators|teams|the person)", " ".join(first)
    ), first
    assert page == README or re.search(r"After\s+this\s+page|\b(can|find|have)\b", " ".join(first)), first
    assert [
        cell for cell in re.split(r"(?<!\\)[|\n]", rows) if len(cell.split()) > MOST_WORDS_IN_A_CELL
    ] == []


def test_each_output_that_a_page_shows_is_that_of_a_test() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"^ *\$ (.+)$", pages, re.MULTILINE)) - {"echo $?"}
    tests = "\n".join(each.read_text(encoding="utf-8") for each in (ROOT / "tests").rglob("test_*.py"))

    assert {command for command in shown if f'"{command}"' not in tests} == set()


def test_the_documents_can_be_read() -> None:
    """Words of all pages and decision records, generated pages and tables apart."""
    texts = [page.read_text(encoding="utf-8") for page in (README, *DOCS.rglob("*.md"))]
    written = [text for text in texts if not re.search(r"\b(Generated|Made)\s(from|by)\s", text[:400])]
    words = re.sub(r"<!-- generated: .*?<!-- end -->", "", " ".join(written), flags=re.DOTALL).split()

    assert sum(bool(re.search(r"\w", word)) for word in words) <= MOST_WORDS


@pytest.mark.parametrize("folder", ["agent", "events", "handlers", "spark_jobs", "tests"])
def test_the_comments_and_strings_of_the_code_are_in_plain_english(folder: str) -> None:
    avoided = (
        AVOIDED
        if folder == "tests"
        else re.compile(rf'{AVOIDED.pattern}|\bmeanwhile\b|^"""Of ', AVOIDED.flags)
    )
    found = [
        f"{module.relative_to(ROOT)}:{token.start[0]}: {match.group()}"
        for module in (ROOT / folder).rglob("*.py")
        if module != Path(__file__)
        for token in code_tokens(module)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
        for match in avoided.finditer(without_names(token.string))
    ]

    assert found == []


def code_tokens(module: Path) -> list[tokenize.TokenInfo]:
    with tokenize.open(module) as source:
        return list(tokenize.generate_tokens(source.readline))


def test_the_page_of_log_events_has_every_event_of_the_code() -> None:
    text = (DOCS / "log-events.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"`([a-z]+[.-][a-z_.-]+)`", "\n".join(re.findall(r"^\| `.*", text, re.MULTILINE)))
    )
    modules = [
        ast.parse(module.read_text(encoding="utf-8"))
        for folder in ("agent", "handlers", "spark_jobs")
        for module in (ROOT / folder).rglob("*.py")
    ]
    logged = {name for module in modules for name in logged_events(module)}
    strings = {
        node.value
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert logged - listed == set()
    assert {name for name in listed if "." in name and not name.endswith((".md", ".py"))} <= strings


def logged_events(module: ast.Module) -> Iterator[str]:
    """The names of the events that the module logs, at info or above."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if called in ("info", "warning", "error", "exception", "Warn"):
            for each in ast.walk(node.args[0]):
                if isinstance(each, ast.Constant) and re.fullmatch(r"[a-z]+([.-][a-z_-]+)+", str(each.value)):
                    yield str(each.value)
