"""The scorecard is a pure judgement: each line turns red by its own fact, and says the fix."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from lake import make_stream

from frazil.freshness import FreshnessReport
from frazil.letter_report import LetterReport
from frazil.readiness import Line, ReadinessFacts, Scorecard, judge_readiness
from frazil.table_reports import TableReport
from frazil.timeline import Event

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
GOOD = ReadinessFacts(
    stream=make_stream(quality={"suite": "orders"}),
    freshness=FRESH,
    protocol="SASL_SSL",
    is_compacted=False,
    rollback_hours=24,
    expire_hours=72,
    table=TableReport(table="demo.orders", files=10, small_files=2),
    letters=LetterReport(stream="orders", table="t", open=0, resolved=3, groups=()),
    last_drill=DRILL,
    foreign_snapshots=0,
    layout=(),
)


def judge(facts: ReadinessFacts, outage_hours: int = 72) -> dict[str, Line]:
    return {line.name: line for line in judge_readiness(facts, outage_hours)}


def keeps(seconds: int | None) -> ReadinessFacts:
    return replace(GOOD, freshness=FRESH.model_copy(update={"retention_covers_seconds": seconds}))


def test_a_good_stream_has_only_good_lines_with_evidence() -> None:
    lines = judge(GOOD)

    assert {line.mark for line in lines.values()} == {"ok"}
    assert all(line.evidence and line.fix is None for line in lines.values())
    assert len(lines) == 13


LETTERS = LetterReport(stream="orders", table="t", open=4, resolved=0, groups=())


@pytest.mark.parametrize(
    ("facts", "name", "mark", "words"),
    [
        (keeps(71 * 3600), "retention", "fail", "the worst outage is 72 h"),
        (keeps(600), "alerts", "fail", "fails after"),
        (keeps(23 * 3600), "rollback", "warn", "may no longer have all of it"),
        (replace(GOOD, rollback_hours=0), "rollback", "warn", "0 h can be rolled back"),
        (replace(GOOD, is_compacted=True), "replay", "warn", "has compaction"),
        (replace(GOOD, stream=make_stream()), "expectations", "warn", "suite none"),
        (replace(GOOD, letters=LETTERS), "dead letters", "warn", "4 wait"),
        (replace(GOOD, foreign_snapshots=3), "other writers", "warn", "3 snapshots by others"),
        (replace(GOOD, layout=("sort_by is id",)), "layout", "warn", "sort_by is id"),
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
        (replace(GOOD, last_drill=None), "last drill", "warn", "none in the last 90 days"),
        (
            replace(GOOD, last_drill=DRILL.model_copy(update={"facts": {"verdict": "failed"}})),
            "last drill",
            "warn",
            "2026-01-31",
        ),
        (replace(GOOD, protocol="PLAINTEXT"), "authentication", "warn", "PLAINTEXT"),
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

    assert (line.mark, line.evidence.partition(":")[0]) == ("fail", "not known")


def test_only_a_red_line_makes_a_stream_unready() -> None:
    yellow = tuple(judge(replace(GOOD, protocol="PLAINTEXT")).values())
    red = tuple(judge(keeps(3600)).values())

    card = Scorecard(stream="orders", outage_hours=72, lines=yellow)
    assert card.ready
    assert "12 of 13 lines are good" in card.text
    assert "Next: set security.protocol" in card.text
    assert not Scorecard(stream="orders", outage_hours=72, lines=red).ready
