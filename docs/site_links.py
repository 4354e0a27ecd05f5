"""Writes the pages as `make docs` builds them: what Python's Markdown and GitHub read differently is converted.

- A link to a file of the repository that is no page is the file's path on the site.
- A list, or its next item, may begin right after a line of text; Python's Markdown wants an empty line.
- What belongs to an item of a list is indented by 2 or 3 columns; Python's Markdown wants 4.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
_LIST = re.compile(r"(?m)^(?P<line>(?! *[-|#>0-9]|    ).*\S)\n(?=- |1\. )")
_ITEM = re.compile(r"(?m)^(?P<line>    \S.*)\n(?=\d+\. |- )")
_INDENT = re.compile(r"(?m)^ {2,3}(?=\S)")


def site_markdown(page: Path) -> str:
    """The page as Python's Markdown reads it."""
    folder = page.parent.relative_to(DOCS).as_posix()

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["target"]))
        if re.match(r"[a-z]+:", link["target"]) or (
            not target.startswith("..") and (DOCS / target).is_file()
        ):
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", target))
        text = link["text"].strip("`")
        return f"`{path}`" if text in path else f"{link['text']} (`{path}`)"

    def converted(text: str) -> str:
        indented = _INDENT.sub("    ", _LIST.sub(r"\g<line>\n\n", _LINK.sub(replaced, text)))
        return _ITEM.sub(r"\g<line>\n\n", indented)

    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else converted(part) for part in parts)


def main(target: Path) -> None:
    """Write the pages and pictures to a folder, which is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.md", Path(__file__).name, "__pycache__"))
    for page in DOCS.rglob("*.md"):
        (target / page.relative_to(DOCS)).write_text(site_markdown(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
