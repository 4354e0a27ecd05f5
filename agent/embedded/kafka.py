"""A Kafka broker in a child process, for `lakewarden dev` and the tests. It needs a JDK, but no Docker.

- One node is broker and controller (KRaft). It listens on 127.0.0.1 only, so other machines can't reach it.
- The quorum is configured by `controller.quorum.voters` and not stored. So both ports may change between starts, while topics,
  records and the cluster id in the data folder remain.
- The broker is ready when it answers a metadata request; an open port is not enough.
- A file lock on the data folder, which the broker inherits, is held as long as the parent or the broker runs. A second start
  on the folder fails immediately.
- The broker runs in its own POSIX session, so that Ctrl-C does not reach it and it ends after its clients. It is bound to the
  parent (`bound_child.py`), so that it ends even if the parent is killed.
"""

import base64
import contextlib
import fcntl
import math
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lakewarden.agent.bound_child import bound
from lakewarden.agent.embedded.jars import (
    KAFKA_VERSION,
    JarsUnavailable,
    Progress,
    jars_folder,
    kafka_library,
)
from lakewarden.agent.embedded.jdk import JdkMissing, find_java
from lakewarden.agent.errors import AgentError

__all__ = ["KAFKA_VERSION", "EmbeddedKafka", "JarsUnavailable", "JdkMissing", "KafkaStartError"]

HOST = "127.0.0.1"
START_SECONDS = 90
"""Limit from launch to ready, and for formatting the data folder. A launch takes 4 s on an idle machine, and many times that
beside a test suite on two cores."""
STOP_SECONDS = 20
"""Limit for an orderly stop, which takes 1 s. Then SIGKILL; Kafka recovers its log at the next start."""
POLL_SECONDS = 0.05
PORT_ATTEMPTS = 3
"""Another process may bind the free port before the broker does. Three times in a row is no coincidence."""
PORTS = range(20_000, 32_768)
"""Where a free port is searched. Linux and macOS choose the ports of outgoing connections above it, so that none of the
connections that are opened until the broker binds its port, seconds later, can get that port."""
_used_ports: dict[int, float] = {}
"""The monotonic time at which this process last chose each port, which it may not have bound yet."""
LOG_TAIL_LINES = 15
REASON_CHARACTERS = 300
"""Limit for the message of a Java exception; the log contains the whole message."""
MESSAGE_BYTES = 1024 * 1024
"""Kafka's default. A longer event is refused when it is sent, so every reader can read all events."""

_HEAP = ("-Xms128m", "-Xmx512m")
_JVM = (
    *_HEAP,
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)

_SERVER = """\
# Generated at every start; changes are lost.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
# One node, so one replica. Few partitions of Kafka's internal topics, since each costs a folder and start-up time.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# A group of one agent need not wait for more members. A missing topic is an error in a name.
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
message.max.bytes={message_bytes}
# The cleaner's default buffer is a quarter of our heap.
log.cleaner.dedupe.buffer.size=16777216
num.io.threads=4
"""

_LOGGING = """\
# Generated at every start; changes are lost.
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:lakewarden.log}
appender.file.filePattern = ${sys:lakewarden.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
# It logs every setting, hundreds of lines per start.
logger.settings.name = org.apache.kafka.common.config.AbstractConfig
logger.settings.level = warn
# Kafka stops in a shutdown hook. log4j's own hook would end the logging before that.
shutdownHook = disable
"""


class KafkaStartError(AgentError):
    """The broker did not start. The message contains the reason, and a note on the exception the end of the log."""


class EmbeddedKafka:
    """One broker on one data folder. Use it as a context manager, from the main thread.

    The data folder is created if it is missing; it keeps topics and records for later starts. With `port` 0 the broker uses a
    free port. `on_progress` is called with a sentence for each step of the first download of Kafka. `properties` override
    settings of the broker; `{host}`, `{port}` and `{controller_port}` in them are replaced at each start.
    """

    version = KAFKA_VERSION

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        on_progress: Progress = lambda _: None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._settings = self.data_dir / "server.properties"
        self._console, self._log = self.data_dir / "console.log", self.data_dir / "broker.log"
        self._properties = dict(properties or {})
        self._requested_port = port
        self._on_progress = on_progress
        self._port: int | None = None
        self._java: Path | None = None
        self._classpath = ""
        self._fetching: subprocess.Popen[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._logged_before = 0

    @property
    def bootstrap_servers(self) -> str:
        if self._port is None:
            raise RuntimeError(
                "the embedded Kafka is not started: call start(), or use it in a with statement"
            )
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the broker, and return when it answers."""
        self._prepare()
        try:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                self._spawn()
                if self._wait_until_ready(last=attempt == PORT_ATTEMPTS):
                    return
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the broker in an orderly way, with SIGKILL after `STOP_SECONDS`. A second call has no effect."""
        try:
            if self._process:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash. The next start takes 9 s longer, until the broker's old session expires."""
        if self._fetching:
            self._fetching.kill()
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        """The steps before the launch: find Java, get the jars, lock the data folder, format it the first time."""
        if self._process:
            raise RuntimeError(f"the embedded Kafka already runs at {self.bootstrap_servers}: stop it first")
        self._java = find_java()
        self._classpath = f"{self._fetch_jars()}/*"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_folder(self.data_dir)
        try:
            self._format()
        except BaseException:
            self.kill()
            raise

    def _fetch_jars(self) -> Path:
        """The folder of the jars. Another process downloads them, since download threads would survive an interrupt."""
        jars = jars_folder(kafka_library(self.version))
        if jars.is_dir():
            return jars
        with subprocess.Popen(
            [sys.executable, "-m", "lakewarden.agent.embedded.jars", self.version],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as self._fetching:
            assert self._fetching.stdout is not None
            last_line = "the download ended without a message"
            try:
                for line in self._fetching.stdout:
                    last_line = line.strip()
                    self._on_progress(last_line)
            except BaseException:
                self._fetching.kill()
                raise
        if self._fetching.returncode != 0:
            raise JarsUnavailable(last_line)
        return jars

    def _format(self) -> None:
        """Format a new data folder. Kafka writes meta.properties last, so the folder is complete if that file exists."""
        if (self.data_dir / "logs" / "meta.properties").exists():
            return
        self._write_settings(port=1, controller_port=2)  # placeholders: formatting stores no port
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._command("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}")
        with self._console.open("wb") as console:
            try:
                subprocess.run(
                    [*command, f"--config={self._settings}", "--ignore-formatted"],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    timeout=START_SECONDS,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                late = f" in {START_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else ""
                raise self._failure(
                    f"Kafka could not format the data folder {self.data_dir}{late}"
                ) from error

    def _spawn(self) -> None:
        assert self._lock is not None, "call _prepare first"
        self._port = self._requested_port or free_port()
        _require_free(self._port)
        _used_ports[self._port] = time.monotonic()
        self._write_settings(self._port, controller_port=free_port())
        self._logged_before = self._log.stat().st_size if self._log.exists() else 0
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                bound(self._command("kafka.Kafka", str(self._settings))),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[self._lock],
            )

    def _wait_until_ready(self, *, last: bool) -> bool:
        """Wait until the broker answers. Returns False if another process took one of its ports, and another try may succeed.

        Another try with a requested port replaces the controller's port, or fails with an error that names the requested one.
        """
        process = self._process
        assert process is not None, "call _spawn first"
        assert self._port is not None, "call _spawn first"
        deadline = time.monotonic() + START_SECONDS
        while not _answers_metadata(self._port):
            status = process.poll()
            if status is not None:
                if not last and "Address already in use" in self._logged():
                    return False
                ended = signal.Signals(-status).name if status < 0 else f"status {status}"
                raise self._failure(f"Kafka ended during its start ({ended})")
            if time.monotonic() > deadline:
                raise self._failure(f"Kafka did not answer within {START_SECONDS} s")
            time.sleep(POLL_SECONDS)
        return True

    def _write_settings(self, port: int, controller_port: int) -> None:
        (self.data_dir / "log4j2.properties").write_text(_LOGGING)
        more = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        self._settings.write_text(
            (_SERVER + more).format(
                host=HOST,
                port=port,
                controller_port=controller_port,
                logs=_escaped(self.data_dir / "logs"),
                message_bytes=MESSAGE_BYTES,
            )
        )

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        return [
            str(self._java),
            *_JVM,
            f"-Dlog4j2.configurationFile={(self.data_dir / 'log4j2.properties').as_uri()}",
            f"-Dlakewarden.log={self._log}",
            "-cp",
            self._classpath,
            main_class,
            *arguments,
        ]

    def _logged(self) -> str:
        """What Kafka's log and Java's output got since the last launch, without stack frames.

        All of it is searched for the reason of a failed start, since the broker logs hundreds of lines after that while it stops.
        """
        lines: list[str] = []
        for path, start in ((self._log, self._logged_before), (self._console, 0)):
            if path.exists():
                with path.open("rb") as file:
                    # A log that became too long was renamed, and is shorter now.
                    file.seek(start if start <= path.stat().st_size else 0)
                    lines += file.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if line and not line.startswith("\t"))

    def _failure(self, what: str) -> KafkaStartError:
        """The error with its reason in one line: the last exception in the log."""
        logged = self._logged()
        reasons = re.findall(
            r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", logged, flags=re.MULTILINE
        )
        why = f": {reasons[-1][:REASON_CHARACTERS]}" if reasons else ""
        failure = KafkaStartError(f"{what}{why}; see {self._log} and {self._console}")
        failure.add_note("\n".join(logged.splitlines()[-LOG_TAIL_LINES:]))
        return failure


def _escaped(path: Path) -> str:
    """A path as the value in a Java properties file, where a backslash escapes and a comma separates folders."""
    if "," in str(path):
        raise KafkaStartError(
            f"Kafka can't store data in {path}: choose a folder without a comma in its path"
        )
    return str(path).replace("\\", "\\\\")


def _lock_folder(data_dir: Path) -> int:
    """Lock the data folder; returns the descriptor that holds the lock and that the broker inherits."""
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip()
        os.close(descriptor)
        raise KafkaStartError(
            f"the data folder {data_dir} is in use by the embedded Kafka of process {holder or 'unknown'}: "
            "stop that process, or choose another folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def free_port() -> int:
    """The port of `PORTS` that is free now and was chosen longest ago, or never. Another process may bind it first."""
    for port in sorted(random.sample(PORTS, k=len(PORTS)), key=lambda port: _used_ports.get(port, -math.inf)):
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            _used_ports[port] = time.monotonic()
            return port
    raise KafkaStartError(f"no port from {PORTS[0]} to {PORTS[-1]} on {HOST} is free")


def _require_free(port: int) -> None:
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise KafkaStartError(
            f"port {port} on {HOST} can't be used ({error.strerror}): stop the program that uses it, or choose another port"
        ) from error


def _answers_metadata(port: int) -> bool:
    """Whether the broker answers a metadata request and lists itself (Kafka protocol: Metadata, version 1, no topics)."""
    request = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                head = answer.read(12)
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">iii", head)[2] > 0  # length, correlation id, number of brokers
