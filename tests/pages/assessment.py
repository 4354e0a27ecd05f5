"""`docs/assess.svg`: what `lakewarden assess --svg` draws of a table for which two native writers contended."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import anyio

from lakewarden.agent.operators.assess import picture
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import TableHistory
from tests.recorded_delta import commit, recorded

COMMITS = 7
LATER = 2_000_000_000.0


def contest(table: Path) -> TableHistory:
    """Write the recorded table, with its files' sizes and times, and read its history."""
    for version in range(COMMITS):
        body = commit("contest", version)
        (at,) = (
            info["timestamp"] for line in body.splitlines() if (info := json.loads(line).get("commitInfo"))
        )
        _put(table / f"_delta_log/{version:020d}.json", body, at / 1000)
    for each in json.loads(recorded("contest", "files.json")):
        _put(table / each["path"], b"", each["modified"], each["size"])
    return anyio.run(lambda: past(table.as_uri(), Settings(), days=7, now=LATER))


def _put(file: Path, body: bytes, at: float, size: int | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    if size is not None:
        os.truncate(file, size)
    os.utime(file, (at, at))


def render() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return picture([replace(contest(Path(folder)), table="s3://lake/orders")])
