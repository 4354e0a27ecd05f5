"""Agents, writers, foreign holders and a faulty store as processes on one machine, and what each of them is seen to do.

`tests/real/locks/test_lock_chaos.py` says what must hold; `evidence.py` checks it.
"""

from __future__ import annotations

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

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.events import CommitGranted, LockAcquired, LockEvent, LockRenewed
from lakewarden.handlers.lease.placement import HUDI_LOCK
from tests.real.writers import AgentProcess, World, world
from tests.servers.fault_proxy import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 90.0
"""For what must come; never measured."""
TIGHT: dict[str, Any] = {
    "partitions": 4,
    "lock_root": None,
    "session_timeout_seconds": 6.0,
    "validity_seconds": 10.0,
    "renew_seconds": 1.0,
    "drift_seconds": 0.5,
    "margin_seconds": 3.0,
    "request_timeout_seconds": 0.9,
    "hudi_validity_seconds": 10.0,
    "hudi_renew_seconds": 1.0,
    "hudi_drift_seconds": 1.0,
    "grant_seconds": 6.0,
    "check_seconds": 0.5,
    "log_level": "info",
}
LEASE_SECONDS = 11.0
"""Validity, drift and a little: longer than anybody holds on to a lease that is not renewed."""
LOSS_TRIES = 4
WRITERS = 3
"""Of each table."""


class EvidenceProcess:
    """A process that writes down what it does, a JSON object a line; it dies with us."""

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
        """All that it has written."""
        if self._evidence.exists():
            with self._evidence.open("rb") as file:
                file.seek(self._read)
                complete, _, _ = file.read().rpartition(b"\n")
            self._read += len(complete) + bool(complete)
            self._lines.extend(json.loads(line) for line in complete.splitlines())
        return self._lines

    def send(self, command: str) -> None:
        """Give it a command."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{command}\n".encode())
        self.popen.stdin.flush()

    async def wait_for_line(
        self, matches: Callable[[dict[str, Any]], bool], what: str, *, after: int = 0
    ) -> dict[str, Any]:
        """Wait for a line, behind the first `after`."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while self.popen.poll() is None:
                if found := next(filter(matches, self.lines[after:]), None):
                    return found
                await anyio.sleep(0.02)
        told = "\n".join(map(str, self.lines[-20:]))
        raise AssertionError(f"not seen: {what}; status={self.popen.poll()}\n{told}\n{self._log.read_text()}")

    async def ended(self, *, patience: float = PATIENCE_SECONDS) -> None:
        """Wait for its orderly end."""
        with anyio.fail_after(patience):
            while self.popen.poll() is None:
                await anyio.sleep(0.02)
        assert self.popen.returncode == 0, self._log.read_text()

    def kill(self) -> None:
        """As a crash would; it may be stopped."""
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdin is not None
        self.popen.stdin.close()


@dataclass(slots=True)
class Chaos:
    """Everybody, and what was done to them."""

    scene: World
    proxy: FaultProxy
    bucket: str
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    killed: dict[str, int] = field(default_factory=dict)
    """Agents killed, and when, in epoch milliseconds."""
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    writers: dict[str, EvidenceProcess] = field(default_factory=dict)
    holders: list[EvidenceProcess] = field(default_factory=list)
    holders_killed: dict[int, float] = field(default_factory=dict)
    """Holders' places in `holders`, and when each was killed, on CLOCK_MONOTONIC."""

    def table(self, name: str) -> str:
        """A table of this world."""
        return f"s3://{self.bucket}/warehouse/{name}"

    @asynccontextmanager
    async def consuming(self) -> AsyncGenerator[None]:
        """Hear what the agents say, for as long as the block runs."""

        async def listen() -> None:
            while True:
                await self.scene.poll()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            yield
            tasks.cancel_scope.cancel()

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start_agent(self, **more: Any) -> None:
        """Another member of the group."""
        name = f"agent-{len(self.agents) + 1}"
        agent = AgentProcess(self.scene.values(agent_id=name, **more), self.scene.root / f"{name}.log")
        self.agents[name] = agent
        await agent.ready()

    def start_writers(self, name: str, *, shared: bool) -> None:
        """The writers of a table."""
        table = self.table(name)
        arguments = [
            *("--bootstrap", self.scene.bootstrap_servers, "--prefix", self.scene.prefix),
            *("--table", table, "--writers", str(WRITERS), "--seed", str(self.seed)),
            *(("--lock", table + HUDI_LOCK) if shared else ()),
        ]
        evidence = self.scene.root / f"writers-{name}.jsonl"
        self.writers[name] = EvidenceProcess("tests.real.committing_writers", evidence, arguments)

    def start_holder(self, name: str) -> None:
        """A foreign holder of a table's lock."""
        number = len(self.holders)
        arguments = ["--endpoint", self.proxy.endpoint, "--uri", self.table(name) + HUDI_LOCK]
        evidence = self.scene.root / f"holder-{number}.jsonl"
        self.holders.append(
            EvidenceProcess(
                "tests.real.hudi_holder", evidence, [*arguments, "--seed", str(self.seed + number)]
            )
        )

    # -- faults -------------------------------------------------------------------------------------------------------

    async def owner(self, name: str) -> str:
        """The agent that was last heard to hold a table's lock, and still runs."""
        table = self.table(name)
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                held = self.scene.events(LockEvent, lambda each: each.table == table)
                last = next((e for e in reversed(held) if isinstance(e, LockAcquired | LockRenewed)), None)
                if last is not None and last.agent not in self.killed:
                    return last.agent
                await anyio.sleep(0.1)

    async def pause_owner(self, name: str) -> None:
        """Stop the owner's process for longer than its lease, and let it wake up."""
        agent = await self.owner(name)
        process = self.agents[agent].popen
        process.send_signal(signal.SIGSTOP)
        await anyio.sleep(LEASE_SECONDS)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.send_signal(signal.SIGCONT)
        self.faults["agent paused"] += 1

    async def kill_owner(self, name: str) -> None:
        """Kill the owner's process as soon as a grant is given, and start another."""
        granted = len(self._grants(name))
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(self._grants(name)) == granted:
                await anyio.sleep(0.01)
        agent = self._grants(name)[-1].agent
        self.killed[agent] = time.time_ns() // 1_000_000
        self.agents[agent].kill()
        assert self.agents[agent].popen.returncode == -signal.SIGKILL
        self.faults["agent killed"] += 1
        await self.start_agent()
        self.faults["agent restarted"] += 1

    def _grants(self, name: str) -> list[CommitGranted]:
        return self.scene.events(CommitGranted, lambda each: each.table == self.table(name))

    async def kill_holder(self, name: str) -> None:
        """Kill a foreign holder when it has just got the lock, and start another."""
        number = len(self.holders) - 1
        holder = self.holders[number]
        await holder.wait_for_line(
            lambda line: "to" not in line, "a lock in its hands", after=len(holder.lines)
        )
        self.holders_killed[number] = time.monotonic()
        holder.kill()
        self.faults["holder killed"] += 1
        self.start_holder(name)

    async def lose_a_running_lease(self, name: str) -> None:
        """Let the whole store hang for longer than a lease while a grant is running.

        Tried again where the agents were just sharing out the tables anew, or were so slow that the writer stopped by itself.
        """
        for _ in range(LOSS_TRIES):
            told = await self._outlast_a_publish(name)
            if "lease-lost" in told:
                self.faults["lease lost"] += 1
                return
        raise AssertionError(f"no lease was lost under a running grant in {LOSS_TRIES} tries")

    async def _outlast_a_publish(self, name: str) -> list[str]:
        """Begin a publish that goes on, then stop the store until it has ended; with which aborts its writer heard of it."""
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
        """Wait until each writer of each table has published once more from now on."""
        for name, witness in self.writers.items():
            past = len(witness.lines)
            for writer in (f"{name}-{number}" for number in range(WRITERS)):
                await witness.wait_for_line(
                    lambda line, writer=writer: line["what"] == "published" and line["writer"] == writer,  # type: ignore[misc]
                    f"a commit of {writer}",
                    after=past,
                )

    async def finish(self) -> None:
        """Let everybody end in order: the writers first, who need the agents."""
        for witness in self.writers.values():
            witness.send("finish")
        for witness in self.writers.values():
            await witness.ended()
        for agent in self.agents.values():
            agent.popen.send_signal(signal.SIGTERM)
        for name, agent in self.agents.items():
            status = await agent.ended()
            assert status == (-signal.SIGKILL if name in self.killed else 0), agent.log.read_text()[-3000:]

    async def stop_holders(self) -> None:
        """Let the foreign holders end after the lock in hand."""
        living = [each for number, each in enumerate(self.holders) if number not in self.holders_killed]
        for holder in living:
            holder.popen.terminate()
        for holder in living:
            await holder.ended()


@asynccontextmanager
async def chaos(
    bootstrap_servers: str, prefix: str, root: Path, s3: S3Server, seed: int
) -> AsyncGenerator[Chaos]:
    """A world of tables in one bucket behind the proxy; nothing runs yet. All processes are killed at the end."""
    bucket = s3.bucket()
    async with (
        fault_proxy(
            s3.endpoint, seed=seed, request_timeout_seconds=TIGHT["request_timeout_seconds"]
        ) as proxy,
        world(
            bootstrap_servers,
            prefix,
            root,
            **TIGHT,
            allow=(f"s3://{bucket}/warehouse/*",),
            s3_endpoint=proxy.endpoint,
        ) as scene,
    ):
        made = Chaos(scene, proxy, bucket, seed)
        try:
            yield made
        finally:
            for witness in (*made.writers.values(), *made.holders):
                witness.kill()
            for agent in made.agents.values():
                agent.kill()
