"""An error of a function that the JVM calls is raised as itself. `JavaError` is in place of py4j's."""

from __future__ import annotations

import pytest

from lakewarden.spark_jobs import BaseChanged, CallbackErrors, LeaseLost


class JavaError(Exception):
    """Has the text of the original, and no more."""


def statement(callback: object, *, swallow: bool = False) -> None:
    """Call back, as the JVM does."""
    assert callable(callback)
    try:
        callback()
    except Exception as error:  # noqa: BLE001 - the JVM catches them all
        if not swallow:
            raise JavaError(f"An exception was raised by the Python Proxy: {error}") from None


def refused() -> None:
    raise LeaseLost("the lease expired")


def test_the_original_is_raised_and_the_java_error_is_its_cause() -> None:
    with pytest.raises(LeaseLost, match=r"^the lease expired$") as caught, CallbackErrors() as errors:
        statement(errors.keep(refused))

    assert isinstance(caught.value.__cause__, JavaError)


def test_it_is_raised_although_the_statement_returned() -> None:
    """A format that ignores its hook's error would look as if it had committed under a grant."""
    with pytest.raises(LeaseLost), CallbackErrors() as errors:
        statement(errors.keep(refused), swallow=True)


def test_the_first_error_counts() -> None:
    """The second one is a consequence, or of the clean-up."""

    def second() -> None:
        raise ValueError("later")

    with pytest.raises(LeaseLost), CallbackErrors() as errors:
        statement(errors.keep(refused), swallow=True)
        statement(errors.keep(second))


def test_other_errors_of_the_block_pass_unchanged() -> None:
    with pytest.raises(BaseChanged, match="other"), CallbackErrors() as errors:
        assert errors.keep(lambda: 7)() == 7
        raise BaseChanged("other")
