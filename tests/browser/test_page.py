"""Each view in Chromium, over a real broker and an agent: live, hostile names, a phone's width, an agent that was killed."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from lakewarden.agent.operators.shell_command import short_id
from lakewarden.agent.operators.status import BlockerView, TableView, TransactionView
from lakewarden.agent.web.follower import History
from lakewarden.agent.web.server import running_page
from lakewarden.events import Abort, CommitCompleted, encode
from lakewarden.handlers.setup import Member
from tests.browser.browsing import SCREENSHOTS, fits_a_phone, opened, screenshot
from tests.kafka_fixture import KafkaServer
from tests.real.writers import World, world
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.agent.web.test_server import served
from tests.unit.events.building import made
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

            await by_keyboard(page)
            await stays_open(page, scene)

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


async def by_keyboard(page: Page) -> None:
    """From the list, which says how things are, to the story of a transaction on the time line."""
    await page.goto("/")
    await expect(page.locator(".headline")).to_have_text("1 table, ok")
    await expect(page.get_by_role("img", name="commits since")).to_be_visible()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Table contains")).to_be_focused()
    await page.goto(f"/table?uri={TABLE}")
    await page.get_by_role("link", name=re.compile("aborted by conflict.*lost to arrivals")).first.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".story")).to_contain_text("ABORTED (conflict)")


async def stays_open(page: Page, scene: World) -> None:
    """What a visitor has opened is open after an update of the page, in its row."""
    await page.goto("/refused")
    await page.get_by_text("Its beginning").click()
    await scene.send_raw(b"another", b"key")
    await expect(page.get_by_role("row")).to_have_count(3)
    await expect(page.get_by_role("row").nth(2).locator("details[open]")).to_have_count(1)
    await expect(page.locator("details[open]")).to_have_count(1)


async def look_at(page: Page, path: str, text: str) -> None:
    """A view shows this text, fits a phone, and has run no script of an event."""
    await page.goto(path)
    await expect(page.locator("main")).to_contain_text(text)
    await fits_a_phone(page, path)
    assert await page.evaluate("window.hostile") is None, path


async def test_three_hundred_tables_are_read_at_a_glance() -> None:
    """The worst first, each with its last hour. The picture of docs/web.md is this page."""
    found, past, now, drawn = [], History(), time.time(), random.Random(5)
    for number in range(300):
        uri = f"s3://company-lake/warehouse/{NAMES[number % 6]}" + f"_{number:03}" * (number >= 6)
        found.append(
            TableView(uri, None, tuple(open_since(now - 720, number)) if number in (1, 4, 32) else ())
        )
        pace = (60, 120, 300, 600)[number * 7 % 4]
        at, until = now - 3600 + number % 50, now - 900 if number in (2, 15) else now
        for batch in range(60):
            at += pace * (0.3 + drawn.random() * (1.4 if batch % 9 else 5))
            if at < until:
                name = {
                    "table": uri,
                    "writer": "ingest",
                    "transaction": f"{number}-{batch}",
                    "batch_id": batch,
                }
                done = made(CommitCompleted, **name, grant="g", version="1")
                past.timelines.add_event(consumed(encode(done), at_ms=round(1000 * at)))
    async with (
        served(*found, history=past) as (client, follower, _),
        opened(str(client.make_url(""))) as (page, complaints),
    ):
        follower.members = (Member("agent-1", "0.1.0"), Member("agent-2", "0.1.0"))
        await page.goto("/")
        await expect(page.locator(".headline")).to_have_text(
            "3 of 300 tables with a problem, the worst: crm.db/customers, publish hangs for 12 min"
        )
        await expect(page.locator("tbody tr").first).to_contain_text("crm.db/customers")
        assert await page.locator(".pulse").count() == 200
        heights = await page.locator("tbody tr").evaluate_all(
            "rows => rows.slice(3).map(each => [each.offsetHeight, each.innerText])"
        )
        assert [text for height, text in heights if height > 48] == [], (
            "a table without a problem is one line"
        )
        await fits_a_phone(page, "/")
        if SCREENSHOTS is not None:
            await screenshot(page, "web-tables", whole=False)
        assert complaints == []


NAMES = (
    "shop.db/orders",
    "crm.db/customers",
    "web.db/clicks",
    "air.db/flights",
    "fin.db/ledger",
    "iot.db/readings",
)


def open_since(since: float, number: int) -> Iterator[TransactionView]:
    """A writer that computes, or publishes, and one that waits for it."""
    at = datetime.fromtimestamp(since, UTC).isoformat(timespec="milliseconds")
    phase = "granted" if number == 1 else "active"
    head = TransactionView(
        f"{number}9c0e4f6", "crm", 7, phase, at, None, 3, 40, at if number == 1 else None, None
    )
    behind = BlockerView(head.transaction, "crm", "granted", "day=2026-11-28")
    yield head
    yield TransactionView(
        f"{number}b1d2a55", "shop", 12, "queued", at, "crm", 1, 2, None, None, at, (behind,)
    )
