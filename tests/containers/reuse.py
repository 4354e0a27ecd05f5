"""Tests of other folders that this one runs again, with servers in containers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def reused_tests(fixture: str, module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Every test of `module` that uses `fixture`, by name.

    A module that adds them to its `globals()` has pytest collect them there, where `kafka` and `s3_server` are containers.
    """
    found = {
        name: each
        for name, each in vars(module).items()
        if name.startswith("test_") and callable(each) and fixture in inspect.signature(each).parameters
    }
    assert found, f"no test of {module.__name__} uses {fixture}"
    return found
