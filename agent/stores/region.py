"""The region of S3, the same for locks, the server's clock and watched tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

DEFAULT_REGION = "us-east-1"
"""For a request that no region changes: to an endpoint of its own, or without a signature."""


def s3_region(configured: str | None, session: AioSession) -> str | None:
    """The setting, else AWS_DEFAULT_REGION, else that of the profile, else AWS_REGION, which botocore doesn't read."""
    region: str | None = (
        configured or session.get_config_variable("region") or os.environ.get("AWS_REGION") or None
    )
    return region
