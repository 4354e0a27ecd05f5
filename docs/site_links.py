"""A hook of `make docs`: on the site, a link to a file of the repository that is no page is the file's path.

And GitHub begins a list right after a line of text, where Python's Markdown wants an empty line.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
_LIST = re.compile(r"(?m)^(?P<line>(?! *[-|#>0-9]|    ).*\S)\n(?=- |1\. )")


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

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else _LIST.sub(r"\g<line>\n\n", _LINK.sub(replaced, part))
        for part in parts
    )
