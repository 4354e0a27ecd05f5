"""Publishing in callbacks of the JVM: real py4j, a real broker, and an agent that follows a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from lakewarden.events import Marker
from lakewarden.spark_jobs import (
    BaseChanged,
    CallbackErrors,
    CommitAborted,
    Grant,
    LeaseLost,
    OutcomeUnknown,
)
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.spark.fake_agent import PATIENCE_SECONDS, At, FakeAgent, aborted, grant_everything, granted
from tests.spark.harness import Harness

pytestmark = [pytest.mark.real]

TABLE = "file:///lake/flights"
MINE = Marker(partition="month=1/day=3", file_group="*", operation="merge")


class Hook:
    """A `java.util.concurrent.Callable` that runs a Python function."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def call(self) -> None:
        self._function()

    class Java:
        """What py4j reads."""

        implements = ["java.util.concurrent.Callable"]  # noqa: RUF012 - py4j's interface


@pytest.fixture
def in_a_java_thread(spark: SparkSession) -> Callable[[Callable[[], object]], None]:
    """A function that has a thread of the JVM call a Python function, and waits for it."""
    jvm: Any = spark._jvm
    start_callbacks: Any = ensure_callback_server_started
    start_callbacks(spark.sparkContext._gateway)

    def run(function: Callable[[], object]) -> None:
        pool = jvm.java.util.concurrent.Executors.newSingleThreadExecutor()
        try:
            pool.submit(Hook(function)).get()
        finally:
            pool.shutdown()

    return run


def test_the_grant_is_requested_and_the_commit_reported_in_threads_of_the_jvm(
    harness: Harness, in_a_java_thread: Callable[[Callable[[], object]], None], agent: FakeAgent
) -> None:
    threads: list[threading.Thread] = []

    with harness.gate().transaction(table=TABLE, writer="w", batch_id=1) as txn:
        grants: list[Any] = []

        def before() -> None:
            threads.append(threading.current_thread())
            txn.touch_all([MINE])
            grants.append(txn.request_grant())
            grants[0].check()

        def after() -> None:
            grants[0].published("7")

        with CallbackErrors() as errors:
            in_a_java_thread(errors.keep(before))
            in_a_java_thread(errors.keep(after))
        assert agent.wait_for("commit-completed")[0].version == "7", "it is reported before the body ends"

    assert threads[0] is not threading.current_thread()
    assert agent.types() == ["commit-intent", "marker-created", "commit-requested", "commit-completed"]


@pytest.mark.wide
def test_a_refused_grant_is_raised_as_itself_out_of_the_jvm_and_not_logged_as_a_fault(
    harness: Harness,
    in_a_java_thread: Callable[[Callable[[], object]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.agent(At("commit-requested", lambda event: [aborted(event, MINE)]))
    caught: list[BaseException] = []
    discarded: list[str] = []
    with pytest.raises(CommitAborted), harness.gate().transaction(table=TABLE, writer="w") as txn:
        txn.on_discard(lambda: discarded.append(txn.id))
        try:
            with CallbackErrors() as errors:
                in_a_java_thread(errors.keep(txn.request_grant))
        except CommitAborted as error:
            caught.append(error)
            raise

    assert "Py4JJavaError" in type(caught[0].__cause__).__name__
    assert "Python Proxy" not in caplog.text
    with pytest.raises(Exception, match="ZeroDivisionError"):
        in_a_java_thread(lambda: 1 / 0)
    assert "Python Proxy" in caplog.text, "an error that isn't kept"
    assert discarded == [txn.id]


@pytest.mark.wide
def test_a_body_that_ends_without_a_report_has_an_unknown_outcome(harness: Harness, agent: FakeAgent) -> None:
    """The callback after the publish never came."""
    discarded: list[str] = []

    with (
        pytest.raises(OutcomeUnknown, match="the body ended without a report of its publish"),
        harness.gate().transaction(table=TABLE, writer="w") as txn,
    ):
        txn.on_discard(lambda: discarded.append(txn.id))
        txn.request_grant()

    assert agent.types() == ["commit-intent", "commit-requested"]
    assert [event.detail["outcome"] for event in harness.only("failed")] == ["unknown"]
    assert discarded == []


@pytest.mark.wide
def test_an_unknown_outcome_that_the_body_suppressed_is_raised_at_its_end(harness: Harness) -> None:
    """The caller must not take the batch for committed."""
    harness.agent(grant_everything)
    with (
        pytest.raises(OutcomeUnknown),
        harness.gate().transaction(table=TABLE, writer="w") as txn,
        pytest.raises(OutcomeUnknown, match="connection reset"),
        txn.commit(),
    ):
        raise OSError("connection reset")


@pytest.mark.wide
def test_a_grant_that_arrives_after_the_body_is_not_used(harness: Harness) -> None:
    """The body failed while a callback waited. Its transaction is abandoned, so the callback must not publish."""
    agent = harness.agent(At("commit-requested", lambda _: []))
    looked_up, resume, refused = threading.Event(), threading.Event(), []

    def committed(_writer: str, _batch: int) -> None:
        # Under the grant. The lookup of `recognise` is in the body's thread.
        if threading.current_thread() is thread:
            looked_up.set()
            assert resume.wait(PATIENCE_SECONDS)

    def callback(txn: Transaction) -> None:
        try:
            txn.request_grant()
        except LeaseLost as error:
            refused.append(str(error))

    with (
        pytest.raises(OSError, match="the statement failed"),
        harness.gate().transaction(table=TABLE, writer="w", batch_id=1) as txn,
    ):
        thread = threading.Thread(target=callback, args=(txn,))
        txn.recognise(committed)
        thread.start()
        agent.publish(granted(agent.wait_for("commit-requested")[0]))
        assert looked_up.wait(PATIENCE_SECONDS)
        raise OSError("the statement failed")

    resume.set()
    thread.join(PATIENCE_SECONDS)
    assert agent.wait_for("transaction-abandoned")
    assert [error.partition(";")[0] for error in refused] == [
        "the transaction ended before its grant was used"
    ]


def fail(_grant: Grant) -> None:
    raise OSError("the session died")


@pytest.mark.wide
@pytest.mark.parametrize(
    "end",
    [lambda _: None, fail, lambda grant: grant.unknown(OSError("connection reset"))],
    ids=["returned", "raised", "reported as unknown"],
)
def test_a_publish_without_a_known_outcome_is_looked_up_in_the_table(
    harness: Harness, end: Callable[[Grant], None], agent: FakeAgent
) -> None:
    answers = iter([None, None, "7"])

    with harness.gate().transaction(table=TABLE, writer="w", batch_id=1) as txn:
        txn.recognise(lambda _writer, _batch: next(answers))
        end(txn.request_grant())

    assert agent.wait_for("commit-completed")[0].version == "7"
    assert harness.steps()[-1] == "completed"


@pytest.mark.wide
@pytest.mark.parametrize("by_callback", [True, False])
def test_a_changed_base_means_that_nothing_was_published(
    harness: Harness, *, by_callback: bool, agent: FakeAgent
) -> None:
    """The agent isn't left to wait for the lapse of the grant, and what was staged is removed."""
    discarded: list[str] = []

    def publish(txn: Transaction) -> None:
        error = BaseChanged("a foreign writer rewrote a file")
        if by_callback:
            txn.request_grant()
            raise error
        with txn.commit():
            raise error

    with pytest.raises(BaseChanged), harness.gate().transaction(table=TABLE, writer="w") as txn:
        txn.on_discard(lambda: discarded.append(txn.id))
        publish(txn)

    abandoned = agent.wait_for("transaction-abandoned")[0]
    assert (abandoned.cause, abandoned.reason) == (
        "base-changed",
        "BaseChanged: a foreign writer rewrote a file",
    )
    assert discarded == [txn.id]


@pytest.mark.wide
def test_what_was_staged_is_kept_if_it_was_published_and_a_failed_clean_up_is_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.agent(grant_everything)
    gate = harness.gate()
    discarded: list[str] = []

    with gate.transaction(table=TABLE, writer="w") as txn:
        txn.on_discard(lambda: discarded.append("published"))
        with txn.commit() as grant:
            grant.version = "1"

    def failing() -> None:
        raise OSError("the store is away")

    with pytest.raises(ValueError, match="the body's own"), gate.transaction(table=TABLE, writer="w") as txn:
        txn.on_discard(failing)
        txn.on_discard(lambda: discarded.append("abandoned"))
        raise ValueError("the body's own")

    assert discarded == ["abandoned"]
    assert "the store is away" in caplog.text


@pytest.mark.wide
def test_declared_markers_are_not_published_again(harness: Harness, agent: FakeAgent) -> None:
    """They count as touched from the admission on."""
    other = Marker(partition="month=1/day=4", file_group="*", operation="merge")

    with harness.gate().transaction(table=TABLE, writer="w", admission="queued", scope=[MINE]) as txn:
        txn.touch_all([MINE])
        txn.touch_all([MINE, other])

    agent.wait_for("transaction-abandoned")
    assert [event.markers for event in agent.wait_for("marker-created")] == [(other,)]
    assert tuple(txn.touches.touched) == (MINE, other)
