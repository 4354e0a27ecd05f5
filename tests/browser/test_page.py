"""Each view in Chromium, over a real broker and an agent: live, hostile names, a phone's width, an agent that was killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from lakewarden.agent.operators.shell_command import short_id
from lakewarden.agent.web.server import running_page
from lakewarden.events import Abort
from tests.browser.browsing import fits_a_phone, opened
from tests.kafka_fixture import KafkaServer
from tests.real.writers import World, world
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.real]

TABLE = "s3://lake/air.db/flights"
HOSTILE = """"><img src=x onerror="window.hostile=1"><script>window.hostile=2</script>\u202e"""


@pytest_asyncio.fixture
async def scene(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(kafka.bootstrap_servers, topic_prefix, tmp_path) as made:
        yield made


async def test_every_view_is_live_escaped_and_fits_a_phone_and_stays_when_the_agent_is_killed(
    scene: World,
) -> None:
    """One browser for all of it, because its start is what takes longest."""
    # The views may take longer than a short grant lease on a busy machine.
    leases = {"validity_seconds": 300.0}
    places = {"tables": ("s3://lake/*",), "lock_places": ("s3://lake/*=>default",)}
    with scene.process(agent_id="agent-1", **places, **leases) as agent:
        await agent.ready()
        async with (
            running_page(scene.settings(web_listen="127.0.0.1:0")) as address,
            opened(address) as (page, complaints),
        ):
            await page.goto("/")
            await expect(page.get_by_text("No table has an open transaction or a lock")).to_be_visible()
            await expect(page.get_by_role("status").first).to_have_text("Live")
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()

            await commit_some(scene)
            await page.goto("/waits")
            winner, victim, waiting = (
                scene.writer(name, TABLE) for name in ("arrivals", HOSTILE, "departures")
            )
            await winner.begin(batch_id=3)
            await victim.begin()
            await winner.touch("f", partition="month=1/day=9")
            await victim.touch("f", partition="month=1/day=9")
            await scene.wait_for(Abort, victim.mine)
            await winner.obtain_grant()
            await waiting.begin(batch_id=3)
            await waiting.request_commit()
            await expect(page.get_by_text("the grant of arrivals")).to_be_visible()
            assert await page.evaluate("performance.getEntriesByType('navigation').length") == 1

            await scene.send_raw(HOSTILE.encode(), b"key")
            views = {
                "/": "1 waiting",
                "/writer?name=arrivals&batch=3": "running",
                "/waits": "granted",
                "/locks": "held by agent",
                "/losses": "month=1/day=9",
                f"/table?uri={TABLE}&minutes=1": "committing under the grant",
                "/refused": "value: Invalid JSON",
                "/agents": "Kafka partitions",
            }
            for path, text in views.items():
                await look_at(page, path, text)

            await page.goto("/losses")
            await expect(page.get_by_text(HOSTILE.replace("\u202e", r"\u202e"))).to_be_visible()

            await page.emulate_media(color_scheme="dark")
            await page.goto("/transaction")
            await page.get_by_label("Transaction id").fill(victim.transaction)
            await page.keyboard.press("Enter")
            await expect(page.locator(".story")).to_contain_text("ABORTED (conflict)")
            await page.get_by_role("link", name=short_id(winner.transaction)).first.click()
            await expect(page.locator(".story")).to_contain_text("commit granted by agent")

            await page.goto("/waits")
            await expect(page.get_by_role("row", name="departures").first).to_be_visible()
            await page.get_by_role("button", name="Copy").first.focus()
            agent.kill()
            await waiting.abandon()
            await expect(page.get_by_text("No transaction waits")).to_be_visible()
            with anyio.fail_after(PATIENCE_SECONDS):
                while "nothing is granted" not in await page.locator("main").inner_text():
                    await page.goto("/agents")
            assert complaints == []


async def commit_some(scene: World) -> None:
    """Two writers take turns, for the time line."""
    for batch in range(3):
        for name in ("arrivals", "departures"):
            done = scene.writer(name, TABLE)
            await done.begin(batch_id=batch)
            await done.obtain_grant()
            await done.complete()


async def look_at(page: Page, path: str, text: str) -> None:
    """A view shows this text, fits a phone, and has run no script of an event."""
    await page.goto(path)
    await expect(page.locator("main")).to_contain_text(text)
    await fits_a_phone(page, path)
    assert await page.evaluate("window.hostile") is None, path
