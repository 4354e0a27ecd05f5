"""A hook of `make docs`, for what Python's Markdown and GitHub read differently.

- A link to a file of the repository that is no page is the file's path on the site.
- A list, or its next item, may begin right after a line of text; Python's Markdown wants an empty line.
- What belongs to an item of a list is indented by 2 or 3 columns; Python's Markdown wants 4.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
_LIST = re.compile(r"(?m)^(?P<line>(?! *[-|#>0-9]|    ).*\S)\n(?=- |1\. )")
_ITEM = re.compile(r"(?m)^(?P<line>    \S.*)\n(?=\d+\. |- )")
_INDENT = re.compile(r"(?m)^ {2,3}(?=\S)")


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """The page as Python's Markdown reads it."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["target"]))
        if re.match(r"[a-z]+:", link["target"]) or files.get_file_from_path(target) is not None:
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", target))
        text = link["text"].strip("`")
        return f"`{path}`" if text in path else f"{link['text']} (`{path}`)"

    def converted(text: str) -> str:
        indented = _INDENT.sub("    ", _LIST.sub(r"\g<line>\n\n", _LINK.sub(replaced, text)))
        return _ITEM.sub(r"\g<line>\n\n", indented)

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else converted(part) for part in parts)
