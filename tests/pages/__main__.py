"""Write the generated documents."""

from tests.pages import PAGES, ROOT

for path, render in PAGES.items():
    (ROOT / path).write_text(render(), encoding="utf-8")
