"""The rules of `lakewarden doctor`, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.events import Topics
from lakewarden.handlers.setup import (
    AGENT_RIGHTS,
    ClockReading,
    Finding,
    Member,
    TopicFacts,
    failed,
    has_problem,
    judge_agents,
    judge_store_clock,
    judge_topics,
    judge_versions,
    missing_rights,
)

TOPICS = Topics()
NOW = 1_800_000_000_000
ALL = frozenset({"read", "write", "describe"})


def facts(*, replicas: int = 3, partitions: int = 12) -> dict[str, TopicFacts]:
    """Six topics as an agent creates them on three brokers."""
    return {
        each.name: TopicFacts(
            each.name, (replicas,) * min(partitions, each.partitions), (), ALL, {**each.config}
        )
        for each in TOPICS.settings(partitions, replicas)
    }


def test_topics_as_an_agent_creates_them_are_ok_one_line_each() -> None:
    findings = judge_topics(TOPICS, facts())

    assert [each.about for each in findings] == [each.name for each in TOPICS.settings()]
    assert {each.result for each in findings} == {"ok"}
    assert not has_problem(findings)


@pytest.mark.parametrize("topic", AGENT_RIGHTS)
def test_a_missing_right_of_an_agent_is_a_problem_that_names_it(topic: str) -> None:
    known, name = facts(), f"{TOPICS.prefix}.{topic}"
    for right in AGENT_RIGHTS[topic]:
        known[name] = replace(known[name], operations=ALL - {right})

        [problem] = [each for each in judge_topics(TOPICS, known) if each.result == "problem"]

        assert (problem.about, problem.found) == (name, f"Kafka denies this user {right}")
        assert problem.next is not None
        assert right in problem.next


@pytest.mark.parametrize(
    ("topic", "changed", "expected"),
    [
        (
            "ledger",
            {"values": {"min.insync.replicas": "1"}},
            Finding(
                "topic",
                "warning",
                "lakewarden.ledger",
                "min.insync.replicas=1: a failover of a broker may lose a grant or a commit that Kafka has acknowledged",
                "set min.insync.replicas=2 (kafka-configs.sh --alter)",
            ),
        ),
        (
            "audit",
            {"values": None},
            Finding(
                "topic",
                "warning",
                "lakewarden.audit",
                "12 partitions, may read and write; its settings can't be checked",
                "grant describe-configs on the topic",
            ),
        ),
        (
            "ledger",
            {"replicas": (3,) * 13},
            Finding(
                "partitions",
                "problem",
                "lakewarden",
                "the topics must have the same number of partitions: lakewarden.writers has 12, lakewarden.decisions has 12, "
                "lakewarden.ledger has 13",
                "add partitions to the smaller ones",
            ),
        ),
        (
            "writers",
            {"leaderless": (3, 7)},
            Finding(
                "topic",
                "problem",
                "lakewarden.writers",
                "no leader for partition 3, 7",
                "start the brokers that have its replicas",
            ),
        ),
    ],
    ids=["a weaker setting", "settings that may not be described", "unequal partitions", "no leader"],
)
def test_what_is_wrong_with_a_topic_is_one_finding(
    topic: str, changed: dict[str, object], expected: Finding
) -> None:
    known, name = facts(), f"{TOPICS.prefix}.{topic}"
    known[name] = replace(known[name], **changed)  # type: ignore[arg-type]

    assert [each for each in judge_topics(TOPICS, known) if each.result != "ok"] == [expected]


def test_an_agent_that_watches_also_needs_write_on_writers() -> None:
    known, name = facts(), TOPICS.writers
    known[name] = replace(known[name], operations=ALL - {"write"})

    assert not has_problem(judge_topics(TOPICS, known))
    [problem] = [each for each in judge_topics(TOPICS, known, watches=True) if each.result == "problem"]
    assert (problem.about, problem.found) == (name, "Kafka denies this user write")


def test_fewer_replicas_than_survive_a_lost_broker_are_a_warning() -> None:
    [warning] = [each for each in judge_topics(TOPICS, facts(replicas=1)) if each.result != "ok"]

    assert (warning.check, warning.result) == ("partitions", "warning")
    assert warning.found.startswith("1 replica: a broker that is lost")


def test_brokers_that_are_too_old_to_name_rights_leave_them_unjudged() -> None:
    known = {name: replace(each, operations=None) for name, each in facts().items()}

    assert {each.result for each in judge_topics(TOPICS, known)} == {"ok"}
    assert missing_rights("group", "g", None, ("read",)) is None


@pytest.mark.parametrize(
    ("members", "result", "part"),
    [
        ([], "problem", "no agent is in the group"),
        ([Member("a", "0.1.0")], "ok", "1 agent of version 0.1.0 (a)"),
        ([Member("b", "0.1.0"), Member("a", "0.1.0")], "ok", "2 agents of version 0.1.0 (a, b)"),
        ([Member("a", "0.2.0"), Member(None, None)], "warning", "0.2.0, an earlier release (a)"),
        ([Member(f"a{n}", "1") for n in range(9)], "ok", "9 agents of version 1 (a0, a1, a2, a3, a4, …)"),
    ],
)
def test_the_agents_of_the_group_are_named_with_their_versions(
    members: list[Member], result: str, part: str
) -> None:
    judged = judge_agents("g", members, started=True)

    assert judged.result == result
    assert part in judged.found


def test_before_the_first_agent_none_is_no_problem() -> None:
    assert judge_agents("g", [], started=False).result == "warning"


@pytest.mark.parametrize(
    ("before", "after", "server", "ahead"),
    [
        (NOW, NOW, NOW, 0),
        (NOW + 999, NOW + 999, NOW, 0),  # the header has whole seconds
        (NOW + 1600, NOW + 1700, NOW, 600),
        (NOW - 700, NOW - 600, NOW, -600),
        (NOW - 700, NOW + 600, NOW, 0),  # a slow answer: read at any moment between
    ],
)
def test_of_a_clocks_difference_only_what_is_certain_counts(
    before: int, after: int, server: int, ahead: int
) -> None:
    assert ClockReading(before, after, server, 1000).ahead_ms == ahead


@pytest.mark.parametrize(
    ("offset", "result"), [(0, "ok"), (400, "ok"), (-5_000, "problem"), (5_000, "problem")]
)
def test_a_store_clock_that_differs_by_more_than_the_drift_is_a_problem(offset: int, result: str) -> None:
    reading = ClockReading(NOW + offset, NOW + offset, NOW)

    assert judge_store_clock("s3://lake", reading, drift_seconds=0.5, strict=False).result == result


def test_with_strict_takeover_a_stores_clock_is_only_a_warning() -> None:
    reading = ClockReading(NOW - 5_000, NOW - 4_900, NOW)

    judged = judge_store_clock("s3://lake", reading, drift_seconds=0.5, strict=True)

    assert judged.result == "warning"
    assert "at least 4.9 s behind the store's, and drift_seconds is 0.5" in judged.found


@pytest.mark.parametrize(
    ("message", "what", "do"),
    [
        ("this store refused; check the bucket; key=x", "this store refused", "check the bucket; key=x"),
        ("it ignores (a; b), so; keep it", "it ignores (a; b), so", "keep it"),
        ("nothing answers", "nothing answers", None),
    ],
)
def test_an_errors_message_is_split_into_what_happened_and_what_to_do(
    message: str, what: str, do: str | None
) -> None:
    finding = failed("store", "s3://lake", message)

    assert (finding.found, finding.next) == (what, do)
    assert has_problem([finding])


@pytest.mark.parametrize("keeps, result", [(True, ["warning"]), (False, []), (None, ["unchecked"])])
def test_a_store_that_keeps_versions_is_named_with_what_each_day_adds(
    keeps: bool | None, result: list[str]
) -> None:
    found = judge_versions("s3://lake", keeps_versions=keeps, renew_seconds=3)

    assert [each.result for each in found] == result
    assert not has_problem(found)
    for each in found:
        assert "28,800 a day" in each.found
        assert "lifecycle rule" in (each.next or "")
