"""`lakewarden dev`: Kafka, the agent and the page for development, with all data in one folder.

Kafka's data and the locks are in `<data>/.lakewarden`, so that the next start uses the same topics, offsets and locks. When
Kafka and the agent are ready, one line of JSON is printed on stdout; logs and progress go to stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from lakewarden.agent.cli.output import print_json, print_line
from lakewarden.agent.embedded.kafka import EmbeddedKafka, JdkMissing, KafkaStartError, KafkaUnavailable
from lakewarden.agent.errors import AgentError
from lakewarden.agent.serving.foreground import serve_until_signal
from lakewarden.agent.settings import Settings

HIDDEN = ".lakewarden"


async def run_dev(
    data: Path,
    *,
    kafka_port: int,
    web_port: int,
    tables: tuple[str, ...],
    lock_root: str | None,
    s3_endpoint: str | None,
) -> None:
    """Serve until SIGINT or SIGTERM. `data` is an absolute path without symbolic links."""
    # Imported here: aiohttp and Jinja2 take a third of a second, which the other commands don't need.
    from lakewarden.agent.web.foreground import running_page

    hidden = data / HIDDEN
    # Report wrong settings before anything is started.
    checked = Settings.load(tables=tables, lock_root=lock_root, s3_endpoint=s3_endpoint)
    root = checked.lock_root or hidden.as_uri()
    served = (f"file://{data}/*", *checked.tables)
    _create_folder(hidden)
    kafka = EmbeddedKafka(
        hidden / "kafka", port=kafka_port, on_progress=lambda text: print_line(text, err=True)
    )
    try:
        async with kafka:
            settings = Settings.load(
                bootstrap_servers=kafka.bootstrap_servers,
                tables=served,
                lock_root=root,
                s3_endpoint=s3_endpoint,
                replication=1,
            )
            page = settings.model_copy(update={"web_listen": f"127.0.0.1:{web_port}"})
            async with running_page(page) as address:
                ready = {
                    "ready": True,
                    "bootstrap_servers": kafka.bootstrap_servers,
                    "lock_root": settings.lock_root,
                    "web": address,
                }
                await serve_until_signal(settings, lambda: print_json(ready), log_to=sys.stderr)
    except (JdkMissing, KafkaStartError, KafkaUnavailable) as error:
        raise AgentError(str(error)) from error


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise AgentError(
            f"the folder {folder} can't be created or written: {error.strerror}; choose another --data"
        ) from error
