"""The page over a real log: it says what the commands say, and needs no agent."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from lakewarden.agent.operators.as_json import as_json
from lakewarden.agent.operators.explain import explain
from lakewarden.agent.operators.past import losses, refused
from lakewarden.agent.operators.status import status
from lakewarden.agent.web.follower import HOURS
from lakewarden.agent.web.server import running_page
from lakewarden.events import Abort
from tests.kafka_fixture import KafkaServer
from tests.real.writers import World, world
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real]

PAGE_ONLY = ("conflicts", "seconds", "pulse")
HOSTILE = "<script>alert('w')</script>"


class Browser:
    """Requests views until they show what a test waits for."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.session = session
        self.address = address.rstrip("/")

    async def get(self, path: str) -> str:
        async with self.session.get(self.address + path) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text

    async def json_until(self, path: str, matches: Any) -> Any:
        """A view's JSON, as soon as it matches."""
        found: Any = None
        with anyio.move_on_after(PATIENCE_SECONDS):
            while not matches(found := json.loads(await self.get(path))):
                await anyio.sleep(0.1)
            return found
        raise AssertionError(f"{path} never matched: {found}")


async def test_the_page_shows_what_the_commands_print_live_and_after_the_agent_was_killed(
    scene: World,
) -> None:
    """One writer is granted, one waits behind it, one has lost a conflict; then the agent dies, and the page stays."""
    page_settings = scene.settings(web_listen="127.0.0.1:0")
    # The requests may take longer than a short grant lease on a busy machine.
    with scene.process(validity_seconds=300.0) as agent:
        await agent.ready()
        async with running_page(page_settings) as address, aiohttp.ClientSession() as session:
            browser = Browser(session, address)
            winner, victim, waiting = (scene.writer(name) for name in ("winner", HOSTILE, "waiting"))
            await winner.begin()
            await victim.begin()
            await winner.touch("f")
            await victim.touch("f")
            await scene.wait_for(Abort, victim.mine)
            await winner.obtain_grant()
            await waiting.begin()
            await waiting.request_commit()
            # The page reads the grant in another topic than the request, perhaps later.
            shown = await browser.json_until(
                "/waits.json", lambda found: [bool(each["head"]) for each in found["waits"]] == [True]
            )
            [held_up] = shown["waits"]
            [wait] = held_up["waiting"]
            assert held_up["head"]["transaction"] == winner.transaction
            assert (wait["writer"], wait["waiting_on"]) == ("waiting", "the grant of winner")
            assert wait["blockers"][0]["transaction"] == winner.transaction

            [printed] = await status(page_settings)
            locked = await browser.json_until(
                "/tables.json", lambda found: any(map(_is_held, found["tables"]))
            )
            [seen] = locked["tables"]
            assert _without_lease(seen) == _without_lease(json.loads(json.dumps(asdict(printed))))

            story = json.loads(await browser.get(f"/transaction.json?id={victim.transaction[:30]}"))
            expected = json.loads(as_json(await explain(page_settings, victim.transaction)))
            assert {name: story[name] for name in expected} == expected
            html = await browser.get(f"/transaction?id={victim.transaction}")
            assert HOSTILE not in html
            assert "&lt;script&gt;" in html
            assert f"id={winner.transaction}" in html, "the story links to the winner"

            await scene.send_raw(HOSTILE.encode(), b"key")
            found = await browser.json_until("/refused.json", lambda found: found["count"] == 1)
            assert found["refused"] == [asdict(each) for each in await refused(page_settings)]
            assert HOSTILE not in await browser.get("/refused")
            found = await browser.json_until("/losses.json", lambda found: found["conflicts"] == 1)
            expected = json.loads(as_json(await losses(page_settings, HOURS, None)))
            assert {name: found[name] for name in expected} == expected
            [loss] = found["pairs"]
            assert (loss["winner"], loss["loser"]) == ("winner", HOSTILE)
            await browser.json_until(
                f"/table.json?uri={scene.table}",
                lambda found: (
                    {
                        row["writer"]: [each["outcome"] for each in row["attempts"]]
                        for row in found["timeline"]["writers"]
                    }
                    == {"winner": ["running"], HOSTILE: ["aborted by conflict"], "waiting": ["running"]}
                ),
            )
            found = json.loads(await browser.get("/agents.json"))
            assert [each["running"] for each in found["partitions"]] == [True, True]
            assert len(found["members"]) == 1

            agent.kill()
            await waiting.abandon()
            await browser.json_until("/waits.json", lambda found: found["count"] == 0)
            assert winner.transaction in await browser.get("/locks")


async def test_without_topics_the_page_says_what_to_do_and_shows_the_tables_once_they_exist(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    """The page may be started before the first agent."""
    nowhere = World(kafka.bootstrap_servers, topic_prefix, tmp_path, None, None)
    settings = nowhere.settings(web_listen="127.0.0.1:0")
    async with running_page(settings) as address, aiohttp.ClientSession() as session:
        browser = Browser(session, address)
        found = await browser.json_until("/tables.json", lambda found: "topic" in found["problem"])
        assert "start an agent there first" in found["problem"]

        async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as scene, scene.agent():
            await scene.writer("first").begin()
            await browser.json_until(
                "/tables.json", lambda found: any(each["transactions"] for each in found["tables"])
            )


def _is_held(view: dict[str, Any]) -> bool:
    return view["lock"] is not None and bool(view["lock"]["held"])


def _without_lease(view: dict[str, Any]) -> dict[str, Any]:
    """A table's view without the ends of leases, which are renewed while it is compared, and without what the page adds."""
    lock = {name: value for name, value in view["lock"].items() if name not in ("valid_until", "last_step")}
    return {**{name: value for name, value in view.items() if name not in PAGE_ONLY}, "lock": lock}
