"""`make release`: build wheel and sdist, check them, install each extra alone in clean environments, and try each there.

The rules:

- The files are made of a commit, never of the working tree: what isn't committed isn't released.
- Two builds have the same bytes, and the sdist builds the same wheel.
- `dist/` is replaced only if everything passed. What was not tried is printed at the end.
- README's links work on a package index: they lead to the files of the tag, in the repository that `pyproject.toml` names
  (`[project.urls]`, `Source`). Without it, a link becomes its text and the path.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
UV: Final = ROOT / "build" / "tools" / "bin" / "uv"
SMOKE: Final = Path(__file__).with_name("smoke.py")
ALONE: Final = ("", "agent", "spark", "paimon", "hudi", "metrics", "otel", "google", "catalogs")
"""The extras, each in an environment of its own; `""` is the package without any. `dev` runs the agent of them all."""
UNTRIED: Final = (
    "image and chart (make test-containers)",
    "upload, tag and site (CONTRIBUTING.md, Release)",
)
LINK: Final = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?P<path>(?![a-z]+:|#)[^)\s]+)\)")
"""A link or a picture of Markdown whose target is a file of the repository."""


class ReleaseError(Exception):
    """A step failed; the text says which, and what it printed."""


def main() -> int:
    """Build, check and try; 0 if `dist/` has the files of a release."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument(
        "--python", action="append", default=[], help="another Python to install on; repeatable"
    )
    parser.add_argument("--no-install", action="store_true", help="build and check only")
    options = parser.parse_args()
    untried = list(UNTRIED)
    if repository(ROOT) is None:
        untried.append("README's links on a package index: pyproject.toml has no [project.urls] Source")
    with tempfile.TemporaryDirectory(prefix="lakewarden-release-") as scratch:
        try:
            dist = build(Path(scratch))
            if options.no_install:
                untried.append("installing, because of --no-install")
            else:
                untried += install_on([sys.executable, *options.python], dist, Path(scratch))
        except ReleaseError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(dist, ROOT / "dist")
    print((ROOT / "dist" / "SHA256SUMS").read_text(), end="")
    for each in untried:
        print(f"not tried: {each}")
    return 0


def build(work: Path) -> Path:
    """Build the newest commit, compare with a second build, and add bill of materials, licences and checksums."""
    archive = work / "source.tar"
    run("git", "-C", ROOT, "archive", "--output", archive, "HEAD")
    seconds = run("git", "-C", ROOT, "show", "--no-patch", "--format=%ct", "HEAD").strip()

    dist = build_once(archive, work / "dist", seconds)
    again = build_once(archive, work / "again", seconds)
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    of_sdist = build_once(sdist, work / "of-sdist", seconds)
    for other in (again / wheel.name, again / sdist.name, of_sdist / wheel.name):
        if other.read_bytes() != (dist / other.name).read_bytes():
            raise ReleaseError(f"{other.name} has other bytes when it is built in {other.parent.name}")

    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    bill = bill_of_materials()
    (dist / "lakewarden.cdx.json").write_text(json.dumps(bill, indent=1))
    (dist / "LICENSES").write_text(licences(bill))
    files = sorted(dist.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(sums))
    print(f"built: {', '.join(path.name for path in files)}", flush=True)
    return dist


def build_once(archive: Path, target: Path, seconds: str) -> Path:
    """Build in a fresh folder; every time in the files is that of the commit."""
    source = target.with_name(f"{target.name}-source")
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    if not (source / "pyproject.toml").exists():
        # An sdist has one folder at its top; an archive of git has none.
        source = next(source.iterdir())
    readme = source / "README.md"
    tag = f"v{project(source)['version']}"
    readme.write_text(for_an_index(readme.read_text(), repository(source), tag))
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source),
        env={**os.environ, "SOURCE_DATE_EPOCH": seconds},
    )
    pack_again(next(target.glob("*.tar.gz")), int(seconds))
    return target


def project(source: Path) -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    found: dict[str, Any] = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    return found


def repository(source: Path) -> str | None:
    """The address of the repository, if the project names it."""
    address: str | None = project(source).get("urls", {}).get("Source")
    return address


def for_an_index(readme: str, address: str | None, tag: str) -> str:
    """README without links to files beside it, which lead nowhere on a package index."""

    def replaced(link: re.Match[str]) -> str:
        if address is None:
            return f"{link['text']} (`{link['path']}`)"
        way = "raw" if link[0].startswith("!") else "blob"
        return link[0].replace(f"({link['path']})", f"({address}/{way}/{tag}/{link['path']})")

    return LINK.sub(replaced, readme)


def pack_again(sdist: Path, seconds: int) -> None:
    """Setuptools writes the clock and the user into an sdist: the same files again, in order, without them."""
    with tarfile.open(sdist) as packed:
        files = {
            member.name: (member.mode, content.read())
            for member in packed.getmembers()
            if (content := packed.extractfile(member)) is not None
        }
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as packed,
    ):
        for name, (mode, data) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mode, member.mtime, member.size = mode, seconds, len(data)
            packed.addfile(member, io.BytesIO(data))


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX of the locked versions of every extra, without the time and the number that each export draws."""
    printed = run(UV, "export", "--quiet", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5")
    bill: dict[str, Any] = json.loads(printed)
    del bill["serialNumber"], bill["metadata"]["timestamp"]
    return bill


def licences(bill: dict[str, Any]) -> str:
    """The wheel has no code of others; these are the licences of what it, or one of its extras, brings."""
    lines = [f"lakewarden {metadata.version('lakewarden')}: Apache-2.0\n"]
    lines += [
        f"{each['name']} {each['version']}: {licence_of(each['name'])}\n" for each in bill["components"]
    ]
    return "".join(lines)


def licence_of(name: str) -> str:
    """As the installed package says it."""
    try:
        says = metadata.metadata(name).json
    except metadata.PackageNotFoundError:
        return "not known: not installed on this platform"
    classifiers = [each for each in says.get("classifier", ()) if each.startswith("License")]
    if expression := says.get("license_expression"):
        return str(expression)
    if classifiers:
        return ", ".join(each.rpartition(" :: ")[2] for each in classifiers)
    return str(says.get("license", "not known")).partition("\n")[0]


def install_on(pythons: list[str], dist: Path, work: Path) -> list[str]:
    """Install and try on one Python of each version; return what wasn't tried."""
    supported = [each.rpartition(" :: ")[2] for each in project(ROOT)["classifiers"]]
    found = {
        run(each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip(): each
        for each in pythons[::-1]
    }
    untried = [
        f"Python {each}: this machine has none; name one with PYTHONS"
        for each in supported
        if each not in found
    ]
    for version, python in sorted(found.items()):
        untried += install(python, version, dist, work / f"python-{version}")
    return untried


def install(python: str, said: str, dist: Path, work: Path) -> list[str]:
    """Install each extra alone for this Python, and try it beside an agent of the extra `dev`; return what wasn't tried."""
    work.mkdir()
    wheel = next(dist.glob("*.whl"))
    with agent(environment(python, wheel, "dev", work), work) as address:
        for extra in ("dev", *ALONE):
            if extra == "hudi" and said != "3.11":
                continue
            its = environment(python, wheel, extra, work)
            folder = work / f"in-{its.name}"
            folder.mkdir()
            printed = run(its / "bin" / "python", SMOKE, extra, *address, folder=folder)
            print(f"Python {said}, {wheel.name}[{extra}]: {printed.strip()}", flush=True)
            if extra != "dev":
                shutil.rmtree(its)
    return [] if said == "3.11" else [f"hudi on Python {said}: its PySpark 3.5 needs Python 3.11"]


def environment(python: str, wheel: Path, extra: str, work: Path) -> Path:
    """Make a clean environment with the wheel and one extra, from where pip of this machine takes packages."""
    folder = work / f"with-{extra or 'nothing'}"
    run(python, "-m", "venv", folder)
    # Paimon and Hudi are written by Spark jobs. The sinks of Hudi need PySpark 3.5.
    also = {"paimon": ",spark", "hudi": ",spark"}.get(extra, "")
    wanted = [f"{wheel}[{extra}{also}]" if extra else str(wheel)]
    if extra == "hudi":
        wanted.append("pyspark==3.5.*")
    run(folder / "bin" / "pip", "install", "--quiet", *wanted)
    return folder


@contextmanager
def agent(its: Path, work: Path) -> Iterator[tuple[str, str, Path]]:
    """`lakewarden dev` of the wheel; yields Kafka's address, the page's, and the folder of the tables."""
    tables = work / "tables"
    command = [str(its / "bin" / "lakewarden"), "dev", "--data", str(tables), "--output", "json"]
    env = {**os.environ, "LAKEWARDEN_HTTP_LISTEN": "off"}
    with (
        (work / "dev.log").open("w+") as log,
        subprocess.Popen(
            command, cwd=work, env=env, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                log.seek(0)
                raise ReleaseError(
                    f"lakewarden dev of the wheel ended before it was ready: {log.read()[-2000:]}"
                )
            addresses = json.loads(ready)
            yield addresses["bootstrap_servers"], addresses["web"], tables
        finally:
            process.terminate()


def run(*command: str | Path, folder: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a program, and return what it prints on stdout; without `folder`, where this one runs."""
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(str(each) for each in command)
        raise ReleaseError(
            f"{words} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
