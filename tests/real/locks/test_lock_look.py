"""`lakewarden lock probe`, `show` and `release`: output and exit codes."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import anyio.to_thread
import pytest

from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.printed import as_shown
from tests.processes import environment
from tests.real.lock_places import NOWHERE, QUICK, ROOMY, Place, failed, held, run, shown
from tests.servers.faulty_http import ABSENT, WRITTEN, faulty_server

pytestmark = [pytest.mark.real]

OWNER = "3e934cd1-8f72-4327-a5a2-4196a43827a7"


def test_the_probe_of_a_sound_store_reports_its_requests(on_s3: Place, tmp_path: Path) -> None:
    for root in (on_s3.table.rsplit("/", 2)[0], str(tmp_path)):
        done = on_s3.run("probe", root, **ROOMY)

        assert (done.returncode, done.stderr) == (0, "")
        as_shown("docs/lock.md", "lakewarden lock probe s3://lake", done.stdout)
    assert list(tmp_path.rglob("*.json")) == []


async def test_the_probe_of_a_store_that_ignores_a_condition_names_the_condition(local: Place) -> None:
    async with faulty_server([ABSENT, WRITTEN, WRITTEN]) as server:
        done = await anyio.to_thread.run_sync(
            lambda: run(
                "probe",
                "s3://bucket",
                "--s3-endpoint",
                server.endpoint,
                env={**local.environment(), "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
            )
        )

    failed(done, 1, "this store ignores the condition if-absent")
    assert "4 requests in " in done.stderr


def test_the_probe_of_a_missing_bucket_or_folder_fails(on_s3: Place, tmp_path: Path) -> None:
    missing = on_s3.run("probe", "s3://no-such-bucket-anywhere", **ROOMY)
    failed(missing, 1, "NoSuchBucket")
    as_shown("docs/runbooks.md", "lakewarden lock probe s3://no-such-bucket-anywhere", missing.stderr)
    failed(on_s3.run("probe", str(tmp_path / "nope")), 1, f"there is no folder {tmp_path}/nope")


def test_show_reports_every_state_of_the_object(local: Place) -> None:
    absent = shown(local)
    assert (absent["state"], absent["owner"], absent["lock"]) == ("absent", None, local.lock)

    body = json.loads(held(owner="a1"))
    local.write(json.dumps({"host": "worker-7", **body}).encode())
    now = shown(local)
    assert (now["state"], now["owner"], now["extra"]) == ("held", "a1", {"host": "worker-7"})
    assert now["valid_until_ms"] == body["validUntil"]
    assert 0 < now["seconds_left"] <= 7_200
    written = datetime.fromisoformat(now["written_about"]).timestamp()
    assert written == pytest.approx(body["validUntil"] / 1000 - QUICK["validity_seconds"], abs=0.001)

    local.write(held(-0.25, "a2"))
    assert shown(local)["state"] == "lapsed"
    local.write(render(LockRecord(expired=True, valid_until=body["validUntil"], owner="a3")))
    assert shown(local)["state"] == "released"

    local.write(b'{"expired":false,"owner":"a4"}')
    malformed = shown(local)
    assert (malformed["state"], malformed["why"]) == ("malformed", "field missing: validUntil")


def test_the_text_output_of_show(local: Place) -> None:
    local.write(held(140, owner=OWNER))
    text = local.run("show", local.table, **ROOMY).stdout
    for page in ("docs/lock.md", "docs/runbooks.md"):
        as_shown(page, "lakewarden lock show s3://lake/warehouse/orders", text)
    assert f"lock     {local.lock}\n" in text
    assert f"owner    {OWNER}\n" in text
    assert "assuming leases of 150 s" in text

    local.write(b"")
    text = local.run("show", local.table).stdout
    assert "state    malformed: the object is empty. No contender overwrites it" in text


def test_show_writes_nothing(local: Place, tmp_path: Path) -> None:
    assert local.run("show", local.table).returncode == 0

    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_hudi_table_is_found_in_hudis_location(local: Place) -> None:
    own = local.table + HUDI_LOCK
    assert shown(local, "--hudi")["lock"] == own
    local.write(b"hoodie.table.name=t\n", local.table + "/.hoodie/hoodie.properties")
    local.write(held(owner="agent"))
    local.write(held(owner="hudi"), own)

    found = shown(local)
    assert (found["lock"], found["owner"], found["shared_with_hudi"]) == (own, "hudi", True)
    assert found["drift_seconds"] == 2 * QUICK["drift_seconds"]
    assert shown(local, "--lock", local.lock)["owner"] == "agent"


def test_the_place_that_the_operator_configured_is_shown(local: Place) -> None:
    """The agent uses it, whatever the table's files say."""
    local.write(b"hoodie.table.name=t\n", local.table + "/.hoodie/hoodie.properties")
    place = replace(local, settings=local.settings | {"lock_places": f"{local.table}=>default"})

    assert shown(place)["lock"] == local.lock


def test_a_lock_that_can_not_be_read_is_an_error_of_one_line(on_s3: Place, local: Place) -> None:
    failed(on_s3.run("show", "s3://no-such-bucket-anywhere/t", **ROOMY), 1, "NoSuchBucket")
    wrong = {**on_s3.environment(**ROOMY), "AWS_SECRET_ACCESS_KEY": "wrong"}
    failed(run("show", on_s3.table, env=wrong), 1, "status=403")
    silent = on_s3.run("show", on_s3.table, "--s3-endpoint", f"http://{NOWHERE}")
    failed(silent, 1, "check endpoint and network")
    nowhere = {name: value for name, value in local.settings.items() if name != "lock_root"}
    failed(run("show", local.table, env=environment(nowhere)), 1, "--lock-root")


def test_a_manual_release_keeps_the_end_of_the_lease(place: Place) -> None:
    body = held(owner=OWNER)
    place.write(body)

    done = place.run("release", place.table, "--if-owner", OWNER)

    assert (done.returncode, done.stderr) == (0, "")
    as_shown(
        "docs/lock.md",
        "lakewarden lock release s3://lake/warehouse/orders --if-owner 3e934cd1-8f72-4327-a5a2-4196a43827a7",
        done.stdout,
    )
    record = parse(body)
    assert isinstance(record, LockRecord)
    assert place.record() == LockRecord(expired=True, valid_until=record.valid_until, owner=OWNER)


def test_a_manual_release_for_another_owner_changes_nothing(local: Place) -> None:
    refused: list[tuple[bytes | None, str]] = [(None, "there is no lock object at")]
    refused += [(held(owner=OWNER), f"held by another owner, {OWNER}")]
    refused += [(b"not json", "not a lock record")]
    released = render(LockRecord(expired=True, valid_until=1_900_000_000_000, owner="dead"))
    refused += [(released, "already released by dead")]
    for body, message in refused:
        if body is not None:
            local.write(body)

        done = local.run("release", local.table, "--if-owner", "dead")

        failed(done, 1, message)
        if OWNER in message:
            command = "lakewarden lock release s3://lake/warehouse/orders --if-owner 00000000-0000-0000-0000-000000000000"
            as_shown("docs/lock.md", command, done.stderr)
        assert body is None or local.read() == parse(body)
