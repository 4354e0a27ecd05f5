"""The services of docker-compose.yml under a project name and ports of their own, so that they disturb no other services."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from lakewarden.agent.embedded.kafka import free_port
from tests.containers import ROOT

_COMMAND_SECONDS: Final = 900
"""Bounds the first build of the image, which downloads its Python packages."""


@dataclass(frozen=True, slots=True)
class ComposeProject:
    """One run of docker-compose.yml, and where its services are reached from this machine."""

    name: str
    kafka_port: int
    s3_port: int
    web_port: int
    prometheus_port: int

    @property
    def bootstrap_servers(self) -> str:
        return f"localhost:{self.kafka_port}"

    @property
    def s3_environment(self) -> dict[str, str]:
        """The variables with which lakewarden on this machine reaches the S3 server, with the credentials of the compose file."""
        return {
            "LAKEWARDEN_S3_ENDPOINT": f"http://localhost:{self.s3_port}",
            "AWS_ACCESS_KEY_ID": "lakewarden",
            "AWS_SECRET_ACCESS_KEY": "lakewarden-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def compose(self, *arguments: str) -> str:
        """Run `docker compose …` and return what it printed. A failure shows that and the services' logs."""
        done = self._run(*arguments)
        if done.returncode != 0:
            logs = self._run("logs", "--tail=40").stdout
            raise AssertionError(
                f"docker compose {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout}{done.stderr}\n{logs}"
            )
        return done.stdout

    def up(self) -> None:
        """Build the agent's image, start every service, and wait until each is healthy."""
        self.compose("up", "--build", "--wait")

    def down(self) -> None:
        """Stop and remove the containers; what the compose file's volumes hold is kept.

        `docker compose down` leaves behind the volumes that only the Kafka image declares. They are removed here.
        """
        mounts = [mount for each in self.containers().values() for mount in each["Mounts"]]
        volumes = [mount["Name"] for mount in mounts if mount["Type"] == "volume"]
        self.compose("down")
        _docker("volume", "rm", *(each for each in volumes if not each.startswith(f"{self.name}_")))

    def containers(self) -> dict[str, dict[str, Any]]:
        """What Docker knows of each service's container, by the service's name."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = json.loads(_docker("inspect", *ids))
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def kill_agent(self) -> None:
        """Send SIGKILL to the agent from inside its container, so that Docker sees a crash and not a command to stop."""
        self._run("exec", "-T", "agent", "sh", "-c", "kill -KILL $(cat /proc/1/task/1/children)")

    def remove(self) -> None:
        """Remove the containers, the network, the volumes and the agent's image."""
        self.compose("down", "--volumes", "--rmi=local", "--remove-orphans")

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ports = {
            "KAFKA_PORT": str(self.kafka_port),
            "S3_PORT": str(self.s3_port),
            "WEB_PORT": str(self.web_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }
        return subprocess.run(
            ["docker", "compose", "--project-name", self.name, "--progress=plain", *arguments],
            cwd=ROOT,
            env={**os.environ, **ports},
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )


@contextmanager
def running_project() -> Iterator[ComposeProject]:
    """All services, healthy; removed at the end with all that they stored."""
    ports = [free_port() for _ in range(4)]
    project = ComposeProject(f"lakewarden-test-{uuid.uuid4().hex[:8]}", *ports)
    try:
        project.up()
        yield project
    finally:
        project.remove()


def _docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True
    ).stdout
