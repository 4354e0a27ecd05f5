"""The command line from outside: failures of one line, and output. Usage errors: `tests/unit/agent/cli/test_app.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import psutil
import pytest
import structlog
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from lakewarden.agent import kafka as kafka_module, log as log_module
from lakewarden.agent.cli.app import app
from lakewarden.agent.name_text import visible, visible_blanks
from lakewarden.agent.operators.status import status
from lakewarden.events import Abort, CommitIntent, ConflictDetected, LockAcquired, encode
from tests.kafka_fixture import KafkaServer, counted_reads
from tests.processes import environment, run_command
from tests.real.writers import World, markers
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real]

COMMAND = [sys.executable, "-m", "lakewarden.agent"]
NOWHERE = "127.0.0.1:9"


def test_dev_reports_a_folder_that_it_cannot_write() -> None:
    done = run_command("dev", "--data", "/proc/nowhere")

    assert done.returncode == 1
    assert done.stderr == (
        "lakewarden: the folder /proc/nowhere/.lakewarden can't be created or written: No such file or directory; "
        "choose another --data\n"
    )


@pytest.mark.parametrize("command", ["status", "conflicts", "explain x"])
def test_without_kafka_or_topics_the_error_is_one_line_with_what_to_do(
    command: str, kafka: KafkaServer
) -> None:
    nowhere = run_command(*command.split(), bootstrap_servers=NOWHERE)
    nothing = run_command(*command.split(), bootstrap_servers=kafka.bootstrap_servers, topic_prefix="missing")

    for done, why in (
        (nowhere, f"no Kafka broker answers at {NOWHERE}"),
        (
            nothing,
            "there is no topic missing.writers" if "explain" in command else "start an agent there first",
        ),
    ):
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


async def test_status_prints_the_lock_holder_and_what_each_transaction_waits_for(scene: World) -> None:
    # The commands may take longer than a short grant lease on a busy machine.
    async with scene.agent(validity_seconds=300.0):
        granted, waiting, queued = scene.writer("granted"), scene.writer("waiting"), scene.writer("queued")
        await granted.begin(batch_id=7, heartbeat_seconds=100)
        await granted.touch("x", "y")
        await waiting.begin(heartbeat_seconds=100)
        await granted.obtain_grant()
        await waiting.request_commit()
        await queued.send_intent(admission="queued", scope=markers("x"), heartbeat_seconds=100)
        await scene.settle()
        [acquired] = await scene.wait_for(LockAcquired)

        as_json = await scene.answer("status", "--table", scene.table, "--output", "json")
        as_text = await scene.answer("status")
        agents = json.loads(await scene.answer("agents", "--output", "json"))

    [view] = json.loads(as_json)
    assert view["table"] == scene.table
    assert (view["lock"]["held"], view["lock"]["agent"]) == (True, acquired.agent)
    assert view["lock"]["owner"] == acquired.owner
    assert [each["agent"] for each in agents["members"]] == [acquired.agent]
    assert {each["agent"] for each in agents["partitions"]} == {acquired.agent}
    shown = {each["writer"]: each for each in view["transactions"]}
    assert {name: each["phase"] for name, each in shown.items()} == {
        "granted": "granted",
        "waiting": "waiting",
        "queued": "queued",
    }
    assert (shown["granted"]["batch_id"], shown["granted"]["partitions"]) == (7, 1)
    assert shown["granted"]["file_groups"] == 2
    assert shown["waiting"]["waiting_on"] == "the grant of granted"
    assert shown["queued"]["waiting_on"] == "granted"
    assert (view["condition"]["name"], view["condition"]["waiting"]) == ("ok", 2)
    assert as_text.startswith(f"1 table, ok\n{scene.table}: ok\n")
    for part in (acquired.agent, granted.transaction[:8], "the grant of granted"):
        assert part in as_text


async def test_status_reads_each_record_once(scene: World) -> None:
    """What is now, what is past and the locks are one reading: the topics may be long."""
    async with scene.agent():
        for batch in range(3):
            shop = scene.writer("shop")
            await shop.begin(batch_id=batch)
            await shop.complete((await shop.obtain_grant()).grant)
        await scene.writer("crm").begin(heartbeat_seconds=100)
        await scene.settle()

    with counted_reads() as read:
        [view] = await status(scene.settings(), scene.table)

    assert (view.last_commit is not None, len(view.transactions)) == (True, 1)
    topics = scene.settings().topics
    assert {topic for topic, _, _ in read} >= {topics.writers, topics.decisions, topics.audit}
    assert set(read.values()) == {1}


async def test_status_of_a_table_without_writers_is_empty(scene: World) -> None:
    [view] = json.loads(await scene.answer("status", "--table", scene.table, "--output", "json"))

    assert view["condition"]["name"] == "no-agent"
    empty: dict[str, Any] = {"lock": None, "transactions": [], "incomplete": [], "refused": None}
    assert view.items() >= {**empty, "table": scene.table, "last_commit": None, "pace_seconds": None}.items()
    assert "no table has an open transaction" in await scene.answer("status")
    assert json.loads(await scene.answer("refused", "--output", "json")) == []


async def test_conflicts_are_listed_and_followed(scene: World) -> None:
    assert await scene.answer("conflicts") == "no conflicts\n"
    with _started("conflicts", "--follow", "--output", "json", settings=scene.values()) as following:
        async with scene.agent():
            winner, loser = scene.writer("winner"), scene.writer("loser")
            await winner.begin()
            await loser.begin()
            await winner.touch("x")
            await loser.touch("x")
            await loser.wait_for(Abort)
        followed = ConflictDetected.model_validate_json(await _line(following))
        following.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(following.wait) == 130

    [listed] = (await scene.answer("conflicts", "--output", "json")).splitlines()
    assert ConflictDetected.model_validate_json(listed) == followed
    text = await scene.answer("conflicts")
    assert "loser lost to winner: p x; aborted " in text
    assert json.loads(await scene.answer("losses", "--output", "json"))["conflicts"] == 1


HOSTILE = (
    "orders[eu]",
    "a[/b]",
    " \x1b[2J\x1b]0;t\x07",
    "a\x9b31m\x85\u2028b",
    "\u202etpircs",
    "\\u001b c:\\x",
    "[red]",
    "a  b ",
)
"""Names of writers: markup, escape sequences, other line breaks, another direction, backslashes, blanks."""


async def answer_here(scene: World, *arguments: str) -> str:
    """What a command prints, run in this process: 40 processes would take two minutes."""
    logging_of_tests = structlog.get_config()
    done = await anyio.to_thread.run_sync(
        lambda: CliRunner().invoke(app, arguments, env=environment(scene.values()))
    )
    structlog.configure(**logging_of_tests)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Kafka clients that commands open in this process."""
    made: list[str] = []
    for name in ("reader", "admin_client"):

        def counting(*arguments: Any, name: str = name, **more: Any) -> Any:
            made.append(name)
            return getattr(kafka_module, name)(*arguments, **more)

        monkeypatch.setattr(log_module, name, counting)
    return made


async def test_every_command_prints_every_name_on_one_line_and_takes_it_back(
    scene: World, opened: list[str]
) -> None:
    """Any client of Kafka chooses names. Ordinary ones have brackets. No question opens more than two clients."""
    table = f"{scene.table}[/x] \x9b2J\u202e"
    with scene.process() as agent:
        await agent.logged("agent.ready")
        winner = scene.writer("none", table)
        for name in HOSTILE:
            ended, winner, loser = (scene.writer(each, table) for each in (name, name, f"{name}!"))
            for each, batch in ((ended, 7), (winner, 8), (loser, 9)):
                await each.begin(batch_id=batch)
                if each is ended:
                    await each.obtain_grant()
                    await each.complete(version=f"{name}\n2026-11-25 00:00:00  forged")
            partition = f"{name}\n2026-11-25 00:00:00  forged"
            await winner.touch("x", partition=partition)
            await loser.touch("x", partition=partition)
            await loser.wait_for(Abort)
        await scene.send_raw(b"{", f"{table}\n".encode())
        await scene.settle(table)
        shown = [visible(name) for name in HOSTILE]
        ours = visible(winner.transaction)
        commands = [
            *([each] for each in ("status", "conflicts", "losses", "refused", "agents")),
            ["ledger", "show"],
            *(["status", "--table", visible(table)], ["ledger", "show", visible(table)], ["explain", ours]),
            *(["ledger", "show", name] for name in shown),
        ]
        printed: dict[str, str] = {}
        for words in commands:
            opened.clear()
            printed[" ".join(words)] = await answer_here(scene, *words)
            assert sorted(opened) == ["admin_client", "reader"], words
        fields = {" ".join(each): await answer_here(scene, *each, "--output", "json") for each in commands}
        correction = ("--writer", shown[2], "--batch-id", "9", "--reason", "a\nb", "--table", visible(table))
        corrected = await answer_here(scene, "ledger", "correct", *correction)
        [line] = json.loads(await answer_here(scene, "ledger", "show", shown[2], "--output", "json"))
        aborted = await answer_here(scene, "abort", ours, "--output", "json")

    for command, text in printed.items():
        assert all(each.isprintable() for each in text.split("\n")), command
        assert not any(each.startswith("2026-11-25 00:00:00  forged") for each in text.split("\n")), command
    for command in (
        "status",
        "ledger show",
        f"status --table {visible(table)}",
        f"ledger show {visible(table)}",
    ):
        assert all(visible_blanks(visible(name)) in printed[command] for name in HOSTILE), command
        lines = 1 + 2 * len(HOSTILE) if "ledger" in command else 5 + len(HOSTILE)
        assert len(printed[command].splitlines()) == lines, command
    assert len(printed["conflicts"].splitlines()) == len(HOSTILE)
    for name in HOSTILE:
        [entry] = json.loads(fields[f"ledger show {visible(name)}"])
        assert (entry["table"], entry["writer"], entry["batch_id"]) == (table, name, 7)
    assert all(text.isascii() for text in fields.values())
    assert json.dumps(winner.transaction) in fields[f"explain {ours}"]
    assert (line["writer"], line["batch_id"]) == (HOSTILE[2], 9)
    assert corrected.count("\n") == 1
    assert json.loads(aborted)["transaction"] == winner.transaction


async def test_dev_ends_its_processes_and_keeps_its_state_and_addresses(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    table = f"file://{data}/t"
    with _started("dev", "--data", str(data), "--output", "json") as dev:
        ready = json.loads(await _line(dev))
        assert set(ready) == {"ready", "bootstrap_servers", "lock_root", "web"}
        assert ready["ready"] is True
        scene = World(ready["bootstrap_servers"], "lakewarden", tmp_path, None, None)
        async with AIOKafkaProducer(bootstrap_servers=ready["bootstrap_servers"]) as producer:
            writer = scene.writer("patient", table)
            first, intent = writer.transaction, writer.event(CommitIntent, heartbeat_seconds=300)
            await producer.send_and_wait("lakewarden.writers", encode(intent), key=table.encode())
        await _until_shown(scene, table, first)
        async with aiohttp.ClientSession() as session:
            with anyio.fail_after(PATIENCE_SECONDS):
                while first not in (await (await session.get(f"{ready['web']}tables.json")).text()):
                    await anyio.sleep(0.2)
        started = [psutil.Process(dev.pid), *psutil.Process(dev.pid).children(recursive=True)]
        dev.send_signal(signal.SIGINT)
        rest, _ = await anyio.to_thread.run_sync(dev.communicate)
    assert rest == ""
    assert dev.returncode == 0
    assert len(started) > 1
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []

    with _started("dev", "--data", str(data)) as dev:
        assert (await _line(dev)).startswith("ready; ")
        printed = "".join([await _line(dev) for _ in range(6)])
        assert ready["bootstrap_servers"] in printed
        assert ready["web"] in printed
        assert f"below {data}" in printed
        assert f"LAKEWARDEN_LOCK_ROOT={ready['lock_root']}\n" in printed
        await _until_shown(scene, table, first)


async def _until_shown(scene: World, table: str, transaction: str) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while transaction not in await scene.answer("status", "--table", table, "--output", "json"):
            await anyio.sleep(0.2)


@contextmanager
def _started(*arguments: str, settings: dict[str, Any] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env={**environment(settings or {}), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGINT)
                try:
                    process.wait(30)
                finally:
                    process.kill()


async def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with anyio.fail_after(2 * PATIENCE_SECONDS):
        return await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
