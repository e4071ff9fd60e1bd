"""Freshness: which clock shows what, what causes a delay, when somebody is called."""

from dataclasses import replace

import pytest
from support.freshness import ago, ago_ms, behind, caught_up, facts_of, judge

from frazil.errors import (
    CatalogUnavailableError,
    ConnectionMissingError,
    ForeignRollbackError,
    FrazilError,
    KafkaUnavailableError,
    MissingTableError,
    RegistryUnavailableError,
    RetentionGapError,
    StorageError,
    UnknownTopicError,
)
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.recovery_point import RecoveryPoint
from frazil.ledger.state import StreamState
from frazil.observability.freshness import (
    FreshnessFacts,
    MergeFacts,
    Obstacle,
    PartitionFacts,
    Retention,
)
from frazil.observability.watch import (
    explain_obstacle,
    list_partitions,
    parse_retention,
)
from frazil.streams.timestamps import describe_seconds

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_536_000


@pytest.mark.parametrize(
    ("facts", "clocks"),
    [
        pytest.param(facts_of(caught_up()), (None, 60), id="nothing waits, so nothing is old"),
        pytest.param(
            facts_of(caught_up(), ingest=3 * DAY), (None, 3 * DAY), id="an idle stream has no wait"
        ),
        pytest.param(
            facts_of(behind(45)), (45, 60), id="a record waits as long as its timestamp says"
        ),
        pytest.param(
            facts_of(behind(45), behind(50, 1), caught_up(2)), (50, 60), id="the oldest one counts"
        ),
        pytest.param(
            facts_of(behind(13 * YEAR)),
            (60, 60),
            id="an old event time waits no longer than since the table had everything",
        ),
        pytest.param(
            facts_of(behind(13 * YEAR), ingest=60, read_all=2 * HOUR),
            (2 * HOUR, 60),
            id="capped batches do not turn the clock back while they catch up",
        ),
        pytest.param(
            facts_of(behind(20), ingest=3 * DAY),
            (20, 3 * DAY),
            id="a record after three idle days has waited since it came",
        ),
        pytest.param(
            facts_of(behind(13 * YEAR), ingest=3 * DAY),
            (3 * DAY, 3 * DAY),
            id="an old event time after idle days is taken for the longest possible wait",
        ),
        pytest.param(
            facts_of(behind(None), ingest=700),
            (700, 700),
            id="an unknown timestamp is not an age of zero",
        ),
        pytest.param(
            facts_of(behind(-30)), (0, 60), id="a producer's clock may run a little ahead"
        ),
        pytest.param(
            facts_of(behind(-YEAR), ingest=700),
            (700, 700),
            id="a timestamp from the future hides no stall",
        ),
        pytest.param(
            facts_of(behind(100), ingest=None, read_all=90),
            (90, None),
            id="before the first batch the stream's beginning bounds the wait",
        ),
    ],
)
def test_i3_two_clocks(facts: FreshnessFacts, clocks: tuple[int | None, int | None]) -> None:
    report = judge(facts)

    assert (report.stream_clock_seconds, report.table_clock_seconds) == clocks


RUNNING = facts_of(behind(400), ingest=500)
BLOCKED = Obstacle("blocked", "batch b is blocked", "frazil waive orders")


@pytest.mark.parametrize(
    ("facts", "cause", "level"),
    [
        pytest.param(facts_of(caught_up()), "up_to_date", "ok", id="read to the end just now"),
        pytest.param(facts_of(behind(45)), "up_to_date", "ok", id="behind within the limits"),
        pytest.param(facts_of(caught_up(), ingest=DAY), "idle", "ok", id="idle is not stale"),
        pytest.param(
            facts_of(replace(behind(None), is_drained=True), ingest=DAY),
            "idle",
            "ok",
            id="marks of transactions are no records that wait",
        ),
        pytest.param(
            facts_of(caught_up(), ingest=None, read_all=DAY), "idle", "ok", id="nothing came ever"
        ),
        pytest.param(
            facts_of(behind(200), ingest=60, read_all=HOUR), "behind", "warn", id="slow batches"
        ),
        pytest.param(
            facts_of(behind(700), ingest=60, read_all=HOUR),
            "behind",
            "fail",
            id="batches too slow for the limit",
        ),
        pytest.param(facts_of(behind(400), ingest=500), "not_planned", "warn", id="nothing runs"),
        pytest.param(
            facts_of(behind(700), ingest=800), "not_planned", "fail", id="nothing runs for long"
        ),
        pytest.param(
            replace(facts_of(behind(700), ingest=800), is_paused=True),
            "paused",
            "fail",
            id="paused too long",
        ),
        pytest.param(
            replace(facts_of(behind(200), ingest=60, read_all=HOUR), is_paused=True),
            "paused",
            "warn",
            id="paused just now",
        ),
        pytest.param(
            replace(facts_of(caught_up(), ingest=800), is_paused=True),
            "idle",
            "ok",
            id="paused while nothing waits",
        ),
        pytest.param(
            replace(facts_of(behind(200), ingest=60, read_all=HOUR), pool="frazil_demo_orders"),
            "no_slot",
            "warn",
            id="tasks wait for a pool",
        ),
        pytest.param(
            replace(facts_of(behind(700), ingest=800), pool="frazil_demo_orders", is_paused=True),
            "paused",
            "fail",
            id="paused while tasks wait for a pool",
        ),
        pytest.param(
            replace(RUNNING, staged_at=(ago(30),)), "running", "warn", id="a batch is being staged"
        ),
        pytest.param(
            replace(RUNNING, staged_at=(ago(HOUR),)),
            "not_planned",
            "warn",
            id="an old branch is what a killed run left",
        ),
        pytest.param(
            replace(facts_of(behind(20)), obstacle=BLOCKED), "blocked", "warn", id="just blocked"
        ),
        pytest.param(
            replace(facts_of(behind(700), ingest=800), obstacle=BLOCKED),
            "blocked",
            "fail",
            id="blocked beyond the limit",
        ),
        pytest.param(
            facts_of(caught_up(), behind(601, 1), ingest=700),
            "not_planned",
            "fail",
            id="an idle partition does not hide another",
        ),
    ],
)
def test_i2_cause_and_level(facts: FreshnessFacts, cause: str, level: str) -> None:
    report = judge(facts)

    assert (report.cause, report.level) == (cause, level)
    assert (report.next_step is None) == (level == "ok")


@pytest.mark.parametrize(
    ("error", "cause", "level"),
    [
        (KafkaUnavailableError("down", "wait"), "kafka_down", "fail"),
        (CatalogUnavailableError("down", "wait"), "catalog_down", "fail"),
        (RegistryUnavailableError("down", "wait"), "registry_down", "fail"),
        (StorageError("full", "free space"), "catalog_down", "fail"),
        (ForeignRollbackError("rolled back", "recover"), "halted", "fail"),
        (RetentionGapError("lost", "accept"), "source_error", "fail"),
        (UnknownTopicError("no topic", "create"), "source_error", "fail"),
        (MissingTableError("no table", "run"), "not_started", "warn"),
        (ConnectionMissingError("no connection", "define"), "misconfigured", "fail"),
    ],
)
def test_what_does_not_answer_is_a_cause(error: FrazilError, cause: str, level: str) -> None:
    facts = replace(facts_of(), obstacle=explain_obstacle(error))

    report = judge(facts)

    assert (report.cause, report.level) == (cause, level)
    assert error.facts in report.text
    assert report.next_step == error.next_step


WEEK = Retention(ms=7 * DAY * 1000)


def kept_since(record_age: float, kept_age: float, earliest: int) -> PartitionFacts:
    return replace(behind(record_age), earliest=earliest, first_kept_ms=ago_ms(kept_age))


@pytest.mark.parametrize(
    ("partition", "retention", "seconds", "level"),
    [
        pytest.param(behind(60), WEEK, 7 * DAY - 60, "ok", id="a week of retention"),
        pytest.param(caught_up(), WEEK, None, "ok", id="what is read cannot be lost"),
        pytest.param(behind(60), Retention(), None, "ok", id="retention without end"),
        pytest.param(
            behind(60), Retention(ms=1_000_000), 940, "warn", id="lost before a second alarm"
        ),
        pytest.param(
            behind(13 * YEAR), WEEK, 0, "warn", id="Kafka deletes old event times at once"
        ),
        pytest.param(
            behind(None), Retention(ms=DAY * 1000), DAY - 60, "ok", id="an unknown timestamp"
        ),
        pytest.param(
            kept_since(60, 7260, earliest=30),
            Retention(is_by_bytes=True),
            7200,
            "ok",
            id="retention by bytes takes as long as the kept span before the record",
        ),
        pytest.param(
            kept_since(60, 60, earliest=0),
            Retention(is_by_bytes=True),
            None,
            "ok",
            id="retention by bytes that has not deleted yet",
        ),
        pytest.param(
            kept_since(60, 360, earliest=30),
            Retention(ms=DAY * 1000, is_by_bytes=True),
            300,
            "warn",
            id="the nearer of both retentions",
        ),
    ],
)
def test_d21_time_to_loss(
    partition: PartitionFacts, retention: Retention, seconds: int | None, level: str
) -> None:
    report = judge(facts_of(replace(partition, retention=retention)))

    assert report.time_to_loss_seconds == seconds
    assert report.level == level
    assert (report.next_step is None) == (level == "ok")


@pytest.mark.parametrize(
    ("held_age", "ingest", "cause", "level"),
    [
        pytest.param(5, DAY, "idle", "ok", id="a transaction of seconds is ordinary"),
        pytest.param(200, DAY, "open_transaction", "warn", id="one that stays open"),
        pytest.param(700, DAY, "open_transaction", "fail", id="one that hangs"),
        pytest.param(YEAR, 30, "up_to_date", "ok", id="an old event time in an open one"),
    ],
)
def test_records_behind_an_open_transaction_are_not_nothing(
    held_age: float, ingest: float, cause: str, level: str
) -> None:
    held = replace(caught_up(), held_end=53, first_held_ms=ago_ms(held_age))

    report = judge(facts_of(held, ingest=ingest))

    assert (report.cause, report.level) == (cause, level)
    assert "3 offsets in open transactions" in report.text


def test_the_text_says_what_waits_since_when_and_by_which_limit() -> None:
    report = judge(facts_of(behind(13 * YEAR), ingest=700))

    assert report.text == (
        "orders: not planned; 10 unread offsets, the oldest waiting for 11 min 40 s (warn 3 min, "
        "fail 10 min); record timestamp 4745 d old (event time, not arrival); newest ingest 11 min "
        "40 s ago"
    )
    assert report.lag_offsets == 10
    assert report.record_age_seconds == 13 * YEAR


def test_repeated_attempts_are_named() -> None:
    report = judge(replace(RUNNING, staged_at=(ago(30), ago(90), ago(150))))

    assert "attempt 3 of this batch, earlier ones did not finish" in report.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_spans_of_time_read_as_people_say_them(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


def test_each_partition_has_its_own_time_and_the_text_names_the_one_that_loses_first() -> None:
    partitions = (behind(60), behind(3 * DAY, 1), caught_up(2))

    report = judge(facts_of(*(replace(p, retention=WEEK) for p in partitions)))

    assert report.partitions_covered_seconds == {
        "orders-0": 7 * DAY - 60,
        "orders-1": 4 * DAY,
        "orders-2": 7 * DAY,
    }
    assert "Kafka may delete unread records in 4 d (orders:1)" in report.text


def test_a_new_partition_waits_from_its_first_offset() -> None:
    point = RecoveryPoint(StreamState(1, "b", {"orders": (40,)}, {}, "c"), 7)
    topic = TopicFacts("orders", "t", "c", (PartitionOffsets(5, 50), PartitionOffsets(0, 8)))

    partitions = list_partitions(point, topic)

    assert [(p.next_offset, p.lag) for p in partitions] == [(40, 10), (0, 8)]


@pytest.mark.parametrize(
    ("partitions", "retention", "seconds"),
    [
        pytest.param((caught_up(),), WEEK, 7 * DAY, id="nothing waits: all of the retention"),
        pytest.param((caught_up(), behind(60)), WEEK, 7 * DAY - 60, id="what waits goes first"),
        pytest.param((caught_up(),), Retention(), None, id="nothing is ever deleted"),
        pytest.param(
            (replace(caught_up(), first_kept_ms=ago_ms(HOUR)),),
            Retention(is_by_bytes=True),
            HOUR,
            id="by bytes about as long as the kept records are apart",
        ),
    ],
)
def test_how_long_a_stream_may_stand_still(
    partitions: tuple[PartitionFacts, ...], retention: Retention, seconds: int | None
) -> None:
    report = judge(facts_of(*(replace(p, retention=retention) for p in partitions)))

    assert report.retention_covers_seconds == seconds


@pytest.mark.parametrize(
    ("settings", "retention"),
    [
        ({"retention.ms": "604800000", "retention.bytes": "-1"}, Retention(604_800_000)),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, Retention(None, is_by_bytes=True)),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, Retention()),
        ({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, Retention(1000)),
        ({}, Retention()),
    ],
)
def test_retention_is_read_from_the_topics_settings(
    settings: dict[str, str], retention: Retention
) -> None:
    assert parse_retention(settings) == retention


def merge_of(age: float | None, problem: str | None = None, **more: object) -> MergeFacts:
    """Make facts of a state table whose oldest unmerged change came so many seconds ago."""
    since = ago(age) if age is not None else None
    step = "`frazil merge orders --rebuild`" if problem else None
    return replace(MergeFacts("demo.state", since, problem, step), **more)


HALTED = "order changed"


@pytest.mark.parametrize(
    ("merge", "cause", "level"),
    [
        pytest.param(merge_of(None), "up_to_date", "ok", id="everything is merged"),
        pytest.param(merge_of(60), "up_to_date", "ok", id="a merge that runs now"),
        pytest.param(merge_of(200), "not_merged", "warn", id="a merge that is late"),
        pytest.param(merge_of(5 * DAY), "not_merged", "fail", id="merges that fail for days"),
        pytest.param(merge_of(None, HALTED), "not_merged", "warn", id="halted, nothing waits"),
        pytest.param(merge_of(60, HALTED), "not_merged", "warn", id="halted just now"),
        pytest.param(merge_of(5 * DAY, HALTED), "not_merged", "fail", id="halted for days"),
        pytest.param(
            merge_of(5 * DAY, is_on_request=True), "up_to_date", "ok", id="merged by hand alone"
        ),
        pytest.param(
            merge_of(5 * DAY, HALTED, is_on_request=True),
            "not_merged",
            "warn",
            id="by hand alone, and halted",
        ),
    ],
)
def test_a_state_table_that_is_behind_its_changes_counts(
    merge: MergeFacts, cause: str, level: str
) -> None:
    report = judge(replace(facts_of(caught_up()), merge=merge))

    assert (report.cause, report.level) == (cause, level)
    assert ("demo.state" in report.text) == (level != "ok")
    assert (report.next_step or "").startswith("`frazil merge orders") == (level != "ok")


def test_what_stops_the_stream_itself_comes_before_its_state_table() -> None:
    late = replace(facts_of(behind(700), ingest=800), merge=merge_of(800, HALTED))

    report = judge(late)

    assert (report.cause, report.level, report.merge_clock_seconds) == ("not_planned", "fail", 800)
    assert (
        f"state table demo.state: {HALTED}, the oldest change not merged for 13 min" in report.text
    )
