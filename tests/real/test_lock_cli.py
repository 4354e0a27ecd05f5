"""`lakewarden lock` as a person or a script meets it: processes, exit statuses, lines, over local files and a real S3 server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import psutil
import pytest
from aiokafka import AIOKafkaProducer

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.settings import Settings
from lakewarden.events import LockAcquired, LockEvent, LockLost, LockRefused, LockReleased, encode
from lakewarden.handlers.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.placement import HUDI_LOCK
from tests.kafka_fixture import KafkaServer
from tests.real.writers import PATIENCE_SECONDS, environment, world
from tests.servers.faulty_http import Reply, faulty_server
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

COMMAND = [sys.executable, "-m", "lakewarden.agent.cli", "lock"]
QUICK = {
    "validity_seconds": 15,
    "renew_seconds": 1.5,
    "request_timeout_seconds": 1.4,
    "drift_seconds": 0.2,
    "margin_seconds": 4,
    "grant_seconds": 5,
}
ROOMY = {"validity_seconds": 100, "renew_seconds": 10, "request_timeout_seconds": 9}
"""For a machine that has much else to do, where no lease is waited for."""
NOWHERE = "127.0.0.1:9"


@dataclass
class Place:
    """A table and its lock object, on the local disk or on S3, looked at from outside of the product."""

    table: str
    lock: str
    settings: dict[str, Any]
    server: S3Server | None = None
    more: dict[str, str] = field(default_factory=dict)

    def environment(self, **settings: Any) -> dict[str, str]:
        return {**environment({**self.settings, **settings}), **self.more}

    def run(self, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        return _run(*arguments, env=self.environment(**settings))

    @contextmanager
    def started(self, *arguments: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def write(self, body: bytes, uri: str | None = None) -> None:
        scheme, rest = (uri or self.lock).split("://", 1)
        if scheme == "file":
            path = Path(rest)
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(body)
            fresh.replace(path)
            return
        assert self.server is not None
        bucket, key = rest.split("/", 1)
        client = self.server.new_client()
        client.put_object(Bucket=bucket, Key=key, Body=body)
        client.close()

    def read(self) -> LockRecord | Malformed:
        scheme, rest = self.lock.split("://", 1)
        if scheme == "file":
            return parse(Path(rest).read_bytes())
        assert self.server is not None
        bucket, key = rest.split("/", 1)
        client = self.server.new_client()
        try:
            return parse(client.get_object(Bucket=bucket, Key=key)["Body"].read())
        finally:
            client.close()

    def record(self) -> LockRecord:
        found = self.read()
        assert isinstance(found, LockRecord), found
        return found


@pytest.fixture
def local(tmp_path: Path) -> Place:
    root = tmp_path.resolve()
    settings = Settings(allow=(f"file://{root}/t",), lock_root=f"file://{root}/locks")
    lock = getattr(settings.placement().locate(f"file://{root}/t", None), "uri", "")
    return Place(f"file://{root}/t", lock, {**QUICK, "lock_root": f"file://{root}/locks"})


@pytest.fixture
def on_s3(s3_credentials: S3Server) -> Place:
    table = f"s3://{s3_credentials.bucket()}/warehouse/orders"
    lock = getattr(Settings(allow=(table,)).placement().locate(table, None), "uri", "")
    return Place(table, lock, {**QUICK, "s3_endpoint": s3_credentials.endpoint}, s3_credentials)


@pytest.fixture(params=["local", "on_s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


def held(seconds: float = 60, owner: str = "somebody") -> bytes:
    return render(LockRecord(expired=False, valid_until=round((time.time() + seconds) * 1000), owner=owner))


# -- probe -------------------------------------------------------------------------------------------------------------


def test_a_store_that_honours_conditions_is_told_with_what_asking_took(on_s3: Place, tmp_path: Path) -> None:
    for root in (on_s3.table.rsplit("/", 2)[0], str(tmp_path)):
        done = on_s3.run("probe", root, **ROOMY)

        assert (done.returncode, done.stderr) == (0, "")
        assert "honours both conditions (write if absent, write if unchanged)" in done.stdout
        assert "4 requests in " in done.stdout
    assert list(tmp_path.rglob("*.json")) == []


async def test_a_store_that_ignores_a_condition_is_refused_by_its_name(local: Place) -> None:
    async with faulty_server([Reply(headers=(("ETag", '"1"'),))] * 5) as server:
        done = await anyio.to_thread.run_sync(
            lambda: _run(
                "probe",
                "s3://bucket",
                "--s3-endpoint",
                server.endpoint,
                env={**local.environment(), "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
            )
        )

    _failed(done, 1, "this store ignores the condition if-absent")
    assert "3 requests in " in done.stderr


def test_a_place_that_is_not_there_is_told(on_s3: Place, tmp_path: Path) -> None:
    _failed(on_s3.run("probe", "s3://no-such-bucket-anywhere"), 1, "NoSuchBucket")
    _failed(on_s3.run("probe", str(tmp_path / "nope")), 1, f"there is no folder {tmp_path}/nope")


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_says_what_the_object_says_whatever_that_is(local: Place) -> None:
    absent = _shown(local)
    assert (absent["state"], absent["owner"], absent["lock"]) == ("absent", None, local.lock)

    body = json.loads(held(owner="a1"))
    local.write(json.dumps({"host": "worker-7", **body}).encode())
    now = _shown(local)
    assert (now["state"], now["owner"], now["extra"]) == ("held", "a1", {"host": "worker-7"})
    assert now["valid_until_ms"] == body["validUntil"]
    assert 0 < now["seconds_left"] <= 60
    written = datetime.fromisoformat(now["written_about"]).timestamp()
    assert written == pytest.approx(body["validUntil"] / 1000 - QUICK["validity_seconds"], abs=0.001)

    local.write(held(-0.25, "a2"))
    assert _shown(local)["state"] == "lapsed"
    local.write(render(LockRecord(expired=True, valid_until=body["validUntil"], owner="a3")))
    assert _shown(local)["state"] == "released"

    local.write(b'{"expired":false,"owner":"a4"}')
    malformed = _shown(local)
    assert (malformed["state"], malformed["why"]) == ("malformed", "field missing: validUntil")


def test_show_is_readable(local: Place) -> None:
    local.write(held(owner="a1"))
    text = local.run("show", local.table).stdout
    assert f"lock     {local.lock}\n" in text
    assert "state    held\n" in text
    assert "owner    a1\n" in text
    assert "(in 5" in text
    assert "if its leases are 15 s long as configured here" in text

    local.write(b"")
    text = local.run("show", local.table).stdout
    assert "state    malformed: the object is empty. Nobody overwrites it" in text


def test_looking_changes_nothing(local: Place, tmp_path: Path) -> None:
    assert local.run("show", local.table).returncode == 0

    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_hudi_table_is_found_where_hudi_keeps_it(local: Place) -> None:
    own = local.table + HUDI_LOCK
    assert _shown(local, "--hudi")["lock"] == own
    local.write(b"hoodie.table.name=t\n", local.table + "/.hoodie/hoodie.properties")
    assert _shown(local)["lock"] == own
    local.write(held(owner="agent"))
    assert _shown(local)["lock"] == local.lock

    local.write(held(owner="hudi"), own)

    found = _shown(local)
    assert (found["lock"], found["owner"], found["shared_with_hudi"]) == (own, "hudi", True)
    assert found["drift_seconds"] == 1.0
    assert _shown(local, "--lock", local.lock)["owner"] == "agent"


def test_a_lock_that_cannot_be_read_is_an_error_of_one_line(on_s3: Place, local: Place) -> None:
    _failed(on_s3.run("show", "s3://no-such-bucket-anywhere/t"), 1, "NoSuchBucket")
    wrong = {**on_s3.environment(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    _failed(_run("show", on_s3.table, env=wrong), 1, "status=403")
    silent = on_s3.run("show", on_s3.table, "--s3-endpoint", f"http://{NOWHERE}")
    _failed(silent, 1, "check endpoint and network")
    _failed(local.run("show", "orders"), 2, "not a table URI: 'orders'")
    _failed(local.run("show", local.table, "--lock", "nope"), 2, "not a table URI: 'nope'")
    _failed(local.run("show", "ftp://a/b"), 2, "no store for ftp://")
    nowhere = {name: value for name, value in local.settings.items() if name != "lock_root"}
    _failed(_run("show", local.table, env=environment(nowhere)), 1, "--lock-root")


# -- hold --------------------------------------------------------------------------------------------------------------


def test_a_command_runs_under_the_lock_and_its_exit_status_is_ours(place: Place, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    done = place.run("hold", place.table, "--seconds", "60", "--", "sh", "-c", f"env > {seen}; exit 7")

    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    record = place.record()
    assert record.expired
    told = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "LAKEWARDEN_" in line)
    assert told["LAKEWARDEN_LOCK_OWNER"] == record.owner
    assert told["LAKEWARDEN_LOCK_URI"] == place.lock
    assert told["LAKEWARDEN_TABLE"] == place.table
    shown = _shown(place)
    assert (shown["state"], shown["owner"], shown["lock"]) == ("released", record.owner, place.lock)


def test_the_object_is_held_while_the_command_runs(local: Place) -> None:
    path = local.lock.removeprefix("file://")
    done = local.run("hold", local.table, "--seconds", "60", "--exec", f"cat {path}")

    assert done.returncode == 0
    during = parse(done.stdout.encode())
    assert isinstance(during, LockRecord)
    assert not during.expired
    assert local.record().owner == during.owner
    assert local.record().expired


def test_a_command_killed_by_a_signal_ends_us_as_in_a_shell(local: Place) -> None:
    done = local.run("hold", local.table, "--seconds", "60", "--exec", "kill -KILL $$")

    assert done.returncode == 128 + signal.SIGKILL
    assert local.record().expired


def test_a_lock_that_somebody_holds_is_not_waited_for_unless_asked(place: Place, tmp_path: Path) -> None:
    place.write(held(owner="somebody"))
    ran = tmp_path / "ran"

    one_try = place.run("hold", place.table, "--seconds", "9", "--", "touch", str(ran))
    waited = place.run("hold", place.table, "--seconds", "9", "--wait", "6", "--", "touch", str(ran))

    _failed(one_try, 75, "held by another: owner somebody, until 20")
    assert waited.returncode == 75
    assert waited.stderr.splitlines()[0].startswith(f"lakewarden: waiting for {place.lock}: held by another")
    assert waited.stderr.splitlines()[-1].startswith(
        f"lakewarden: could not take {place.lock}: held by another"
    )
    assert not ran.exists()
    assert place.record().owner == "somebody"


def test_a_lock_that_lapses_in_time_is_taken(local: Place) -> None:
    local.write(held(2, owner="somebody"))

    done = local.run("hold", local.table, "--seconds", "60", "--wait", "60", "--", "true")

    assert done.returncode == 0
    assert local.record().owner != "somebody"


def test_a_malformed_object_and_a_missing_program_are_errors_and_nothing_is_overwritten(local: Place) -> None:
    local.write(b"{}")

    _failed(local.run("hold", local.table, "--seconds", "9", "--", "true"), 1, "no lock record")
    _failed(local.run("hold", local.table, "--seconds", "9", "--", "no-such-program"), 1, "no such program")

    assert Path(local.lock.removeprefix("file://")).read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hold", "/t"], "Missing option '--seconds'"),
        (["hold", "/t", "--seconds", "0"], "--seconds"),
        (["hold", "/t", "--seconds", "1", "--exec", "ls", "--", "ls"], "not both"),
        (["hold", "t", "--seconds", "1"], "not a table URI: 't'"),
        (["release", "/t"], "Missing option '--if-owner'"),
        (["probe", "foo"], "no place for locks: 'foo'"),
        (["audit", "--table", "t"], "not a table URI: 't'"),
        (["shwo"], "No such command 'shwo'"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(local: Place, arguments: list[str], told: str) -> None:
    _failed(local.run(*arguments), 2, told)


def test_a_silent_store_is_a_lock_that_cannot_be_had(on_s3: Place) -> None:
    done = on_s3.run(
        "hold", on_s3.table, "--seconds", "9", "--s3-endpoint", f"http://{NOWHERE}", "--", "true"
    )

    _failed(done, 75, "could not be read")


def test_a_command_whose_time_is_up_is_ended_and_then_the_lock_given_back(local: Place) -> None:
    done = local.run("hold", local.table, "--seconds", "1", "--", "sleep", "300")

    _failed(done, 124, "ending the command: its 1 s are up")
    assert local.record().expired


def test_a_signal_is_passed_on_and_the_lock_outlives_the_command(local: Place, tmp_path: Path) -> None:
    """A command that needs a while to end in order has the lock until then."""
    path, seen = local.lock.removeprefix("file://"), tmp_path / "seen"
    orderly = f"trap 'sleep 1; cat {path} > {seen}; exit 5' TERM; echo up; while :; do sleep 0.1; done"
    with local.started("hold", local.table, "--wait", "60", "--seconds", "300", "--exec", orderly) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 5
    during = parse(seen.read_bytes())
    assert isinstance(during, LockRecord)
    assert not during.expired
    assert local.record().expired


def test_what_a_command_leaves_running_is_ended_before_the_lock_is_given_back(
    local: Place, tmp_path: Path
) -> None:
    path, seen, pid = local.lock.removeprefix("file://"), tmp_path / "seen", tmp_path / "pid"
    orderly = f"trap 'sleep 1; cat {path} > {seen}; exit' TERM; echo > {pid}.up; while :; do sleep 0.1; done"
    left = f"({orderly}) 2>/dev/null & echo $! > {pid}; while ! test -e {pid}.up; do sleep 0.1; done; exit 3"

    done = local.run("hold", local.table, "--wait", "60", "--seconds", "60", "--exec", left)

    _failed(done, 3, "ending what the command has left running")
    assert not _runs(int(pid.read_text()))
    during = parse(seen.read_bytes())
    assert isinstance(during, LockRecord)
    assert not during.expired
    assert local.record().expired


def test_a_command_that_does_not_end_with_its_time_is_killed(local: Place, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"

    done = local.run("hold", local.table, "--wait", "60", "--seconds", "2", "--exec", stubborn)

    _failed(done, 124, "ending the command: its 2 s are up")
    assert not _runs(int(pid.read_text()))
    assert local.record().expired


def test_a_lock_that_another_owner_has_taken_ends_the_command(place: Place) -> None:
    with place.started(
        "hold", place.table, "--wait", "60", "--seconds", "300", "--exec", "echo up; sleep 300"
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        ours = place.record().owner
        place.write(held(owner="intruder"))
        _, told = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert told == (
        f"lakewarden: lost {place.lock}: another owner is in the lock object; owner intruder has it; "
        "the command is being ended\n"
    )
    assert ours != "intruder"
    assert place.record().owner == "intruder"


def test_a_command_that_ignores_the_loss_is_killed(local: Place) -> None:
    with local.started(
        "hold",
        local.table,
        "--seconds",
        "300",
        "--exec",
        "trap '' TERM; echo up; while :; do sleep 0.1; done",
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        children = psutil.Process(holder.pid).children(recursive=True)
        local.write(held(owner="intruder"))
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert not any(_runs(each.pid) for each in children)


def test_a_stopped_holder_does_not_let_its_command_outlive_the_lease(local: Place, tmp_path: Path) -> None:
    """SIGSTOP, a debugger, a machine under water: the guard ends the command, and its children, before the lease has ended."""
    ticks = tmp_path / "ticks"
    endless = f"echo up; while :; do date +%s%3N >> {ticks}; sleep 0.05; done"
    with local.started("hold", local.table, "--wait", "60", "--seconds", "300", "--exec", endless) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        holder.send_signal(signal.SIGSTOP)
        session = [
            each for each in psutil.Process(holder.pid).children() if "date" in " ".join(each.cmdline())
        ]
        _until(lambda: not any(_runs(each.pid) for each in session))
        ended, lease_end = time.time() * 1000, local.record().valid_until
        holder.send_signal(signal.SIGCONT)
        holder.communicate(timeout=PATIENCE_SECONDS)

    assert session
    last = int(ticks.read_text().split()[-1])
    assert last < lease_end - 200
    assert last <= ended
    assert holder.returncode == 76


def test_a_killed_holder_takes_its_command_and_all_that_it_started_along(
    local: Place, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    with local.started(
        "hold",
        local.table,
        "--wait",
        "60",
        "--seconds",
        "300",
        "--exec",
        f"sleep 301 & echo $! $$ > {pids}; echo up; wait",
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        holder.kill()
        holder.wait()
        started = [int(each) for each in pids.read_text().split()]
        _until(lambda: not any(_runs(each) for each in started))

    assert len(started) == 2
    assert not local.record().expired


def test_without_a_command_it_is_held_until_told_otherwise(local: Place) -> None:
    with local.started("hold", local.table, "--wait", "60", "--seconds", "300") as holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        first = local.record()
        _until(lambda: local.record().valid_until > first.valid_until)
        holder.send_signal(signal.SIGINT)
        rest, errors = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 0
    assert said == f"holding {local.lock} as owner {first.owner}\n"
    assert (rest, errors) == (f"released {local.lock}\n", "")
    assert local.record().expired


def test_without_a_command_it_ends_with_its_time(local: Place) -> None:
    done = local.run("hold", local.table, "--seconds", "0.5")

    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["holding", "released"]


# -- release -----------------------------------------------------------------------------------------------------------


def test_a_lock_is_given_back_by_hand_for_its_owner_and_its_lease_kept(place: Place) -> None:
    body = held(owner="dead")
    place.write(body)

    done = place.run("release", place.table, "--if-owner", "dead")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"released {place.lock}, which owner dead held"
    assert "warning: if that owner is alive, it may rely on its lease" in done.stdout
    record = parse(body)
    assert isinstance(record, LockRecord)
    assert place.record() == LockRecord(expired=True, valid_until=record.valid_until, owner="dead")


def test_a_lock_that_is_not_that_owners_to_give_is_left_alone(local: Place) -> None:
    refused: list[tuple[bytes | None, str]] = [(None, "there is no lock object at")]
    refused += [(held(owner="other"), "held by another owner, other")]
    refused += [(b"not json", "no lock record")]
    released = render(LockRecord(expired=True, valid_until=1_900_000_000_000, owner="dead"))
    refused += [(released, "already released by dead")]
    for body, told in refused:
        if body is not None:
            local.write(body)

        _failed(local.run("release", local.table, "--if-owner", "dead"), 1, told)

        assert body is None or local.read() == parse(body)


def test_a_holder_whose_lock_was_given_back_by_hand_ends_its_command(local: Place) -> None:
    with local.started(
        "hold", local.table, "--wait", "60", "--seconds", "300", "--exec", "echo up; sleep 300"
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        owner = local.record().owner
        assert local.run("release", local.table, "--if-owner", owner).returncode == 0
        _, told = holder.communicate(timeout=PATIENCE_SECONDS)

    assert holder.returncode == 76
    assert "somebody gave it back in our name" in told


# -- audit -------------------------------------------------------------------------------------------------------------


async def test_the_audit_of_what_an_agent_did_is_proven(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as scene:
        async with scene.agent():
            for number in range(2):
                writer = scene.writer(f"w{number}")
                await writer.begin()
                grant = await writer.granted()
                await writer.complete(grant.grant)
                await scene.hear(LockReleased, count=number + 1)
        values = scene.values()
        done = await _audit(values)
        lines = (await _audit(values, form="text")).stdout.splitlines()

    assert done.returncode == 0
    judged = json.loads(done.stdout)
    [lock] = judged["locks"]
    assert judged["proven"] is True
    assert lock["tables"] == [scene.table]
    assert (lock["acquisitions"], lock["releases"], lock["violations"]) == (2, 2, 0)
    assert lock["requests"] >= 6
    assert lines[-1].startswith("proven: no two owners at once; ")


async def test_two_owners_at_once_are_shown_and_fail_the_audit(kafka: KafkaServer, topic_prefix: str) -> None:
    values = await _topics(kafka, topic_prefix)
    await _tell(
        values,
        _event(LockAcquired, 0, "x", "a"),
        _event(LockAcquired, 2, "y", "b"),
        _event(LockReleased, 5, "x", "a"),
        _event(LockLost, 6, "y", "b", holder="z", detail="another owner is in the lock object"),
        _event(LockRefused, 7, "", "b", detail="the object is no lock record and is left alone: not JSON"),
        _event(LockAcquired, 0, "u", "a", table="s3://lake/other", lock="s3://lake/locks/other.json"),
    )

    done, text = await _audit(values), await _audit(values, form="text")
    lenient = await _audit(values, "--drift", "3.5")
    other = await _audit(values, "--table", "s3://lake/other")

    assert done.returncode == text.returncode == 1
    judged = json.loads(done.stdout)
    assert (judged["proven"], judged["violations"]) == (False, 1)
    [overlap] = judged["locks"][0]["overlaps"]
    assert (overlap["earlier"]["owner"], overlap["later"]["owner"], overlap["seconds"]) == ("x", "y", 3.0)
    assert "VIOLATION: owner x of agent a and owner y of agent b both held it from 2026-" in text.stdout
    assert "by owner y (agent b): another owner is in the lock object; owner z has it; at " in text.stdout
    assert "to be mended: the object is no lock record" in text.stdout
    assert text.stdout.splitlines()[-1].startswith(
        "VIOLATED: two owners at once, 1 time; 6 events of 2 locks"
    )
    assert lenient.returncode == 0
    assert json.loads(lenient.stdout)["locks"][0]["within_drift"] == 1
    assert other.returncode == 0
    assert [each["lock"] for each in json.loads(other.stdout)["locks"]] == ["s3://lake/locks/other.json"]


async def test_a_record_that_cannot_be_read_keeps_the_audit_from_being_a_proof(
    kafka: KafkaServer, topic_prefix: str
) -> None:
    values = await _topics(kafka, topic_prefix)
    await _tell(values, _event(LockAcquired, 0, "x", "a"))
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(f"{topic_prefix}.audit", b"{", key=b"s3://lake/orders", partition=0)

    done, text = await _audit(values), await _audit(values, form="text")

    assert done.returncode == text.returncode == 1
    judged = json.loads(done.stdout)
    assert (judged["proven"], judged["violations"], judged["unreadable"]) == (False, 0, 1)
    assert judged["unreadable_records"][0]["offset"] == 0 or judged["unreadable_records"][0]["partition"] == 0
    assert text.stdout.splitlines()[-1].startswith("not proven: 1 record could not be read")


def test_without_kafka_or_its_topic_the_audit_says_so(kafka: KafkaServer, local: Place) -> None:
    _failed(local.run("audit", bootstrap_servers=NOWHERE), 1, f"no Kafka broker answers at {NOWHERE}")
    missing = local.run("audit", bootstrap_servers=kafka.bootstrap_servers, topic_prefix="nobody-made-it")
    _failed(missing, 1, "there is no topic nobody-made-it.audit")


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["probe", "show", "hold", "release", "audit"])
def test_help_says_how_a_command_ends(local: Place, command: str) -> None:
    done = local.run(command, "--help")

    assert done.returncode == 0
    assert "Usage: " in done.stdout
    assert "Exit status" in " ".join(done.stdout.split())


def test_the_group_alone_says_what_there_is(local: Place) -> None:
    done = local.run()

    assert done.returncode == 2
    for name in ("probe", "show", "hold", "release", "audit"):
        assert f"\n  {name} " in done.stderr


# -- helpers -----------------------------------------------------------------------------------------------------------


def _run(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )


def _failed(done: subprocess.CompletedProcess[str], status: int, told: str) -> None:
    assert done.returncode == status, done
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == ""


def _shown(place: Place, *more: str) -> dict[str, Any]:
    done = place.run("show", place.table, "--output", "json", *more)
    assert (done.returncode, done.stderr) == (0, "")
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(settled: Any) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not settled():
        assert time.monotonic() < give_up
        time.sleep(0.02)


async def _topics(kafka: KafkaServer, prefix: str) -> dict[str, Any]:
    settings = Settings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix, partitions=2)
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    return {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": prefix}


def _event(kind: type[LockEvent], second: float, owner: str, agent: str, **fields: Any) -> LockEvent:
    at = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() + second
    given = {
        "event_id": uuid.uuid4().hex,
        "table": "s3://lake/orders",
        "at": datetime.fromtimestamp(at, UTC),
        "agent": agent,
        "lock": "s3://lake/locks/orders.json",
        "owner": owner,
        "valid_until": round((at + 30) * 1000),
        "requests": 1,
        "duration_ms": 0.0,
    }
    return kind.model_validate(given | fields)


async def _tell(values: dict[str, Any], *events: LockEvent) -> None:
    async with AIOKafkaProducer(bootstrap_servers=values["bootstrap_servers"]) as producer:
        for each in events:
            await producer.send_and_wait(
                f"{values['topic_prefix']}.audit", encode(each), key=each.table.encode()
            )


async def _audit(values: dict[str, Any], *more: str, form: str = "json") -> subprocess.CompletedProcess[str]:
    named = {name: values[name] for name in ("bootstrap_servers", "topic_prefix")}
    arguments: Sequence[str] = ("audit", "--output", form, *more)
    done = await anyio.to_thread.run_sync(lambda: _run(*arguments, env=environment(named)))
    assert done.stderr == ""
    return done
