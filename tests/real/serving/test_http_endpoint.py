"""The agent's HTTP endpoint, on agents as processes: with Kafka, without it, and where the port is in use."""

import os
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakewarden.agent.embedded.kafka import free_port
from lakewarden.agent.health_check import DEFAULT
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort
from tests.printed import as_shown
from tests.processes import AgentProcess
from tests.real.writers import World
from tests.waiting import PATIENCE_SECONDS

ON_LOOPBACK = {"http_listen": "127.0.0.1:0"}


async def get(address: str, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(ask)


async def wait_for_status(address: str, status: int) -> str:
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            found, text = await get(address, "/readyz")
            if found == status:
                return text
            await anyio.sleep(0.1)


async def wait_for_samples(address: str, wanted: dict[tuple[str | tuple[str, str], ...], float]) -> str:
    """Ask for the metrics until these samples have these values: a gauge follows its state. The whole text."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            status, text = await get(address, "/metrics")
            assert status == 200
            values = samples(text)
            if wanted.items() <= values.items():
                return text
            await anyio.sleep(0.1)


def samples(text: str) -> dict[tuple[str | tuple[str, str], ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def address_of(agent: AgentProcess) -> str:
    addresses = (await agent.logged("http.listening"))["addresses"]
    assert len(addresses) == 1
    return str(addresses[0])


async def checked(listen: str) -> tuple[int, str]:
    """The exit code and the output of the health check of containers."""
    done = await anyio.run_process(
        [sys.executable, "-m", "lakewarden.agent.health_check"],
        env={**os.environ, "LAKEWARDEN_HTTP_LISTEN": listen},
        check=False,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode()


async def test_an_agent_becomes_ready_and_each_condition_is_named(scene: World) -> None:
    with scene.process(**ON_LOOPBACK) as agent:
        address = await address_of(agent)
        text = await wait_for_status(address, 200)
        code, output = await checked(urlsplit(address).netloc)

    lines = text.splitlines()
    assert lines[0] == "ready"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "yes assigned",
        "yes live",
        "yes caught-up",
        "yes acknowledged",
        "yes checked",
    ]
    as_shown("docs/run.md", "curl -s localhost:8437/readyz", text)
    assert "the consumer group has assigned 2 partitions to this agent" in text
    assert (code, output.splitlines()[0]) == (0, "ready")


async def test_the_metrics_of_an_agent_count_what_it_has_decided(scene: World) -> None:
    with scene.process(**ON_LOOPBACK) as agent:
        address = await address_of(agent)
        await wait_for_status(address, 200)
        done, open_one, loser = scene.writer("done"), scene.writer("open"), scene.writer("loser")
        await done.begin()
        await done.obtain_grant()
        await wait_for_samples(address, {("lakewarden_lock_leases",): 1})
        await done.complete()
        await open_one.begin()
        await open_one.touch("f1")
        await loser.begin()
        await loser.touch("f1")
        await loser.wait_for(Abort)
        await scene.send_raw(b"no event", scene.table.encode())
        await scene.settle()
        text = await wait_for_samples(address, {("lakewarden_partition_lag_records", ("partition", "0")): 0})

    values = samples(text)
    table = ("table", scene.table)
    assert values["lakewarden_ready",] == 1
    assert values["lakewarden_partitions", ("phase", "live")] == 2
    assert values["lakewarden_grants_total", table] == 1
    assert values["lakewarden_transactions_total", ("outcome", "committed"), table] == 1
    assert values["lakewarden_conflicts_total", ("kind", "marker"), ("outcome", "stopped"), table] == 1
    assert values["lakewarden_open_transactions", ("phase", "active"), table] == 1
    assert values["lakewarden_lock_steps_total", ("step", "acquired")] >= 1
    assert values["lakewarden_store_request_seconds_count", ("answer", "won"), ("operation", "write")] >= 1
    assert values["lakewarden_published_records_total", ("topic", "dead-letters")] == 1
    assert values["lakewarden_replay_seconds_count",] == 1
    assert values["process_resident_memory_bytes",] > 0
    assert "_created" not in text


async def test_an_agent_that_kafka_does_not_answer_is_live_and_not_ready(tmp_path: Path) -> None:
    values = {
        "bootstrap_servers": f"127.0.0.1:{free_port()}",
        "tables": (f"file://{tmp_path}/tables/*",),
        "lock_root": f"file://{tmp_path}/locks",
        **ON_LOOPBACK,
    }
    agent = AgentProcess(values, tmp_path / "agent.log")
    try:
        address = await address_of(agent)
        await agent.logged("kafka.waiting")
        live = await get(address, "/livez")
        status, text = await get(address, "/readyz")
        code, output = await checked(urlsplit(address).netloc)
    finally:
        agent.kill()

    as_shown("docs/runbooks.md", "curl -s localhost:8437/readyz", text)
    assert live[0] == 200
    assert status == 503
    assert text.startswith("not ready\nNO  assigned: the agent has no session with Kafka: ")
    assert (code, output.splitlines()[0]) == (1, "not ready")


async def test_an_agent_whose_port_is_in_use_serves_its_tables_and_takes_the_port_later(scene: World) -> None:
    """A second agent of the machine, or the former process of a restart that still runs."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with scene.process(http_listen=f"127.0.0.1:{port}") as agent:
            warning = await agent.logged("http.not-listening")
            await agent.ready()
            other.close()
            address = await address_of(agent)
            await wait_for_status(address, 200)
            await agent.stop()

    assert warning["address"] == f"127.0.0.1:{port}"
    assert "another process uses this port" in warning["detail"]
    assert "$LAKEWARDEN_HTTP_LISTEN" in warning["detail"]
    assert sum(line["event"] == "http.not-listening" for line in agent.lines()) == 1


async def test_the_health_check_says_that_no_agent_answers() -> None:
    code, output = await checked(f":{free_port()}")

    assert code == 1
    assert "doesn't answer" in output


async def test_the_health_check_of_an_agent_without_endpoint_is_an_error_of_its_own() -> None:
    assert (await checked("off"))[0] == 2


def test_the_health_check_asks_where_agents_listen_by_default() -> None:
    assert Settings.model_fields["http_listen"].default == DEFAULT


@pytest.mark.parametrize("listen", ["8437", "host", "localhost:99999", "::1:8437", ""])
def test_an_address_without_host_or_port_is_refused(listen: str) -> None:
    for setting in ("http_listen", "web_listen"):
        with pytest.raises(ValueError, match="is not an address"):
            Settings.model_validate({setting: listen})


@pytest.mark.parametrize(
    ("setting", "listen"),
    [("http_listen", ":1/lake"), ("web_listen", ":1/"), ("web_listen", ":1/a?b"), ("web_listen", "off")],
)
def test_only_the_page_has_a_path(setting: str, listen: str) -> None:
    assert Settings(web_listen="[::1]:1/lake/house").web_base_path == "/lake/house"
    with pytest.raises(ValueError, match="is not an address"):
        Settings.model_validate({setting: listen})
