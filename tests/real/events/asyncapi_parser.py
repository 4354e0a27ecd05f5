"""The AsyncAPI project's own parser, which validates a document as its other tools do.

It comes from the cache, or from npm once (about 10 s and 55 MB). Where there is no Node, PyPI has one.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers.program import built, cache, node_folder, npm_command, one_at_a_time

_PACKAGE: Final = "@asyncapi/parser@3.6.3"
_PARSE_SECONDS: Final = 60
_PROGRAM: Final = """
const { Parser } = require("@asyncapi/parser");
const Ajv = require("ajv").default;
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
new Parser().parse(JSON.stringify(input.document)).then((parsed) => {
  const ajv = require("ajv-formats").default(new Ajv({ strict: false, allErrors: true }));
  const checks = {};
  for (const message of parsed.document ? parsed.document.allMessages().all() : []) {
    checks[message.name()] = ajv.compile(message.payload().json());
  }
  const refused = input.events.map((event) => {
    const check = checks[event.type];
    return check === undefined ? ["no message"] : check(event) ? [] : check.errors.map((each) => each.message);
  });
  const { diagnostics } = parsed;
  process.stdout.write(JSON.stringify({ valid: parsed.document !== undefined, diagnostics, refused }));
});
"""
"""Parses the document, and validates each event against the payload of its message, with the parser's own validator."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the parser found wrong."""

    diagnostics: list[dict[str, Any]]
    """Of the document. That there is a newer AsyncAPI version is not among them."""
    refused: list[list[str]]
    """Of each event: how it violates its schema."""


def installed_parser() -> Path:
    """The folder of the parser, installed if need be. Fails the test where it can't be had."""
    folder = cache() / _PACKAGE.replace("/", "-")
    tried: list[str] = []
    with one_at_a_time(folder), tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        if not folder.exists():
            new = Path(parent) / "new"
            new.mkdir()
            if not _install(new, tried):
                pytest.fail(f"no AsyncAPI parser for the tests: {'; '.join(tried)}", pytrace=False)
            new.rename(folder)
    return folder


def _install(folder: Path, tried: list[str]) -> bool:
    npm = npm_command(tried)
    node = node_folder(tried)
    if npm is None or node is None:
        return False
    options = ["--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
    path = f"{node}{os.pathsep}{os.environ.get('PATH', '')}"
    return built([*npm, "install", *options, _PACKAGE], {"PATH": path}, str(folder.parent), tried)


def validate(document: dict[str, Any], events: Sequence[dict[str, Any]] = ()) -> Findings:
    """Parse the document, and validate events against it."""
    folder = installed_parser()
    node = node_folder([])
    assert node is not None
    done = subprocess.run(
        [str(node / "node"), "-e", _PROGRAM],
        input=json.dumps({"document": document, "events": events}),
        env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        capture_output=True,
        text=True,
        check=False,
        timeout=_PARSE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = [each for each in answer["diagnostics"] if each["code"] != "asyncapi-latest-version"]
    assert answer["valid"] or found, answer
    return Findings(found, answer["refused"])
