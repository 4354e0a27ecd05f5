"""What `lakewarden lock` prints, as text and as JSON. `docs/lock.md` describes the JSON fields; their names never change."""

from collections.abc import Iterator
from typing import Any

from lakewarden.agent.locks.commands import LockContents, ReleaseResult
from lakewarden.agent.time_text import timestamp, when


def view_fields(view: LockContents) -> dict[str, Any]:
    """The lock as one JSON object."""
    return {
        "table": view.table,
        "lock": view.lock,
        "shared_with_hudi": view.shared_with_hudi,
        "state": view.state,
        "owner": view.owner,
        "valid_until": None if view.valid_until_ms is None else timestamp(view.valid_until_ms),
        "valid_until_ms": view.valid_until_ms,
        "seconds_left": view.seconds_left,
        "written_about": None if view.written_ms is None else timestamp(view.written_ms),
        "drift_seconds": view.drift_seconds,
        "extra": view.extra,
        "why": view.why,
        "version": view.version,
    }


def view_lines(view: LockContents) -> Iterator[str]:
    """The lock as text."""
    yield f"table    {view.table}"
    yield f"lock     {view.lock}" + ("  (shared with Hudi's writers)" if view.shared_with_hudi else "")
    yield f"state    {_state(view)}"
    if view.owner is not None:
        yield f"owner    {view.owner}"
    if view.valid_until_ms is not None and view.written_ms is not None:
        if view.state == "released":
            yield f"lease    would have run until {when(view.valid_until_ms)}"
        else:
            yield f"until    {when(view.valid_until_ms)}"
            yield (
                f"written  {when(view.written_ms)}, assuming leases of {view.validity_seconds:g} s; "
                "the object doesn't record how long the lock has been held"
            )
    for name, value in view.extra.items():
        yield f"also     {name}: {value!r}"


def _state(view: LockContents) -> str:
    drift = f"{view.drift_seconds:g} s"
    match view.state:
        case "absent":
            return "absent: there is no lock object yet; the first holder creates it"
        case "malformed":
            return (
                f"malformed: {view.why}. No contender overwrites it, so the table can't be locked. Find the program that "
                "wrote it, make sure that no program relies on it, and replace it with a lock record"
            )
        case "released":
            return "released: any contender may acquire it"
        case "lapsed":
            return f"lapsed: its lease ended more than the drift of {drift} ago; any contender may acquire it"
        case "held" if view.seconds_left is not None and view.seconds_left <= 0:
            return f"held: its lease has ended, but clocks may differ by up to {drift}"
        case "held":
            return "held"


def release_lines(result: ReleaseResult, lock: str) -> Iterator[str]:
    """A manual release, with a warning if its owner may be alive."""
    yield f"released {lock}, which owner {result.owner} held"
    if result.current_owner is not None:
        yield f"owner {result.current_owner} has already acquired it"
    if result.seconds_left > 0:
        yield (
            f"warning: if that owner is alive, it may rely on its lease until its next renewal, at the latest until "
            f"{when(result.valid_until_ms)}"
        )
