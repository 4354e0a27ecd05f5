"""Which format a table has, by the folders in its root. A table in two formats (Delta's UniForm) is watched as the first one."""

from collections.abc import Collection

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.delta import DeltaFollower
from lakewarden.agent.watching.files import TableFiles, UnreadableTableError
from lakewarden.agent.watching.follower import TableFollower
from lakewarden.agent.watching.hudi import HudiFollower
from lakewarden.agent.watching.iceberg import IcebergFollower
from lakewarden.agent.watching.paimon import PaimonFollower

FOLDERS = {
    "hudi": {".hoodie"},
    "delta": {"_delta_log"},
    "paimon": {"schema", "snapshot"},
    "iceberg": {"metadata"},
}
"""By which a table of each format is known."""


def format_of(folders: Collection[str]) -> str | None:
    """Return the format of a table with these folders in its root, or None if it is no table."""
    return next((form for form, needed in FOLDERS.items() if needed <= set(folders)), None)


async def follow(uri: str, files: TableFiles, settings: Settings) -> TableFollower:
    """Look which format the table has, and return its follower. Raises `UnreadableTableError` if it is no table."""
    match await known_format(files):
        case "hudi":
            return HudiFollower(uri, files, settings.watch_grace_seconds)
        case "delta":
            return DeltaFollower(uri, files)
        case "paimon":
            return PaimonFollower(uri, files)
        case _:
            return IcebergFollower(uri, files)


async def known_format(files: TableFiles) -> str:
    """Return the format of a table. Raises `UnreadableTableError` if it is no table."""
    found = format_of(await files.folders(""))
    if found is None:
        known = "; ".join(f"{form}: {', '.join(sorted(needed))}" for form, needed in FOLDERS.items())
        raise UnreadableTableError(f"there is no table of a known format; its folders ({known}) are absent")
    return found
