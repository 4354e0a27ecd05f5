"""What the batches of a driver share: settings of sessions and of the JVM, and properties of threads.

Nothing that belongs to one batch may be found by the code of another one. Each use in the code is in a table that says why it is
safe; a new one fails here first.
"""

from __future__ import annotations

import re
from pathlib import Path

SPARK_JOBS = Path(__file__).resolve().parents[4] / "spark_jobs"

USE = re.compile(
    r"\b\w*(?:LocalProperty|(?:Job|add|remove|interrupt)Tag|JobGroup|ActiveSession|(?:set|get)Observer|cloneSession|newSession"
    r"|TempView|System\.setProperty)\("
    r"|withCommitProperties|\b(?:conf|conf\(\)|_?settings|cache)\.(?:set|unset|add|remove|get|getOption|getConfString|contains)\("
)

READ = "it is only read, and means the same for all batches of the session"
OWN = "the session is a clone that only this transaction has"
PINNED = "the thread is this batch's: PySpark pins its threads, else whole statements are granted"
BY_ID = "the name has the transaction's id, or another UUID"

SAFE = {
    "engine/cancelling.py": {"addJobTag(": BY_ID, "removeJobTag(": BY_ID},
    "engine/classic.py": {
        "getLocalProperty(": "it is compared with the batch's session and the running queries",
        "dropTempView(": BY_ID,
    },
    "engine/connect.py": {
        "conf.get(": READ,
        "dropTempView(": BY_ID,
        "addTag(": BY_ID,
        "removeTag(": BY_ID,
        "interruptTag(": BY_ID,
        "getActiveSession(": "in the main thread of a process that no batch has used: it is the client's",
    },
    "engine/engine.py": {"createOrReplaceTempView(": BY_ID},
    "sinks/assignment.py": {"conf.get(": READ},
    "sinks/hudi/sink.py": {"cloneSession(": OWN, "conf.set(": OWN},
    "sinks/iceberg/sink.py": {"conf.get(": READ},
    "sinks/iceberg/table.py": {"conf.get(": READ},
    "sinks/iceberg/release.py": {
        "conf.set(": "it is a constant: all batches set the same catalog to the same class",
    },
    "sinks/iceberg/driver.py": {
        "cache.add(": BY_ID,
        "cache.remove(": BY_ID,
        "withCommitProperties": PINNED,
    },
    "sinks/connect/procedures.py": {
        "conf.set(": "it is a constant: all batches set the same catalog to the same class",
    },
    "sinks/delta/connect.py": {"conf.get(": READ},
    "sinks/delta/sink.py": {"conf.get(": READ},
    "sinks/delta/statement.py": {"cloneSession(": OWN, "conf().set(": OWN},
    "sinks/delta/observer.py": {
        "getObserver(": PINNED,
        "setObserver(": PINNED,
        "getActiveSession(": PINNED,
        "setActiveSession(": PINNED,
        "clearActiveSession(": PINNED,
        "cloneSession(": OWN,
        "_settings.unset(": OWN,
        "_settings.set(": OWN,
        "_settings.getOption(": OWN,
    },
    "sinks/delta/fence.py": {
        "settings.get(": READ,
        "conf.set(": "a lock counts the blocks that need it, and all of them set the same class",
        "conf.remove(": "the last of these blocks does it",
    },
}


def test_each_shared_setting_is_in_the_table_that_says_why_it_is_safe() -> None:
    found: dict[str, set[str]] = {}
    for module in SPARK_JOBS.rglob("*.py"):
        for use in USE.finditer(module.read_text(encoding="utf-8")):
            found.setdefault(f"{module.relative_to(SPARK_JOBS)}", set()).add(use.group())

    assert found == {module: {*uses} for module, uses in SAFE.items()}
