"""Settings of a test, in which what a user can't set may have other values: durations that follow from a lease, and constants."""

from typing import Any

from lakewarden.agent.settings import Settings


def tuned(**values: Any) -> Settings:
    """The settings, and any other attribute of `Settings`."""
    fixed = {name: value for name, value in values.items() if name not in Settings.model_fields}
    assert all(hasattr(Settings, name) for name in fixed), fixed
    return Settings.load(**{name: value for name, value in values.items() if name not in fixed}).model_copy(
        update=fixed
    )
