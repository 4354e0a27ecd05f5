"""A program that the benchmark runs beside itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lakewarden.agent.bound_child import bound

ROOT = Path(__file__).parents[2]


class Child:
    """It prints lines, waits at some of them for a line on stdin, and prints its figures as JSON at the end."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`log`: what it writes to stderr. `environment`: besides this process's own."""
        self._command, self._log = command, log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                bound(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=os.environ | dict(environment or {}),
                text=True,
            )

    def wait_for(self, expected: str) -> None:
        """Wait until it prints this line."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.strip() == expected:
                return
        raise self._failure("")

    def go_on(self) -> None:
        """Write the line for which it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def figures(self, seconds: float | None = None) -> Any:
        """Wait until it has ended, at most so long."""
        try:
            printed, _ = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
        results = [line for line in printed.splitlines() if line.startswith(("{", "["))]
        if self.process.returncode or not results:
            raise self._failure(printed[-2000:])
        return json.loads(results[-1])

    def _failure(self, printed: str) -> RuntimeError:
        return RuntimeError(f"{' '.join(self._command)} failed: {printed} {self._log.read_text()[-5000:]}")
