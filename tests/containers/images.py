"""The images of the tests: local ones, else pulled ones, else stand-ins built here. The output names every stand-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml

from tests.containers.engine import ROOT, ContainersError, Report, last_line, run
from tests.containers.stand_ins import LABEL, build_stand_in, stand_in_name

_PULL_SECONDS: Final = 900
_DOCKER_SECONDS: Final = 60
_FROM: Final = re.compile(r"^(?:FROM|COPY --from=)\s*([^\s]+:[^\s]+)", re.MULTILINE)


def compose_image(service: str) -> str:
    """The image of a service of docker-compose.yml."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return str(services[service]["image"])


def needed_images() -> list[str]:
    """Every image that the Dockerfile and the compose file name, once each."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    named = [*_FROM.findall((ROOT / "Dockerfile").read_text())]
    named += [str(service["image"]) for service in services.values() if "image" in service]
    return list(dict.fromkeys(named))


@contextmanager
def images_in_place(report: Report) -> Iterator[None]:
    """Every needed image, under its own name, while the block runs.

    A stand-in loses that name at the end, so that no later build on this machine mistakes it for the published image. It
    stays under `lakewarden-stand-in/…`, for the next run.
    """
    stand_ins = []
    problem = ""
    # Docker keeps the stages of each build as unnamed images, for the next build; a day later they only fill the disk.
    run(
        ["docker", "image", "prune", "--force", f"--filter=label={LABEL}", "--filter=until=24h"],
        timeout=_DOCKER_SECONDS,
    )
    try:
        for image in needed_images():
            if not (refused := obtain(image)):
                report(f"  {image}: the published image")
                continue
            stand_ins.append(image)
            problem = refused
            made_of = build_stand_in(image, problem, report)
            _docker("tag", stand_in_name(image), image)
            report(f"  {image}: STAND-IN, {made_of}")
        if stand_ins:
            report(f"{len(stand_ins)} images are stand-ins, because they can't be pulled here: {problem}")
        yield
    finally:
        for image in stand_ins:
            run(["docker", "image", "rm", image], timeout=_DOCKER_SECONDS)


def obtain(image: str) -> str:
    """Find the published image on this machine, or pull it; return why neither is possible, or an empty text."""
    label = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    found = run(["docker", "image", "inspect", "--format", label, image], timeout=_DOCKER_SECONDS)
    if found.returncode == 0 and found.stdout.strip() in ("", "<no value>"):
        return ""
    pulled = run(["docker", "pull", "--quiet", image], timeout=_PULL_SECONDS)
    return "" if pulled.returncode == 0 else last_line(pulled.stderr)


def _docker(*arguments: str) -> None:
    done = run(["docker", *arguments], timeout=_DOCKER_SECONDS)
    if done.returncode != 0:
        raise ContainersError(f"docker {' '.join(arguments)} failed: {last_line(done.stderr)}")
