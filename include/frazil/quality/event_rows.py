"""The rows of change events that an expectation about a column checks.

A delete or a truncate has no values but its key, and an update may omit a large value that it left
unchanged. The nulls of such rows say nothing about the source. So an expectation skips deletes,
unless its row condition uses `_op`, and rows whose event did not carry one of its columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from frazil.ledger.keys import KAFKA_COLUMN
from frazil.quality.expectations import Expectation, name_condition_columns
from frazil.quality.sql import SqlColumn
from frazil.streams.change_events import EVENT_COLUMNS, OP, UNAVAILABLE
from frazil.streams.column_types import write_text

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_ROWS_CODE = 1
"""Increase it when other rows are checked: a batch that was blocked before is judged again."""

_WITHOUT_VALUES = ("d", "t")
_OWN_COLUMNS = frozenset({*EVENT_COLUMNS, KAFKA_COLUMN})


class CheckedRows(NamedTuple):
    """The rows that are checked: with deletes or without, if their events carry these columns."""

    with_deletes: bool
    carried: tuple[str, ...]


class EventColumns:
    """The columns to read beside an expectation's own, to find the rows that it checks."""

    columns = (OP, UNAVAILABLE)


def find_checked_rows(expectation: Expectation) -> CheckedRows:
    """Return which rows an expectation checks; one about no column of the source checks all."""
    carried = tuple(name for name in expectation.domain if name not in _OWN_COLUMNS)
    chosen = name_condition_columns(expectation.kwargs.get("row_condition"))
    return CheckedRows(with_deletes=not carried or OP in chosen, carried=carried)


def write_checked_rows(expectation: Expectation, columns: Mapping[str, SqlColumn]) -> str:
    """Write the condition of the rows that an expectation checks; "" if it checks all."""
    checked = find_checked_rows(expectation)
    operations = ", ".join(map(write_text, _WITHOUT_VALUES))
    tests = [] if checked.with_deletes else [f"{columns[OP].sql} NOT IN ({operations})"]
    if checked.carried:
        names = ", ".join(map(write_text, checked.carried))
        is_lacking = f"arrays_overlap({columns[UNAVAILABLE].sql}, array({names}))"
        tests.append(f"NOT coalesce({is_lacking}, false)")
    return " AND ".join(tests)


def split_by_rows(
    expectations: Iterable[Expectation], rows: "pa.Table"
) -> Iterator[tuple[tuple[Expectation, ...], "pa.Table"]]:
    """Yield the expectations that check the same rows, with these rows, which may be none."""
    ordered = sorted(expectations, key=find_checked_rows)
    for checked, group in groupby(ordered, key=find_checked_rows):
        yield tuple(group), _select_rows(checked, rows)


def _select_rows(checked: CheckedRows, rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - slow

    operations, lacking = rows[OP].to_pylist(), rows[UNAVAILABLE].to_pylist()
    mask = [
        (checked.with_deletes or operation not in _WITHOUT_VALUES)
        and not {*checked.carried} & {*(names or ())}
        for operation, names in zip(operations, lacking, strict=True)
    ]
    return rows.filter(pa.array(mask, pa.bool_()))
