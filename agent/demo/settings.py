"""The demo's defaults, in a module without imports, so that `lakewarden --help` works without the demo's dependencies."""

from __future__ import annotations

DEFAULT_BUCKET = "lakewarden-demo"
DEFAULT_DAYS = 60
"""52,913 flights: about two minutes on two cores."""
