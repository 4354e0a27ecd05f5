"""Each role works with the rights that docs/security.md lists. With any one of them less it fails, and names what is missing.

The broker has Kafka's own authorizer, which denies what no rule allows. Each case has a user of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from aiokafka.protocol.admin import CreateAclsRequest

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.doctor import diagnose
from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.web.follower import Follower
from lakewarden.events import BatchCommitted, CommitGranted, CommitIntent, ConflictDetected, DeadLetter
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from tests.kafka_fixture import administering
from tests.processes import AgentProcess, run_command
from tests.real.lock_places import Place
from tests.real.watching.scene import HudiScene
from tests.real.writers import World, world
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.wide]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
OPERATIONS = {"read": 3, "write": 4, "create": 5, "describe": 8}
TOPIC, GROUP = 2, 3
LITERAL, ALLOW = 3, 3
PASSWORD = "open-sesame"
SHARED = "shared"
"""The prefix of the topics in which the cases without an agent of their own run."""
TRANSACTION = "the-transaction"
COMMANDS = {
    "`status`": ("status",),
    "`explain`": ("explain", TRANSACTION),
    "`conflicts`": ("conflicts",),
    "`ledger show`": ("ledger", "show"),
    "`agents`": ("agents",),
    "`losses`": ("losses",),
    "`refused`": ("refused",),
}
REQUESTS = {
    "`abort`": ("abort", "{transaction}"),
    "`ledger correct`": (
        *("ledger", "correct", "--writer", "hung", "--batch-id", "7"),
        *("--table", "{table}", "--reason", "test"),
    ),
}
JOB = "`conflicts_job`"
SPARK_SECONDS = 600.0
"""For a Spark program, most of it for its start on a busy machine."""
WATCH = "`watch`"
WEB = "`web`"

WATCHING_AGENT = "watching-agent"
"""The user of an agent with the setting `watch`."""

Right = tuple[str, str]
"""A topic without its prefix, or `group`; and an operation."""


@dataclass(frozen=True, slots=True)
class Case:
    """A role with all of its rights but one, or with all of them."""

    role: str
    rights: tuple[Right, ...]
    missing: Right | None
    user: str

    def __str__(self) -> str:
        """The name of the test's case."""
        less = "all rights" if self.missing is None else "no " + " on ".join(reversed(self.missing))
        return f"{self.role.strip('`')}: {less}"


def _table() -> dict[str, tuple[Right, ...]]:
    """The rights of each role, from the page."""
    [section] = re.findall(r"^## Rights in Kafka$(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    resources = [cell.strip("`.") for cell in head[1:]]
    return {
        row[0]: tuple(
            (resource, operation.strip())
            for resource, cell in zip(resources, row[1:], strict=True)
            if cell != "–"
            for operation in cell.split(",")
        )
        for row in rows
    }


def _cases() -> list[Case]:
    cases: list[Case] = []
    for role, rights in _table().items():
        for missing in (None, *rights):
            left = tuple(right for right in rights if right != missing)
            cases.append(Case(role, left, missing, f"user-{len(cases)}"))
    return cases


CASES = _cases()


def _of(*roles: str) -> list[Case]:
    return [case for case in CASES if case.role in roles]


@dataclass(frozen=True, slots=True)
class Guarded:
    """The broker, and a running agent that has all rights."""

    broker: EmbeddedKafka
    sasl: str
    shared: World

    def settings(self, case: Case) -> dict[str, Any]:
        """The settings of the case's user."""
        return {
            "bootstrap_servers": self.sasl,
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_username": case.user,
            "kafka_sasl_password": PASSWORD,
        }

    def options(self, case: Case) -> dict[str, Any]:
        """The same as options of a writer."""
        return {"security_protocol": "SASL_PLAINTEXT", "sasl_username": case.user, "sasl_password": PASSWORD}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """PLAINTEXT is the administrator's listener."""
    folder = tmp_path_factory.mktemp("guarded")
    sasl = free_port()
    listeners = f"PLAINTEXT://{{host}}:{{port}},SASL://{{host}}:{sasl}"
    names = [WATCHING_AGENT, *(case.user for case in CASES)]
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in names)
    properties = {
        "listeners": f"{listeners},CONTROLLER://{{host}}:{{controller_port}}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }
    with EmbeddedKafka(folder / "kafka", properties=properties) as broker:
        shared, agent = anyio.run(_prepare, broker.bootstrap_servers, folder)
        try:
            yield Guarded(broker, f"127.0.0.1:{sasl}", shared)
        finally:
            agent.kill()


async def _prepare(servers: str, folder: Path) -> tuple[World, AgentProcess]:
    """Grant the shared prefix's rights, start an agent there, and let two transactions collide."""
    async with world(servers, SHARED, folder) as shared:
        for case in CASES:
            if case.role != "agent":
                await _grant(servers, SHARED, case)
        agent = AgentProcess(shared.values(), folder / "agent.log")
        await agent.ready()
        writer = shared.writer("first")
        writer.transaction = TRANSACTION
        await _collide(shared, writer)
        await shared.wait_for(ConflictDetected)
        return shared, agent


async def _collide(scene: World, first: Any) -> None:
    """Make an agent publish to every topic."""
    await scene.send_raw(b"rubbish", scene.table.encode())
    await first.begin(batch_id=1)
    await first.touch("x")
    second = scene.writer("second")
    await second.begin(batch_id=1)
    await second.touch("x")
    await first.obtain_grant()
    await first.complete()


async def _grant(servers: str, prefix: str, case: Case) -> None:
    async with administering(servers) as admin:
        for resource, operation in case.rights:
            kind, name = (
                (GROUP, f"{prefix}-agents") if resource == "group" else (TOPIC, f"{prefix}.{resource}")
            )
            answer = await admin._send_request(
                CreateAclsRequest(kind, name, LITERAL, f"User:{case.user}", "*", OPERATIONS[operation], ALLOW)
            )
            assert [code for code, _ in answer.creation_responses] == [0]


@pytest_asyncio.fixture
async def scene(guarded: Guarded, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    """Topics of the case's own, created by the administrator."""
    async with world(guarded.broker.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


def test_the_table_has_all_roles_of_these_tests() -> None:
    assert set(_table()) == {"agent", "driver", "executor", *COMMANDS, *REQUESTS, JOB, WATCH, WEB}
    assert all(operation in OPERATIONS for rights in _table().values() for _, operation in rights)


@pytest.mark.parametrize("case", _of("agent"), ids=str)
async def test_an_agent_needs_exactly_its_rights(guarded: Guarded, scene: World, case: Case) -> None:
    await _grant(scene.bootstrap_servers, scene.prefix, case)
    with scene.process(**guarded.settings(case), log_level="warning") as agent:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_collide, scene, scene.writer("first"))
            if case.missing is None:
                for kind in (CommitGranted, ConflictDetected, DeadLetter, BatchCommitted):
                    await scene.wait_for(kind)
                assert agent.popen.poll() is None
            else:
                assert await agent.ended() == 1
                last = agent.log.read_text().splitlines()[-1]
                _names_what_is_missing(last, scene.prefix, case.missing)
                assert f"Kafka denies {case.user} access to the " in last
                assert f"grant it {_granted(case)}" in last
            tasks.cancel_scope.cancel()


def _granted(case: Case) -> str:
    """What an operator has to grant: all of the role's rights on that topic, or on the group."""
    assert case.missing is not None
    resource = case.missing[0]
    rights = " and ".join(operation for other, operation in _table()[case.role] if other == resource)
    return f"{rights} on the group" if resource == "group" else f"{rights}, and create if"


async def test_an_agent_that_watches_needs_write_on_writers_for_its_reports(
    guarded: Guarded, scene: World
) -> None:
    """Without this right it serves its tables. Once it has the right, the same reports are accepted."""
    watched = HudiScene(scene, Place(f"{scene.table}-watched", "", {})).created()
    case = Case("agent", _table()["agent"], None, WATCHING_AGENT)
    await _grant(scene.bootstrap_servers, scene.prefix, case)
    with scene.process(**guarded.settings(case), **watched.watching()) as agent:
        await agent.logged("watch.table")
        watched.request()
        refused = await agent.logged("watch.not-published")
        writer = scene.writer("writer", watched.place.table)
        await writer.begin()
        await writer.obtain_grant()
        await _grant(scene.bootstrap_servers, scene.prefix, replace(case, rights=(("writers", "write"),)))
        await watched.reported(CommitIntent)
        assert agent.popen.poll() is None

    assert "TopicAuthorizationFailed" in refused["why"]


async def test_the_doctor_finds_the_one_right_that_an_agent_lacks(guarded: Guarded, scene: World) -> None:
    """With all of them it finds no problem. No user here has `describe-configs`, or `describe` on the cluster."""
    for case in _of("agent"):
        await _grant(scene.bootstrap_servers, scene.prefix, case)

        findings = await diagnose(scene.settings(**guarded.settings(case)), [])

        problems = [each for each in findings if each.result == "problem" and each.next != "start an agent"]
        if case.missing is None:
            assert problems == []
            continue
        resource, operation = case.missing
        [problem] = problems
        assert problem.about == (
            f"{scene.prefix}-agents" if resource == "group" else f"{scene.prefix}.{resource}"
        )
        assert operation in f"{problem.found} {problem.next}"


@pytest.mark.parametrize("case", _of("driver"), ids=str)
def test_a_driver_needs_exactly_its_rights(guarded: Guarded, case: Case) -> None:
    table = f"{guarded.shared.table}-{case.user}"

    def commit() -> None:
        with (
            guarded.shared.gate(guarded.sasl, kafka=guarded.options(case)) as gate,
            gate.transaction(table=table, writer="w", batch_id=1) as txn,
        ):
            txn.touch("p", "x", "merge")
            with txn.commit() as grant:
                grant.version = "1"
            assert len(gate._channel.read_back(table, 0, PATIENCE_SECONDS)) > 0

    error = _works_or_names_what_is_missing(commit, case)

    assert error is None or guarded.sasl in error


@pytest.mark.parametrize("case", _of("executor"), ids=str)
def test_an_executor_needs_exactly_its_rights(guarded: Guarded, case: Case) -> None:
    channel = ExecutorChannel(
        guarded.sasl,
        SHARED,
        f"{guarded.shared.table}-{case.user}",
        "t",
        "w",
        guarded.options(case),
        PATIENCE_SECONDS,
    )

    _works_or_names_what_is_missing(lambda: channel.touch("p", "x", "merge"), case)


@pytest.mark.parametrize("case", _of(WATCH), ids=str)
def test_a_watcher_needs_exactly_its_rights(guarded: Guarded, case: Case) -> None:
    instant = "hudi:20261122135446024"
    event = CommitIntent(
        event_id=case.user,
        table=f"{guarded.shared.table}-{case.user}",
        transaction=instant,
        writer=instant,
        at=datetime.now(UTC),
        observed=True,
    )

    async def report() -> None:
        async with publishing(guarded.shared.settings(**guarded.settings(case))) as publish:
            await publish([event])

    if case.missing is None:
        anyio.run(report)
        return
    with pytest.raises(AgentError) as failure:
        anyio.run(report)
    _names_what_is_missing(str(failure.value), SHARED, case.missing)


@pytest.mark.usefixtures("swept")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("case", _of(WEB), ids=str)
async def test_the_page_needs_exactly_its_rights(guarded: Guarded, case: Case) -> None:
    """It runs with less, too, and shows what it lacks."""
    settings = guarded.shared.settings(**guarded.settings(case))
    follower = Follower(settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run)
        with anyio.fail_after(PATIENCE_SECONDS):
            if case.missing is None:
                while follower.problem is not None:
                    await follower.changes.wait(follower.changes.revision)
            else:
                while not _named(follower.problem, case):
                    await follower.changes.wait(follower.changes.revision)
                _names_what_is_missing(follower.problem or "", SHARED, case.missing)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("case", _of(*COMMANDS), ids=str)
def test_a_command_needs_exactly_its_rights(guarded: Guarded, case: Case) -> None:
    _run_with_rights(guarded, case, COMMANDS[case.role])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", _of(JOB), ids=str)
def test_the_conflicts_job_needs_exactly_its_rights(guarded: Guarded, case: Case, tmp_path: Path) -> None:
    """Spark's Kafka client reads without a consumer group: no right on one is needed."""
    user = f'username="{case.user}" password="{PASSWORD}"'
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {user};",
    }
    command = [sys.executable, "-m", "lakewarden.spark_jobs.conflicts_job", "--once"]
    command += ["--bootstrap-servers", guarded.sasl, "--topic-prefix", SHARED]
    command += ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--kafka-options", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SPARK_SECONDS)

    written = list((tmp_path / "out").glob("day=*/*.parquet"))
    if case.missing is None:
        assert done.returncode == 0, done.stderr
        assert written
    else:
        assert (done.returncode, written) == (1, [])
        last = done.stderr.splitlines()[-1]
        assert f"Kafka denies {case.user} " in last
        _names_what_is_missing(last, SHARED, case.missing)


@pytest.mark.parametrize("case", _of(*REQUESTS), ids=str)
async def test_a_request_needs_exactly_its_rights(guarded: Guarded, case: Case, tmp_path: Path) -> None:
    """Its agent answers it: a transaction that hangs is aborted, and the ledger is corrected."""
    async with world(guarded.broker.bootstrap_servers, SHARED, tmp_path) as shared:
        hung = shared.writer("hung", f"{guarded.shared.table}-{case.user}")
        await hung.begin()
        arguments = [
            part.format(transaction=hung.transaction, table=hung.table) for part in REQUESTS[case.role]
        ]
        await anyio.to_thread.run_sync(_run_with_rights, guarded, case, arguments)
        await hung.abandon()


def _run_with_rights(guarded: Guarded, case: Case, arguments: Sequence[str]) -> None:
    values = guarded.shared.values(**guarded.settings(case), topic_prefix=SHARED)
    done = run_command(*arguments, **values)

    assert PASSWORD not in done.stdout + done.stderr
    if case.missing is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1, done.stdout
        [line] = done.stderr.splitlines()
        _names_what_is_missing(line, SHARED, case.missing)


def _works_or_names_what_is_missing(work: Any, case: Case) -> str | None:
    """The error, if a right is missing."""
    if case.missing is None:
        work()
        return None
    with pytest.raises(AgentUnreachable) as failure:
        work()
    _names_what_is_missing(str(failure.value), SHARED, case.missing)
    return str(failure.value)


def _named(line: str | None, case: Case) -> bool:
    return case.missing is not None and case.missing[0] in str(line)


def _names_what_is_missing(line: str | None, prefix: str, missing: Right) -> None:
    resource, operation = missing
    assert line is not None
    assert PASSWORD not in line
    assert operation in line
    assert "group" in line if resource == "group" else f"{prefix}.{resource}" in line
