"""Progress is shown on a terminal only, and leaves nothing behind."""

from __future__ import annotations

import pytest

from lakewarden.agent.cli import options as output


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_one_line_of_a_terminal_that_is_erased(
    terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    times = iter([0.0, 0.1, 1.0, 1.0, 1.1])
    monkeypatch.setattr(output, "monotonic", lambda: next(times))

    with output.progress_on_terminal() as show:
        show("too early")
        show("half\x1b[2J")

    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("half" in shown.err, "too early" in shown.err) == (terminal, False)
    assert "\x1b[2J" not in shown.err
    assert shown.err.endswith("\r\x1b[K" if terminal else "")
