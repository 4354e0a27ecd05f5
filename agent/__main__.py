"""`python -m lakewarden.agent …` is `lakewarden …`."""

from __future__ import annotations

from lakewarden.agent.cli.entry import main

if __name__ == "__main__":
    main()
