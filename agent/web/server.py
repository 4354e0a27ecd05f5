"""The HTTP server. It answers GET and HEAD only: nothing can be changed through it (docs/decisions/0039-the-page.md)."""

import hashlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.resources import files

import anyio
from aiohttp import web
from aiokafka.errors import KafkaError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.operators.as_json import as_json, json_without
from lakewarden.agent.operators.explain import NotInLogError
from lakewarden.agent.operators.questions import QUESTIONS
from lakewarden.agent.settings import Settings
from lakewarden.agent.web import views
from lakewarden.agent.web.follower import Follower, explained
from lakewarden.agent.web.pages import Pages
from lakewarden.agent.web.views import BadRequestError, Page, Query, View

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_STREAMS = 100
"""Open streams of events. Each costs one computation of its view per second with changes. Beyond it, the address with the most
streams loses its oldest one, so no visitor takes the live updates from the others. Its browser connects again."""
MAX_READING = 8
"""Requests that read the log, for a transaction or the agents. One at a time does, because each reads much of it."""
READ_SECONDS = 120.0
STREAM_SECONDS = 1.0
"""The shortest time between two messages of one stream."""
KEEP_ALIVE_SECONDS = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOT_LIVE = ("/transaction", "/agents")
"""Each time, they are read from Kafka."""

_ageless = json_without("seconds", "cause", "begin", "end")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Build = Callable[[web.Request], Awaitable[View]]


_ANSWERS: dict[type[Exception], tuple[int, dict[str, str]]] = {
    BadRequestError: (400, {}),
    NotInLogError: (404, {}),
}
"""Status and headers of the answers to errors. After others, the same request may be answered later."""


class BusyError(AgentError):
    """Too many requests at once. Try again later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A view as JSON."""

    as_of: datetime | None
    problem: str | None
    command: str
    data: object = field(metadata={"flat": True})
    page: Page | None = field(metadata={"flat": True})


class Server:
    """The views of one installation."""

    def __init__(self, follower: Follower) -> None:
        self._settings = settings = follower.settings
        self._follower = follower
        self._pages = Pages(settings)
        self._streams: dict[str, list[anyio.CancelScope]] = {}
        """By the visitor's address, the oldest first."""
        self._reading = 0
        self._one_reader = anyio.Lock()
        self._views: dict[str, Build] = {
            "/": self._folded(views.tables),
            "/waits": self._folded(views.waits),
            "/locks": self._folded(views.locks),
            "/losses": self._folded(views.losses),
            "/table": self._folded(views.table),
            "/refused": self._folded(views.refused),
            "/writer": self._folded(views.writer),
            "/transaction": self._read(views.transaction),
            "/agents": self._read(views.agents),
            **{f"/{each.name}": self._folded(partial(views.question, each)) for each in QUESTIONS},
        }

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=0)
        base = self._settings.web_base_path
        for path in self._views:
            app.router.add_get(base + path, self._page)
            app.router.add_get(base + ("/tables" if path == "/" else path) + ".json", self._json)
        app.router.add_get(f"{base}/events", self._events)
        app.router.add_static(f"{base}/static", str(files("lakewarden.agent.web") / "static"))
        return app

    # -- requests ----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other methods, other hosts and the requests of other sites' pages, and answer errors with a page or as JSON."""
        if request.method not in ("GET", "HEAD"):
            return self._refusal(
                request, 405, "this page is read-only: it answers GET and HEAD", Allow="GET, HEAD"
            )
        if not self._is_allowed(request.host):
            return self._refusal(
                request,
                421,
                "the Host header names no host of this page; set web_allowed_hosts (LAKEWARDEN_WEB_ALLOWED_HOSTS) to the name "
                "under which browsers reach it",
            )
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and (
            request.headers.get("Sec-Fetch-Mode") != "navigate"
        ):
            return self._refusal(
                request, 403, "a page of another site has sent this request; open the address itself"
            )
        try:
            response = await handler(request)
        except web.HTTPNotFound:
            return self._refusal(request, 404, "there is no such view")
        except web.HTTPException as error:
            return self._refusal(request, error.status, error.reason)
        except (AgentError, KafkaError, OSError) as error:
            status, headers = _ANSWERS.get(type(error), (503, {"Retry-After": "10"}))
            return self._refusal(request, status, explained(error, self._settings), **headers)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: web.Request, status: int, message: str, **headers: str) -> web.Response:
        if request.path.endswith(".json"):
            response = web.json_response({"error": message}, status=status)
        else:
            response = web.Response(
                text=self._pages.error(status, message), status=status, content_type="text/html"
            )
        response.headers.update({**_HEADERS, **headers})
        return response

    def _is_allowed(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal():
            name = host
        return name.strip("[]").lower() in {
            *LOOPBACK,
            *(each.lower() for each in self._settings.web_allowed_hosts),
        }

    def _path(self, request: web.Request) -> str:
        path = request.path.removeprefix(self._settings.web_base_path).removesuffix(".json")
        return "/" if path == "/tables" else path

    # -- views -------------------------------------------------------------------------------------------------------

    def _folded(self, build: Callable[[Follower, Query], View]) -> Build:
        async def view(request: web.Request) -> View:
            return build(self._follower, request.query)

        return view

    def _read(self, build: Callable[[Follower, Query], Awaitable[View]]) -> Build:
        """A view that is read from Kafka when it is requested."""

        async def view(request: web.Request) -> View:
            if self._reading >= MAX_READING:
                raise BusyError(f"{MAX_READING} other requests read the log; try again in a few seconds")
            self._reading += 1
            try:
                with anyio.move_on_after(READ_SECONDS):
                    async with self._one_reader:
                        return await build(self._follower, request.query)
            finally:
                self._reading -= 1
            raise BusyError(f"the log could not be read within {READ_SECONDS:g} s; use the command")

        return view

    async def _page(self, request: web.Request) -> web.Response:
        path = self._path(request)
        view = await self._views[path](request)
        problem, at = self._follower.problem, self._follower.current_at
        query = f"?{request.query_string}" if request.query_string else ""
        text = self._pages.render(
            view,
            known=views.known(self._follower),
            members=self._follower.members,
            path=path,
            json_path=f"{self._settings.web_base_path}{'/tables' if path == '/' else path}.json{query}",
            problem=problem,
            as_of=None if at is None else at.isoformat(timespec="seconds"),
            version=_version(view, problem),
        )
        return web.Response(text=text, content_type="text/html")

    async def _json(self, request: web.Request) -> web.Response:
        view = await self._views[self._path(request)](request)
        follower, problem = self._follower, view.problem or self._follower.problem
        answer = Answer(follower.current_at, problem, view.command, view.data, view.page)
        return web.json_response(answer, dumps=as_json)

    # -- events ------------------------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the version of a view (`view`: its path), whenever it has changed."""
        path = request.query.get("view", "/")
        build = self._views.get(path)
        if build is None or path in NOT_LIVE:
            raise BadRequestError("view names no live view")
        await build(request)  # a wrong request is answered before the stream begins
        response = web.StreamResponse(headers={**_HEADERS, "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        # A `ConnectionError`: the browser has closed the page.
        with self._stream_of(request.remote or ""), suppress(ConnectionError):
            await response.prepare(request)
            await self._send_versions(request, response, build)
        return response

    @contextmanager
    def _stream_of(self, visitor: str) -> Iterator[None]:
        """Count a stream while the block runs. The block ends if others need the room."""
        if sum(map(len, self._streams.values())) >= MAX_STREAMS:
            max(self._streams.values(), key=len).pop(0).cancel()
        with anyio.CancelScope() as scope:
            own = self._streams.setdefault(visitor, [])
            own.append(scope)
            try:
                yield
            finally:
                if scope in own:
                    own.remove(scope)
                if not own and self._streams.get(visitor) is own:
                    del self._streams[visitor]

    async def _send_versions(self, request: web.Request, response: web.StreamResponse, build: Build) -> None:
        sent = ""
        while True:
            known, began = self._follower.changes.revision, monotonic()
            version = _version(await build(request), self._follower.problem)
            await response.write(b": \n\n" if version == sent else f"data: {version}\n\n".encode())
            sent = version
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                await self._follower.changes.wait(known)
            await anyio.sleep(max(0.0, began + STREAM_SECONDS - monotonic()))


def _version(view: View, problem: str | None) -> str:
    """Identifies the content of a view, without what changes by the passing of time: the page's script counts ages itself."""
    return hashlib.blake2b(_ageless([view.data, view.page, problem]).encode(), digest_size=8).hexdigest()


@asynccontextmanager
async def running_page(settings: Settings) -> AsyncGenerator[str]:
    """Follow the log and serve the page. Yields its address, as soon as it answers."""
    follower = Follower(settings)
    runner = web.AppRunner(Server(follower).application(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        host, port = settings.web_address
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise AgentError(
                f"the page can't listen on {settings.web_listen}: {error.strerror or error}; choose another address "
                "(--listen, web_listen)"
            ) from error
        bound = runner.addresses[0]
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.run)
            yield f"http://{'127.0.0.1' if host is None else name}:{bound[1]}{settings.web_base_path}/"
            tasks.cancel_scope.cancel()
    finally:
        await runner.cleanup()


async def web_until_signal(settings: Settings, on_ready: Callable[[str], object]) -> None:
    """Serve the page until SIGINT or SIGTERM. Calls `on_ready` with its address, as soon as it answers."""
    async with running_page(settings) as address:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            on_ready(address)
            async for _ in signals:
                return
