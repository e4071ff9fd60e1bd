"""What the audit expects of change events is the source's table."""

import random

import numpy as np
import pyarrow as pa
import pytest
from faults.state_auditor import Fold, StateRules
from support.event_lake import EVENTS, LARGE, Event, EventLake, Source

from frazil.iceberg.table_schema import build_table_schema
from frazil.state_tables.fill_audit import fill_newest
from frazil.streams.models import Stream

STREAM = Stream.model_validate(
    {
        "stream": "orders",
        "owner": "me",
        "source": {"topic": "orders"},
        "table": {"name": "shop.orders", "mode": "upsert", "id_columns": ["id"]},
        **EVENTS,
    }
)
SCHEMA = build_table_schema(STREAM.parsed_columns).as_arrow()


def fold(events: list[Event]) -> dict[int, dict[str, object]]:
    """Return the newest changes by key, in which deletes stay."""
    rows = [
        EventLake.make_row(event, {"topic": "orders", "partition": 0, "offset": offset})
        for offset, event in enumerate(events)
    ]
    rows.sort(key=lambda row: (row["id"], row["_kafka"]["offset"]))  # type: ignore[index]
    keys = [row["id"] for row in rows]
    is_last = np.array([a != b for a, b in zip(keys, [*keys[1:], None], strict=True)], dtype=bool)
    newest = fill_newest(pa.Table.from_pylist(rows, SCHEMA), is_last, ["id"]).to_pylist()
    return {row["id"]: row for row in newest}


@pytest.mark.parametrize("seed", range(40))
def test_the_fold_is_the_source_table(seed: int) -> None:
    source, sent = Source(random.Random(seed)), list[Event]()
    for _ in range(4):
        sent += source.change(30)
        sent += source.repeat(8) if seed % 2 else source.snapshot()

    rows = {key: row for key, row in fold(sent).items() if row["_op"] != "d"}
    found = {key: {name: row[name] for name in ("name", *LARGE)} for key, row in rows.items()}
    assert found == source.rows
    assert fold_independently(sent) == source.rows


def fold_independently(events: list[Event]) -> dict[object, dict[str, object]]:
    """Return the rows that the independent auditor expects."""
    rules = StateRules("orders", "shop.orders", ("id",), operation="_op", has_events=True)
    fields = dict.fromkeys(("name", *LARGE))
    rows = [
        fields | EventLake.make_row(event, {"topic": "orders", "partition": 0, "offset": offset})
        for offset, event in enumerate(events)
    ]
    found = Fold(rules, rows)
    return {
        key[0]: {name: row[name] for name in fields}
        for key, row in found.winners()
        if not found.is_delete(row)
    }


FULL = {"name": "n", "doc": "d", "words": ["w"], "raw": b"r"}
MOVE = Event(2, "c", 5, values={"name": "moved"}, lacks=LARGE, moved=True)


def test_a_value_from_before_a_delete_fills_nothing() -> None:
    update = Event(1, "u", 3, values={"name": "new"}, lacks=LARGE)

    found = fold([Event(1, "c", 1, values=FULL), Event(1, "d", 2), update])

    assert found[1]["doc"] is None


def test_a_row_whose_old_key_is_not_deleted_yet_stays_empty() -> None:
    found = fold([Event(1, "c", 1, values=FULL), MOVE])

    assert (found[2]["doc"], found[2]["name"]) == (None, "moved")


def test_an_own_value_from_before_the_move_fills_nothing() -> None:
    other = Event(1, "c", 2, values={**FULL, "doc": "right"})
    log = [Event(2, "c", 1, values=FULL), Event(2, "d", 3), other, Event(1, "d", 5), MOVE]

    assert fold(log)[2]["doc"] == "right"


@pytest.mark.parametrize(
    ("one", "other"), [("shop", "mall"), ("shop", None), (None, "shop"), ("", None)]
)
def test_equal_positions_of_two_databases_are_two(one: str | None, other: str | None) -> None:
    log = [
        event
        for key, name in ((1, one), (11, other))
        for event in (
            Event(key, "c", 1, values={**FULL, "doc": f"of {name}"}, db=name),
            Event(key, "d", 5, db=name),
            Event(key + 1, "c", 5, values={"name": "moved"}, lacks=LARGE, moved=True, db=name),
        )
    ]

    found = fold(log)
    assert [found[key]["doc"] for key in (2, 12)] == [f"of {one}", f"of {other}"]
    assert [fold_independently(log)[key]["doc"] for key in (2, 12)] == [f"of {one}", f"of {other}"]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_marked_delete_keeps_the_values_of_its_row(times: int) -> None:
    found = fold([Event(1, "c", 1, values=FULL), *[Event(1, "d", 2)] * times])

    assert {name: found[1][name] for name in FULL} == FULL
