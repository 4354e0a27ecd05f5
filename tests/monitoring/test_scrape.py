"""A real Prometheus scrapes a real agent under load, with the rules and the job of `deploy/prometheus/`.

Each query of the dashboard returns series there, with the labels that its legend names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import yaml

from lakewarden.agent.embedded.kafka import free_port
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from tests.kafka_fixture import KafkaServer
from tests.monitoring.dashboard import TARGETS, Variable, resolved, variables
from tests.monitoring.prometheus import server
from tests.monitoring.test_alerts import ALERTS, DEPLOY
from tests.real.writers import World, world
from tests.waiting import PATIENCE_SECONDS


class Prometheus:
    """The API of a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer, or None if there is no answer yet."""
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(address, params=parameters) as answer,
            ):
                return (await answer.json())["data"] if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def values(self, variable: Variable) -> list[str]:
        """The values that Grafana offers for a variable."""
        return list(await self.get(f"label/{variable.label}/values", **{"match[]": variable.selector}))

    async def value(self, query: str) -> float:
        """The sum of what a query returns, 0 if it returns nothing."""
        found = await self.get("query", query=query)
        return sum(float(each["value"][1]) for each in found["result"]) if found else 0.0

    async def until(self, query: str, holds: Callable[[float], bool]) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not holds(await self.value(query)):
                await anyio.sleep(0.2)


def configuration(folder: Path, agent: str) -> Path:
    """The configuration of `deploy/prometheus/`, with this agent and a scrape each half second."""
    configured = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    configured["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    configured["scrape_configs"][0]["static_configs"] = [{"targets": [agent]}]
    (folder / "lakewarden.rules.yml").write_text((DEPLOY / "lakewarden.rules.yml").read_text())
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(configured))
    return path


async def commit_batches(scene: World, number: int, stop: anyio.Event) -> None:
    """Commit one batch after another to a table of its own. Each time another writer loses a conflict."""
    table = f"file://{scene.root}/tables/t{number}"
    for attempt in itertools.count():
        if stop.is_set():
            return
        winner, loser = scene.writer("winner", table), scene.writer(f"loser-{attempt}", table)
        await winner.send_intent()
        await winner.touch("f")
        await loser.send_intent()
        await loser.touch("f")
        await winner.obtain_grant()
        await winner.complete()


async def test_prometheus_scrapes_an_agent_under_load_and_notices_its_end(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    port = free_port()
    prometheus = Prometheus(port)
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as scene:
        with scene.process(http_listen="127.0.0.1:0", log_level="info") as agent:
            address = urlsplit((await agent.logged("http.listening"))["addresses"][0]).netloc
            with server(configuration(tmp_path, address), tmp_path, port):
                stop = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    for number in range(3):
                        tasks.start_soon(commit_batches, scene, number, stop)
                    await prometheus.until("sum(lakewarden_grants_total)", lambda value: value >= 9)
                    values = {each.name: await prometheus.values(each) for each in variables()}
                    await prometheus.until("sum(rate(lakewarden_grants_total[10s]))", lambda value: value > 0)
                    panels = await empty_panels(prometheus, values)
                    with anyio.move_on_after(PATIENCE_SECONDS):  # on a busy machine scrapes are late
                        while panels:
                            panels = await empty_panels(prometheus, values)
                    stop.set()
                names = set(await prometheus.get("label/__name__/values"))
                rules = await prometheus.get("rules", type="alert")
                conflicts = await prometheus.value('lakewarden_conflicts_total{outcome="stopped"}')
                tables = await prometheus.value("count(lakewarden_grants_total)")
                up = await prometheus.value("up")
                agent.kill()
                await prometheus.until('ALERTS{alertname="LakewardenAgentDown"}', lambda value: value == 1)

    assert {each: bool(found) for each, found in values.items()} == {"instance": True, "table": True}
    assert panels == []
    assert up == 1
    assert conflicts > 0
    assert tables == 3
    assert not [each for each in expected_names() if each not in names]
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {each["name"] for each in found} == {each["alert"] for each in ALERTS}
    assert [each for each in found if each["health"] != "ok"] == []


async def empty_panels(prometheus: Prometheus, values: Mapping[str, list[str]]) -> list[str]:
    """The panels of the dashboard with a query that returns no series, or none with the labels of its legend.

    No table here is late, so none has a condition.
    """
    found: list[str] = []
    for title, query, legend in TARGETS:
        if "lakewarden_table_condition_seconds" in query:
            continue
        answer = await prometheus.get("query", query=resolved(query, values, "10s"))
        labels = set(re.findall(r"{{(\w+)}}", legend))
        if not answer["result"] or not all(labels <= each["metric"].keys() for each in answer["result"]):
            found.append(f"{title}: {query}")
    return found


def expected_names() -> list[str]:
    """Samples that every agent has: those of metrics without labels."""
    return [
        f"{each.name}_count" if each.kind == "histogram" else each.name
        for each in AgentMetrics().descriptions
        if not each.labels
    ]
