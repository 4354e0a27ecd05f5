"""The page in Chromium: `make test-browser`. `make test` does not collect them, because Chromium is no Python package."""
