"""The scorecard is a pure judgement: each line turns red by its own fact, and says the fix."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support.lake import Lake, make_stream

from frazil.events import Event
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.maintenance.messages import TableReport
from frazil.observability.dead_letter_report import DeadLetterReport
from frazil.observability.freshness import FreshnessReport
from frazil.observability.readiness import ReadinessCheck, Scorecard, judge_readiness
from frazil.observability.readiness_facts import (
    Authentication,
    ReadinessFacts,
    TableChecks,
    describe_catalog,
    describe_kafka,
    describe_registry,
    find_kept_hours,
)
from frazil.state_tables.state_status import StateStatus

WEEK = 7 * 24 * 3600
FRESH = FreshnessReport(
    stream="orders",
    table="demo.orders",
    level="ok",
    cause="up_to_date",
    stream_clock_seconds=None,
    table_clock_seconds=10,
    record_age_seconds=None,
    lag_offsets=0,
    time_to_loss_seconds=None,
    retention_covers_seconds=WEEK,
    text="up to date",
    next_step=None,
)
DRILL = Event(
    event_id="drill:replay:run-1",
    at=datetime(2026, 1, 31, tzinfo=UTC),
    stream="orders",
    table="demo.orders",
    kind="drill",
    text="replay: a known range is read again: passed",
    facts={"verdict": "passed"},
)
FAILED = DRILL.model_copy(
    update={
        "at": datetime(2026, 1, 30, tzinfo=UTC),
        "text": "catalog_down: failed",
        "facts": {"verdict": "failed"},
    }
)
GOOD = ReadinessFacts(
    watch_age_seconds=30.0,
    stream=make_stream(quality={"suite": "orders"}),
    freshness=FRESH,
    authentication=(Authentication("Kafka: SASL_SSL (PLAIN)", identifies_client=True),),
    is_compacted=False,
    rollback_hours=24,
    expire_hours=72,
    table=TableReport(table="demo.orders", files=10, small_files=2),
    dead_letters=DeadLetterReport(stream="orders", table="t", open=0, resolved=3, groups=()),
    drills={"replay": DRILL},
    checks=TableChecks(),
)


def judge(facts: ReadinessFacts, outage_hours: int = 72) -> dict[str, ReadinessCheck]:
    return {line.name: line for line in judge_readiness(facts, outage_hours)}


def keeps(seconds: int | None) -> ReadinessFacts:
    return replace(GOOD, freshness=FRESH.model_copy(update={"retention_covers_seconds": seconds}))


def test_a_good_stream_has_only_good_lines_with_evidence() -> None:
    lines = judge(GOOD)

    assert {line.mark for line in lines.values()} == {"ok"}
    assert all(line.evidence and line.fix is None for line in lines.values())
    assert len(lines) == 14


OPEN = replace(
    GOOD, authentication=(*GOOD.authentication, describe_catalog({"uri": "http://c:8181"}))
)


def stands(**checks: object) -> ReadinessFacts:
    return replace(GOOD, checks=replace(GOOD.checks, **checks))  # type: ignore[arg-type]


LETTERS = DeadLetterReport(stream="orders", table="t", open=4, resolved=0, groups=())


@pytest.mark.parametrize(
    ("facts", "name", "mark", "words"),
    [
        (keeps(71 * 3600), "retention", "fail", "longest outage to survive: 72 h"),
        (keeps(600), "alerts", "fail", "fails after"),
        (replace(GOOD, watch_age_seconds=None), "alerts", "warn", "it never ran on this machine"),
        (replace(GOOD, watch_age_seconds=7200.0), "alerts", "warn", "it last ran 2"),
        (keeps(23 * 3600), "rollback", "warn", "may not have all of them"),
        (replace(GOOD, rollback_hours=0), "rollback", "warn", "possible for 0 h"),
        (replace(GOOD, is_compacted=True), "replay", "warn", "orders: compacted"),
        (replace(GOOD, stream=make_stream()), "expectations", "warn", "suite none"),
        (replace(GOOD, dead_letters=LETTERS), "dead letters", "warn", "4 open"),
        (stands(foreign_snapshots=3), "other writers", "warn", "3 snapshots of other writers"),
        (stands(layout=("sort_by is id",)), "layout", "warn", "sort_by is id"),
        (stands(kept_hours=23), "rollback", "warn", "present: 23 h"),
        (
            replace(GOOD, pending_changes=("add_column city: string",)),
            "schema decisions",
            "warn",
            "pending: add_column city: string",
        ),
        (
            replace(GOOD, unmapped_fields=("zip", "place.at")),
            "fields",
            "warn",
            "without a column in the newest batch: zip, place.at",
        ),
        (
            replace(GOOD, stream=make_stream(schema={"other": "auto"})),
            "schema decisions",
            "warn",
            "schema.other is auto",
        ),
        (
            replace(GOOD, table=TableReport(table="t", files=150, small_files=120)),
            "small files",
            "warn",
            "120 of 150",
        ),
        (replace(GOOD, drills={}), "last drill", "warn", "none in the last 90 days"),
        (
            replace(GOOD, drills={"catalog_down": FAILED, "replay": DRILL}),
            "last drill",
            "fail",
            "2026-01-30: catalog_down: failed",
        ),
        (OPEN, "authentication", "warn", "Kafka: SASL_SSL (PLAIN); catalog"),
        (
            replace(
                GOOD,
                freshness=FRESH.model_copy(
                    update={"level": "fail", "text": "halted", "next_step": "frazil status"}
                ),
            ),
            "freshness",
            "fail",
            "halted",
        ),
    ],
)
def test_each_line_turns_by_its_own_fact(
    facts: ReadinessFacts, name: str, mark: str, words: str
) -> None:
    line = judge(facts)[name]

    assert line.mark == mark
    assert words in line.evidence
    assert line.fix
    others = {n for n, each in judge(facts).items() if each.mark != "ok"} - {name}
    assert others <= {"retention", "rollback", "expectations"}


def test_what_is_kept_for_ever_covers_any_outage() -> None:
    assert judge(keeps(None), outage_hours=10_000)["retention"].mark == "ok"


def test_what_could_not_be_asked_is_not_called_kept() -> None:
    unknown = FRESH.model_copy(update={"lag_offsets": None, "retention_covers_seconds": None})

    line = judge(replace(GOOD, freshness=unknown))["retention"]

    assert (line.mark, line.evidence.partition(":")[0]) == ("fail", "unknown")


def test_only_a_red_line_makes_a_stream_unready() -> None:
    yellow = tuple(judge(OPEN).values())
    red = tuple(judge(keeps(3600)).values())

    card = Scorecard(stream="orders", outage_hours=72, lines=yellow)
    assert card.ready
    assert "13 of 14 checks ok" in card.text
    assert "Next: set credentials in the connections" in card.text
    assert not Scorecard(stream="orders", outage_hours=72, lines=red).ready


def test_each_difference_of_the_layout_is_a_line_of_its_own() -> None:
    both = stands(layout=("sort_by is id, the table has none", "property a is 1, the table has 2"))

    told = [line.evidence for line in judge_readiness(both, 72) if line.name == "layout"]

    assert told == list(both.checks.layout)


@pytest.mark.parametrize("hours", [24, 25, None], ids=["just", "more", "all"])
def test_snapshots_of_the_whole_window_are_enough(hours: int | None) -> None:
    assert judge(stands(kept_hours=hours))["rollback"].mark == "ok"


def test_what_somebody_else_expired_shortens_the_way_back(lake: Lake) -> None:
    lake.ingest(2, 2)
    lake.ingest(4, 4)
    archive_all_entries(lake.store, lake.history)
    head = lake.history.entries[lake.history.head or 0].committed_at_ms
    assert find_kept_hours(lake.history, head + 3 * 3_600_000) is None

    lake.table.maintenance.expire_snapshots().older_than(datetime(2999, 1, 1, tzinfo=UTC)).commit()

    assert find_kept_hours(lake.history, head + 3 * 3_600_000) == 3


@pytest.mark.parametrize(
    ("access", "is_known"),
    [
        (describe_kafka({}), False),
        (describe_kafka({"security.protocol": "SSL"}), False),
        (describe_kafka({"security.protocol": "ssl", "ssl.keystore.location": "k.p12"}), True),
        (describe_kafka({"security.protocol": "SSL", "ssl.certificate.pem": "…"}), True),
        (describe_kafka({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}), True),
        (describe_catalog({"type": "sql", "uri": "sqlite:////x/c.db"}), True),
        (describe_catalog({"type": "sql", "uri": "postgresql+psycopg2://db/c"}), False),
        (describe_catalog({"type": "sql", "uri": "postgresql+psycopg2://u:p@db/c"}), True),
        (describe_catalog({"uri": "https://c", "s3.secret-access-key": "the storage's"}), False),
        (describe_catalog({"uri": "https://c", "credential": "id:secret"}), True),
        (describe_catalog({"uri": "https://c", "rest.sigv4-enabled": "true"}), True),
        (describe_catalog({"type": "glue"}), True),
        (describe_registry({"url": "https://r"}), False),
        (describe_registry({"url": "https://u:p@r"}), True),
        (describe_registry({"url": "https://r", "bearer.auth.token": "t"}), True),
    ],
    ids=lambda value: value.text if isinstance(value, Authentication) else "",
)
def test_who_asks_is_known_where_the_connection_says_so(
    access: Authentication, *, is_known: bool
) -> None:
    assert access.identifies_client == is_known
    assert is_known == ("no authentication" not in access.text)


def test_a_state_table_that_does_not_follow_its_changes_is_named() -> None:
    behind = StateStatus(table="shop.orders", rows=3, waiting_batches=10)
    halted = StateStatus(table="shop.orders", problem="order changed since the last merge")
    following = StateStatus(table="shop.orders", rows=3, waiting_batches=1)

    states = (behind, halted, following)
    found = [judge(replace(GOOD, state_table=each))["state table"] for each in states]

    assert [line.mark for line in found] == ["warn", "warn", "ok"]
    assert "frazil merge orders" in str(found[0].fix)
    assert "state table" not in judge(GOOD)
