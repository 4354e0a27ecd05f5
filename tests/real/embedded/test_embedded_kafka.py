from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic

from lakewarden.agent.embedded import kafka as kafka_module
from lakewarden.agent.embedded.kafka import KAFKA_VERSION, EmbeddedKafka, JarsUnavailable, KafkaStartError
from tests.kafka_fixture import administering

# Each start may take 90 s on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(600)]

HANG_SECONDS = 120
"""Only ends a hang."""

OWNER = """
import sys
from pathlib import Path
from lakewarden.agent.embedded.kafka import EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1])) as kafka:
    print(kafka.pid, flush=True)
    sys.stdin.read()
"""

DOWNLOADER = """
import sys
from pathlib import Path
from lakewarden.agent.embedded.kafka import EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1]), on_progress=lambda text: print(text, flush=True)):
    pass
"""


async def test_a_second_start_on_another_port_keeps_topics_records_and_cluster_id(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path) as first:
        first_servers = first.bootstrap_servers
        async with administering(first_servers) as admin:
            await admin.create_topics([NewTopic("facts", num_partitions=1, replication_factor=1)])
        async with AIOKafkaProducer(bootstrap_servers=first_servers) as producer:
            await producer.send_and_wait("facts", b"written before the restart")
        identity = _identity(tmp_path)

    host, port = first_servers.split(":")
    # The first port is taken meanwhile, so it isn't chosen again.
    with socket.create_server((host, int(port))), EmbeddedKafka(tmp_path) as second:
        assert second.bootstrap_servers != first_servers
        assert _identity(tmp_path) == identity
        async with AIOKafkaConsumer(
            "facts", bootstrap_servers=second.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            record = await consumer.getone()

    assert record.value == b"written before the restart"


def test_stop_kill_and_restart_leave_one_process_or_none(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path, port=kafka_module.free_port())
    kafka.start()
    first, servers = kafka.pid, kafka.bootstrap_servers
    assert first is not None

    kafka.stop()
    kafka.start()
    second = kafka.pid
    assert second is not None
    assert kafka.bootstrap_servers == servers
    assert not psutil.pid_exists(first)

    kafka.kill()
    assert not psutil.pid_exists(second)

    kafka.start()
    third = kafka.pid
    assert third is not None
    kafka.stop()
    kafka.stop()
    assert not psutil.pid_exists(third)


def test_an_interrupt_ends_the_first_download(tmp_path: Path) -> None:
    """Ctrl-C must not wait until 46 files are downloaded."""
    environment = {**os.environ, "LAKEWARDEN_CACHE_DIR": str(tmp_path), "M2_REPO": str(tmp_path / "none")}
    with subprocess.Popen(
        [sys.executable, "-c", DOWNLOADER, str(tmp_path / "data")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as downloader:
        assert downloader.stdout is not None
        assert downloader.stdout.readline().startswith(b"resolving Kafka")

        downloader.send_signal(signal.SIGINT)
        downloader.wait(HANG_SECONDS)

    assert not (tmp_path / f"kafka-{KAFKA_VERSION}").exists()


def test_the_error_of_a_failed_download_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEWARDEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("M2_REPO", str(tmp_path / "none"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no server listens there

    with pytest.raises(
        JarsUnavailable, match=r"could not be downloaded from Maven Central .*check the network"
    ) as caught:
        EmbeddedKafka(tmp_path / "data").start()

    assert "\n" not in str(caught.value)


def test_the_broker_listens_on_this_machine_only_and_has_a_posix_session_and_its_folder_to_itself(
    tmp_path: Path,
) -> None:
    """Ctrl-C reaches the terminal's foreground group, but the broker must run until the agent has stopped."""
    with EmbeddedKafka(tmp_path) as kafka:
        assert kafka.pid is not None
        listening = {
            each.laddr.ip for each in psutil.Process(kafka.pid).net_connections() if each.status == "LISTEN"
        }

        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
        assert os.getsid(kafka.pid) == kafka.pid
        in_use = f"in use by the embedded Kafka of process {os.getpid()}: stop that"
        with pytest.raises(KafkaStartError, match=in_use):
            EmbeddedKafka(tmp_path).start()
    assert kafka.pid is None


def test_the_broker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with _owner(tmp_path) as (owner, broker):
        owner.send_signal(signal.SIGKILL)
        owner.wait()

        psutil.wait_procs([broker], timeout=HANG_SECONDS)
        assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE


def test_the_broker_stops_in_an_orderly_way_when_its_parent_is_interrupted(tmp_path: Path) -> None:
    with _owner(tmp_path) as (owner, broker):
        owner.send_signal(signal.SIGINT)
        owner.wait(HANG_SECONDS)

        assert not broker.is_running()
        assert "shut down completed" in (tmp_path / "broker.log").read_text()


def test_the_error_for_a_port_in_use_names_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(KafkaStartError, match=f"port {port} on 127.0.0.1 can't be used"):
            EmbeddedKafka(tmp_path, port=port).start()


def test_the_free_port_is_the_one_that_was_chosen_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [kafka_module.free_port() for _ in range(20)]
    monkeypatch.setattr(kafka_module, "PORTS", ports)
    monkeypatch.setattr(kafka_module, "_used_ports", {})

    chosen = [kafka_module.free_port() for _ in ports]

    assert sorted(chosen) == sorted(ports)
    assert [kafka_module.free_port() for _ in ports] == chosen


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("broker", marks=pytest.mark.matrix),
        pytest.param("controller", marks=pytest.mark.matrix),
        "controller beside a requested port",
    ],
)
def test_a_port_that_another_process_takes_before_the_broker_binds_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    free = kafka_module.free_port
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        ports = iter([free(), taken] if which == "controller" else [taken])
        monkeypatch.setattr(kafka_module, "free_port", lambda: next(ports, None) or free())
        monkeypatch.setattr(kafka_module, "_require_free", lambda _: None)  # it was free at that time

        requested = free() if "requested" in which else 0
        with EmbeddedKafka(tmp_path, port=requested) as kafka:
            assert kafka.bootstrap_servers != f"127.0.0.1:{taken}"
            assert not requested or kafka.bootstrap_servers == f"127.0.0.1:{requested}"

    assert next(ports, None) is None


def test_the_error_of_a_failed_start_contains_the_end_of_the_log(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path):
        pass
    (tmp_path / "logs" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")

    with pytest.raises(
        KafkaStartError,
        match=r"Kafka ended during its start \(status 1\): Stored node id 7 doesn't match.*; see .*broker\.log",
    ) as caught:
        EmbeddedKafka(tmp_path).start()

    assert "ERROR Exiting Kafka" in "\n".join(caught.value.__notes__)
    assert "\n" not in str(caught.value)


def test_a_data_folder_that_is_not_formatted_in_time_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_module, "START_SECONDS", 0.01)

    with pytest.raises(KafkaStartError, match=r"could not format the data folder .* in 0\.01 s; see "):
        EmbeddedKafka(tmp_path).start()


def _identity(data_dir: Path) -> set[str]:
    lines = (data_dir / "logs" / "meta.properties").read_text().splitlines()
    return {line for line in lines if line.startswith(("cluster.id", "directory.id"))}


@contextlib.contextmanager
def _owner(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Another Python process with a broker. Both have ended after the block."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        broker = psutil.Process(int(owner.stdout.readline()))
        try:
            yield owner, broker
        finally:
            owner.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                broker.kill()
