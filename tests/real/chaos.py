"""A world with faults: agents and writers as processes, and a fault proxy in front of the store.

Each process records what it does. `tests/real/locks/test_lock_chaos.py` states the properties, `evidence.py` checks them.
"""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from lakewarden.agent.bound_child import bound
from lakewarden.events import CommitGranted, LockAcquired, LockEvent, LockRenewed
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.processes import AgentProcess
from tests.real.writers import World, world
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0
"""A time limit that ends a test which hangs. A busy machine may use most of it."""
TIGHT: dict[str, Any] = {
    "partitions": 4,
    "lock_root": None,
    "session_timeout_seconds": 6.0,
    "validity_seconds": 12.0,
    "drift_seconds": 0.5,
    "hudi_validity_seconds": 12.0,
    "log_level": "info",
}
LEASE_SECONDS = 13.0
"""Longer than validity plus drift, so that an agent has lost a lease which it could not renew for so long."""
LOSS_TRIES = 10
"""To lose a lease under a grant so that the abort reaches the writer before it stops by itself."""
WRITERS = 3
"""Writers of each table."""


class EvidenceProcess:
    """A process that records what it does in a file with one JSON object per line. It ends with this process."""

    def __init__(self, module: str, evidence: Path, arguments: Iterable[str]) -> None:
        self._evidence = evidence
        self._read = 0
        self._lines: list[dict[str, Any]] = []
        self._log = evidence.with_suffix(".log")
        command = [sys.executable, "-m", module, "--evidence", str(evidence), *arguments]
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                bound(command), cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines that it has written."""
        if self._evidence.exists():
            with self._evidence.open("rb") as file:
                file.seek(self._read)
                complete, _, _ = file.read().rpartition(b"\n")
            self._read += len(complete) + bool(complete)
            self._lines.extend(json.loads(line) for line in complete.splitlines())
        return self._lines

    def send(self, command: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{command}\n".encode())
        self.popen.stdin.flush()

    async def wait_for_line(
        self,
        matches: Callable[[dict[str, Any]], bool],
        what: str,
        *,
        after: int = 0,
        patience: float = PATIENCE_SECONDS,
    ) -> dict[str, Any]:
        """Wait for a matching line; the first `after` lines are skipped."""
        with anyio.move_on_after(patience):
            while self.popen.poll() is None:
                if found := next(filter(matches, self.lines[after:]), None):
                    return found
                await anyio.sleep(0.02)
        last = "\n".join(map(str, self.lines[-20:]))
        raise AssertionError(f"no line: {what}; status={self.popen.poll()}\n{last}\n{self._log.read_text()}")

    async def ended(self, *, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until it has ended with status 0."""
        await until(lambda: self.popen.poll() is not None, seconds=patience)
        assert self.popen.returncode == 0, self._log.read_text()

    def kill(self) -> None:
        """Kill it, even if it is suspended."""
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdin is not None
        self.popen.stdin.close()


@dataclass(slots=True)
class Chaos:
    """All processes, and the faults so far."""

    scene: World
    proxy: Proxy
    bucket: str
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    killed: dict[str, int] = field(default_factory=dict)
    """The agents that were killed, with the time in epoch milliseconds."""
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    writers: dict[str, EvidenceProcess] = field(default_factory=dict)

    def table(self, name: str) -> str:
        return f"s3://{self.bucket}/warehouse/{name}"

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start_agent(self, **more: Any) -> None:
        """Start another agent of the group."""
        name = f"agent-{len(self.agents) + 1}"
        agent = AgentProcess(self.scene.values(agent_id=name, **more), self.scene.root / f"{name}.log")
        self.agents[name] = agent
        await agent.ready()

    def start_writers(self, name: str, *, shared: bool) -> None:
        table = self.table(name)
        arguments = [
            *("--bootstrap", self.scene.bootstrap_servers, "--prefix", self.scene.prefix),
            *("--table", table, "--writers", str(WRITERS), "--seed", str(self.seed)),
            *(("--lock", table + HUDI_LOCK) if shared else ()),
        ]
        evidence = self.scene.root / f"writers-{name}.jsonl"
        self.writers[name] = EvidenceProcess("tests.real.committing_writers", evidence, arguments)

    # -- faults -------------------------------------------------------------------------------------------------------

    async def owner(self, name: str) -> str:
        """The last holder of a table's lock, according to the audit topic, that still runs."""
        table = self.table(name)
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                held = self.scene.events(LockEvent, lambda each: each.table == table)
                last = next((e for e in reversed(held) if isinstance(e, LockAcquired | LockRenewed)), None)
                if last is not None and last.agent not in self.killed:
                    return last.agent
                await anyio.sleep(0.1)

    async def pause_owner(self, name: str) -> None:
        """Suspend the owner's process for longer than its lease, then resume it."""
        agent = await self.owner(name)
        process = self.agents[agent].popen
        process.send_signal(signal.SIGSTOP)
        await anyio.sleep(LEASE_SECONDS)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        self.faults["agent paused"] += 1

    async def kill_owner(self, name: str) -> None:
        """Kill the owner's process right after its next grant, and start another agent."""
        granted = len(self._grants(name))
        await until(lambda: len(self._grants(name)) != granted, seconds=PATIENCE_SECONDS)
        agent = self._grants(name)[-1].agent
        self.killed[agent] = time.time_ns() // 1_000_000
        self.agents[agent].kill()
        assert self.agents[agent].popen.returncode == -signal.SIGKILL
        self.faults["agent killed"] += 1
        await self.start_agent()
        self.faults["agent restarted"] += 1

    def _grants(self, name: str) -> list[CommitGranted]:
        return self.scene.events(CommitGranted, lambda each: each.table == self.table(name))

    async def lose_a_running_lease(self, name: str) -> None:
        """Let the whole store hang for longer than a lease while a grant is running.

        Another try is needed if the group was rebalancing, or if the abort came so late that the writer had stopped by itself.
        """
        for _ in range(LOSS_TRIES):
            reasons = await self._outlast_a_publish(name)
            if "lease-lost" in reasons:
                self.faults["lease lost"] += 1
                return
        raise AssertionError(f"no lease was lost under a running grant in {LOSS_TRIES} tries")

    async def _outlast_a_publish(self, name: str) -> list[str]:
        """Start a long publish, and let the store hang until it has ended. Return the reasons of its writer's aborts."""
        writers = self.writers[name]
        past = len(writers.lines)
        writers.send("long")
        began = await writers.wait_for_line(
            lambda line: line["what"] == "publishing" and line["long"], "a long publish", after=past
        )
        with self.proxy.hanging():
            await anyio.sleep(LEASE_SECONDS)
            await writers.wait_for_line(
                lambda line: line["what"] == "stopped" and line["transaction"] == began["transaction"],
                "the end of the long publish",
                after=past,
            )
        mine = [line for line in writers.lines[past:] if line.get("transaction") == began["transaction"]]
        return [line["reason"] for line in mine if line["what"] == "abort"]

    async def wait_for_commits(self) -> None:
        """Wait until each writer of each table has published once more."""
        for name, witness in self.writers.items():
            past = len(witness.lines)
            for writer in (f"{name}-{number}" for number in range(WRITERS)):
                await witness.wait_for_line(
                    lambda line, writer=writer: line["what"] == "published" and line["writer"] == writer,  # type: ignore[misc]
                    f"a commit of {writer}",
                    after=past,
                )

    async def finish(self) -> None:
        """Stop all processes in order: first the writers, which need the agents."""
        for witness in self.writers.values():
            witness.send("finish")
        for witness in self.writers.values():
            await witness.ended()
        for agent in self.agents.values():
            agent.popen.send_signal(signal.SIGTERM)
        for name, agent in self.agents.items():
            status = await agent.ended()
            assert status == (-signal.SIGKILL if name in self.killed else 0), agent.log.read_text()[-3000:]


@asynccontextmanager
async def chaos(
    bootstrap_servers: str, prefix: str, root: Path, s3: S3Server, seed: int
) -> AsyncGenerator[Chaos]:
    """A world with tables in one bucket behind the proxy. No process runs yet; all are killed at the end."""
    bucket = s3.bucket()
    with Proxy(
        s3.endpoint, seed=seed, timeout_seconds=TIGHT["validity_seconds"] / 15, keep_alive=False
    ) as proxy:
        async with world(
            bootstrap_servers,
            prefix,
            root,
            **TIGHT,
            tables=(f"s3://{bucket}/warehouse/*",),
            lock_places=(f"s3://{bucket}/warehouse/hudi=>hudi",),
            s3_endpoint=proxy.endpoint,
        ) as scene:
            made = Chaos(scene, proxy, bucket, seed)
            try:
                yield made
            finally:
                for witness in made.writers.values():
                    witness.kill()
                for agent in made.agents.values():
                    agent.kill()
