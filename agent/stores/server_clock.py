"""The clock of a store's server: the `Date` header of its answer to an unsigned request, whatever else the answer says.

The clients of the stores return no headers. A local disk has this machine's clock.
"""

import os
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError

from lakewarden.agent.errors import AgentError
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores.locations import DEFAULT_REGION, aws_region, scheme_of
from lakewarden.handlers.setup import ClockReading

_GOOGLE: Final = "https://storage.googleapis.com"
_HEADER_RESOLUTION_MS: Final = 2000
"""The header has whole seconds, and some servers compute it once a second."""


class ClockUnknownError(AgentError):
    """The server's time could not be read. The message says why."""


async def read_store_clock(root: str, settings: Settings, wall_ms: Callable[[], int]) -> ClockReading | None:
    """The clock of the server that has the objects below `root`. None: this machine has them."""
    if scheme_of(root) == "file":
        return None
    endpoint = await _endpoint(root, settings)
    timeout = aiohttp.ClientTimeout(total=settings.request_timeout_seconds)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            before = wall_ms()
            async with session.head(endpoint, allow_redirects=False) as answer:
                after = wall_ms()
                date = answer.headers.get("Date")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ClockUnknownError(f"{endpoint} doesn't answer: {str(error) or type(error).__name__}") from error
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        raise ClockUnknownError(f"{endpoint} answers without a time") from None
    return ClockReading(before, after, round(server * 1000), _HEADER_RESOLUTION_MS)


async def _endpoint(root: str, settings: Settings) -> str:
    match scheme_of(root):
        case "s3":
            if settings.s3_endpoint:
                return settings.s3_endpoint
            return await _aws_endpoint()
        case "gs":
            return settings.gcs_endpoint or _GOOGLE
        case _:
            if settings.azure_endpoint:
                return settings.azure_endpoint
            authority = root.partition("://")[2].partition("/")[0]
            account = authority.partition("@")[2].partition(".")[0] or os.environ.get(
                "AZURE_STORAGE_ACCOUNT_NAME"
            )
            if not account:
                raise ClockUnknownError("the storage account isn't known; set AZURE_STORAGE_ACCOUNT_NAME")
            return f"https://{account}.blob.core.windows.net"


async def _aws_endpoint() -> str:
    """The endpoint of the AWS configuration, or AWS's own."""
    session = AioSession()
    try:
        async with session.create_client(
            "s3",
            region_name=aws_region(session) or DEFAULT_REGION,
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106 - sends nothing
        ) as client:
            return str(client.meta.endpoint_url)
    except (BotoCoreError, ValueError) as error:
        raise ClockUnknownError(f"the S3 endpoint isn't known: {error}") from error
