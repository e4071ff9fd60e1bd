"""Which rows are older than a column, by the ledger and the schemas of the table."""

import pytest

from frazil.ledger.history import Step, list_spans
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import LedgerEntry, keys
from frazil.recovery.value_audit import SchemaFacts, find_older, find_steps_without

FACTS = SchemaFacts(
    columns={1: "id", 2: "at", 3: "at.y", 4: "city"},
    fields={0: frozenset({1, 2}), 1: frozenset({1, 2, 3}), 2: frozenset({1, 2, 3, 4})},
    by_snapshot={11: 0, 13: 2},
    changes=((200, 1), (300, 2)),
)


def step_of(number: int, at_ms: int, start: int, end: int, kind: str = keys.INGEST) -> Step:
    ranges = {"orders": {0: OffsetRange(start, end)}}
    return Step(LedgerEntry(number, None, at_ms, {}), kind, None, None, ranges)


@pytest.mark.parametrize(
    ("step", "columns"),
    [
        pytest.param(step_of(11, 900, 0, 5), {"at.y", "city"}, id="by the snapshot's schema"),
        pytest.param(step_of(13, 100, 0, 5), set(), id="by the newest schema"),
        pytest.param(step_of(9, 100, 0, 5), {"at.y", "city"}, id="expired, before all changes"),
        pytest.param(step_of(9, 250, 0, 5), {"city"}, id="expired, between two changes"),
        pytest.param(step_of(9, 300, 0, 5), set(), id="expired, after all changes"),
    ],
)
def test_a_step_lacks_the_columns_that_its_schema_has_not(step: Step, columns: set[str]) -> None:
    assert find_steps_without([step], FACTS).keys() == columns


def test_a_schema_that_was_removed_has_all_columns() -> None:
    facts = SchemaFacts(FACTS.columns, {2: FACTS.fields[2]}, {11: 0}, ())

    assert find_steps_without([step_of(11, 100, 0, 5)], facts) == {}


def test_the_newest_step_that_published_an_offset_decides() -> None:
    steps = (
        step_of(11, 100, 0, 10),
        step_of(13, 400, 10, 20),
        step_of(13, 500, 3, 6, keys.REPLAY),
    )
    without = find_steps_without(steps, FACTS)
    ranges = {"orders": {0: OffsetRange(2, 15)}}

    older = find_older(ranges, list_spans(steps), without)

    assert older == {
        "at.y": {"orders": {0: [(2, 3), (6, 10)]}},
        "city": {"orders": {0: [(2, 3), (6, 10)]}},
    }
