"""Which environment variables are lakewarden's. A misspelt setting is an error, so that it can't be ignored silently.

| a variable that begins with `LAKEWARDEN_` | what happens |
| --- | --- |
| a setting, or one of `OTHER_VARIABLES` | it is read |
| `LAKEWARDEN_TEST_…` | ignored: it configures the project's own tests |
| `LAKEWARDEN_SERVICE_HOST`, `LAKEWARDEN_PORT_80_TCP` and the like | ignored: Kubernetes sets them for a service of this name |
| any other | an error that names the nearest known variable |

Names are compared without case, as settings are read.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from lakewarden.agent.errors import SettingsError

ENV_PREFIX = "LAKEWARDEN_"
CONFIG_VARIABLE = "LAKEWARDEN_CONFIG"
OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    "LAKEWARDEN_CACHE_DIR",
    "LAKEWARDEN_LOCK_OWNER",
    "LAKEWARDEN_LOCK_URI",
    "LAKEWARDEN_TABLE",
    "LAKEWARDEN_VERBOSE",
)
"""Variables that are no settings. `lakewarden lock hold` sets the three of the lock for its command."""
TEST_PREFIX = "LAKEWARDEN_TEST_"
_OF_KUBERNETES = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")


def refuse_unknown_variables(names: Iterable[str], settings: Iterable[str]) -> None:
    """Raise `SettingsError` if one of the environment's variables `names` should be a setting and is none of `settings`."""
    known = {*OTHER_VARIABLES, *(ENV_PREFIX + setting.upper() for setting in settings)}
    ours = sorted(name for name in names if name.upper().startswith(ENV_PREFIX))
    unknown = [name for name in ours if name.upper() not in known and not _is_ignored(name.upper())]
    if unknown:
        hints = (f"{name}{_nearest(name.upper(), known, ENV_PREFIX)}" for name in unknown)
        raise SettingsError(
            f"unknown environment variable: {'; '.join(hints)}; docs/configuration.md lists all settings"
        )


def unknown_keys(keys: Iterable[str], settings: Iterable[str]) -> str:
    """The keys that are none of `settings`, each with the nearest one. Empty: all are known."""
    known = set(settings)
    return "; ".join(f"{key}{_nearest(key, known)}" for key in sorted(set(keys) - known))


def _is_ignored(name: str) -> bool:
    return name.startswith(TEST_PREFIX) or _OF_KUBERNETES.search(name) is not None


def _nearest(name: str, known: set[str], prefix: str = "") -> str:
    # Without the common prefix, which would make any two names similar.
    short = {each.removeprefix(prefix): each for each in sorted(known)}
    found = get_close_matches(name.removeprefix(prefix), short, n=1)
    return f" (did you mean {short[found[0]]}?)" if found else ""
