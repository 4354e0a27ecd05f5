"""Which format a table has, by the folders in its root.

A table can have the folders of several: a translator (XTable, UniForm, Paimon's Iceberg) shows it in others, too, or it was
converted. The one with the newest commit of a writer is followed. A translator's commit names it, but for Paimon's, which
follows at once; so Iceberg is followed beside another format only if it is `LAG_SECONDS` ahead.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import structlog

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.delta import DeltaFollower
from lakewarden.agent.watching.files import TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import TableFollower
from lakewarden.agent.watching.hudi import HudiFollower
from lakewarden.agent.watching.iceberg import IcebergFollower
from lakewarden.agent.watching.paimon import PaimonFollower
from lakewarden.handlers.observations import File

FOLDERS = {
    "hudi": {".hoodie"},
    "delta": {"_delta_log"},
    "paimon": {"schema", "snapshot"},
    "iceberg": {"metadata"},
}
"""By which a table of each format is known."""
COMMITS = {
    "hudi": (".hoodie/", r"(timeline/)?\d+(_\d+)?\.(commit|deltacommit|replacecommit)"),
    "delta": ("_delta_log/", r"\d{20}\.json"),
    "paimon": ("snapshot/", r"snapshot-\d+"),
    "iceberg": ("metadata/", r".*\.metadata\.json"),
}
"""Where each format keeps its commits, and what they are called there."""
TRANSLATED = (b"XTABLE_METADATA", b"ONETABLE_METADATA", b'"delta-version"')
"""What XTable, also under its former name, and UniForm write into each of their commits."""
LAG_SECONDS = 3600.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """The format of a table, and others whose folders it has."""

    form: str
    translations: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Those that writers have written."""


def format_of(folders: Collection[str]) -> str | None:
    """Return the format of a table with these folders in its root, or None if it is no table."""
    return next((form for form, needed in FOLDERS.items() if needed <= set(folders)), None)


async def folders_of(files: TableFiles, root: str = "") -> set[str]:
    """Return which of the formats' folders a table has. Its root may have any number of files, so it isn't listed."""
    return {each for needed in FOLDERS.values() for each in needed if await files.has_files(root + each)}


async def follow(uri: str, files: TableFiles, settings: Settings) -> TableFollower:
    """Look which format the table has, and return its follower. Raises `UnreadableTableError` if it is no table."""
    found = await known_format(files, settings.formats.get(uri))
    if also := (*found.translations, *found.others):
        log.warning("watch.several-formats", table=uri, followed=found.form, also=also)
    match found.form:
        case "hudi":
            return HudiFollower(uri, files, settings.watch_grace_seconds)
        case "delta":
            return DeltaFollower(uri, files)
        case "paimon":
            return PaimonFollower(uri, files)
        case _:
            return IcebergFollower(uri, files)


async def known_format(files: TableFiles, chosen: str | None = None) -> KnownFormat:
    """Return the format of a table, the chosen one if it has its folders. Raises `UnreadableTableError` if it is no table."""
    folders = await folders_of(files)
    forms = [form for form, needed in FOLDERS.items() if needed <= folders]
    if not forms:
        known = "; ".join(f"{form}: {', '.join(sorted(needed))}" for form, needed in FOLDERS.items())
        raise UnreadableTableError(f"there is no table of a known format; its folders ({known}) are absent")
    if len(forms) == 1:
        return KnownFormat(forms[0])
    newest = {form: await _newest_commit(files, form) for form in forms}
    written = [form for form in forms if newest[form] is not None] or forms
    first = max(written, key=lambda form: (newest[form] or 0.0) - LAG_SECONDS * (form == "iceberg"))
    if chosen in forms:
        first = chosen
    others = tuple(form for form in written if form != first)
    translations = tuple(form for form in forms if form not in written and form != first)
    return KnownFormat(first, translations, others)


async def _newest_commit(files: TableFiles, form: str) -> float | None:
    """When the newest commit was made, by the store's clock; None: a translator made it, or there is none."""
    folder, name = COMMITS[form]
    newest: File | None = None
    async for page in files.pages(folder):
        for path, file in page.items():
            is_newer = newest is None or file.modified >= newest.modified
            if is_newer and re.fullmatch(name, path.removeprefix(folder)):
                newest = file
    if newest is None:
        return None
    body = b""
    with suppress(UnreadableTableError):
        body = await files.read(newest.path)
    return None if any(each in body for each in TRANSLATED) else newest.modified
