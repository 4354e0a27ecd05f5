"""The agent's HTTP endpoint, for probes and monitoring. It only reads.

| path | answer |
| --- | --- |
| `/livez` | 200 while the event loop runs: a process that doesn't answer within seconds can be restarted |
| `/readyz` | 200 if the agent is ready, else 503; one line per condition (`handlers/group/readiness.py`) |
| `/metrics` | the metrics (`agent/metrics/`), in the text format of Prometheus or in OpenMetrics, as the request accepts |

It runs in the event loop of the agent, so that it reads the agent's state without a lock, and doesn't answer when the loop hangs.

The endpoint never stops the agent. If its port is in use, the agent serves its tables, logs a warning that says what to do, and
tries again: the former agent of a restart may still have the port.
"""

import errno
import os

import anyio
import structlog
from aiohttp import web
from prometheus_client import disable_created_metrics
from prometheus_client.exposition import choose_encoder

from lakewarden.agent.clock import monotonic
from lakewarden.agent.serving.agent import Agent
from lakewarden.handlers.group.readiness import ReadinessCondition, is_ready

log = structlog.get_logger()

RETRY_SECONDS = 10.0
DELAY_SECONDS = 0.5
"""Between two samples of the event loop's delay."""
MAX_REQUEST_BYTES = 1024
"""Limit of a request's body, which nothing here needs."""


async def serve_http(agent: Agent, address: tuple[str | None, int]) -> None:
    """Answer requests until cancelled. `address`: as `Settings.http_address`."""
    # Else each counter has a second series, with the time of its first value.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    runner = web.AppRunner(_application(agent), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await _bind(runner, *address)
        await _measure_delay(agent)
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


async def _bind(runner: web.AppRunner, host: str | None, port: int) -> None:
    reported = False
    while True:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            if not reported:
                log.warning("http.not-listening", address=f"{host or ''}:{port}", detail=_advice(error))
                reported = True
            await anyio.sleep(RETRY_SECONDS)
        else:
            log.info("http.listening", addresses=[_url(each) for each in runner.addresses])
            return


async def _measure_delay(agent: Agent) -> None:
    while True:
        due = monotonic() + DELAY_SECONDS
        await anyio.sleep(DELAY_SECONDS)
        agent.metrics.loop_delay.observe(max(0.0, monotonic() - due))


def _advice(error: OSError) -> str:
    again = f"the agent serves its tables without the endpoint, and tries again every {RETRY_SECONDS:g} s"
    if error.errno == errno.EADDRINUSE:
        return (
            "another process uses this port, for example another agent: give each agent of a machine its own http_listen "
            f"($LAKEWARDEN_HTTP_LISTEN), or set it to off; {again}"
        )
    why = os.strerror(error.errno) if error.errno else str(error)
    return (
        f"this address can't be used: {why}; set http_listen ($LAKEWARDEN_HTTP_LISTEN) to host:port; {again}"
    )


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _application(agent: Agent) -> web.Application:
    async def livez(_: web.Request) -> web.Response:
        return _text("live: the agent's event loop runs\n")

    async def readyz(_: web.Request) -> web.Response:
        found = agent.conditions()
        return _text(readiness_text(found), status=200 if is_ready(found) else 503)

    async def metrics(request: web.Request) -> web.Response:
        await agent.set_gauges()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
        return web.Response(body=encode(agent.metrics.registry), headers=headers)

    application = web.Application(client_max_size=MAX_REQUEST_BYTES)
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    return application


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers={"Cache-Control": "no-store"})


def readiness_text(found: tuple[ReadinessCondition, ...]) -> str:
    """The answer of `/readyz`."""
    lines = [f"{'yes' if each.holds else 'NO ':3} {each.name}: {each.text}" for each in found]
    return "\n".join(["ready" if is_ready(found) else "not ready", *lines, ""])
