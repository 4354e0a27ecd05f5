from __future__ import annotations

import pytest

from tests.pages import PAGES, ROOT


@pytest.mark.parametrize("path", PAGES)
def test_a_generated_document_is_what_the_code_says(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "run python -m tests.pages"
