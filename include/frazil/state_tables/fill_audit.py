"""AUDIT of filled values: search older changes for values that the newest one did not carry."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.ledger.keys import KAFKA_COLUMN
from frazil.state_tables.merge_rules import FLATTENED_OPERATION
from frazil.streams.change_events import SOURCE, UNAVAILABLE

_OLD_KEY = "__debezium.oldkey"
_OWN = (KAFKA_COLUMN, SOURCE, UNAVAILABLE, FLATTENED_OPERATION)
"""Columns that describe the newest change itself."""


class _Events:
    """The change events of a table, sorted by key and order; each is named by its index."""

    def __init__(self, ordered: pa.Table, ids: Sequence[str]) -> None:
        """Read each event's key, operation, position and headers, and the columns that it lacks."""
        self.lacks = ordered[UNAVAILABLE].to_pylist()
        self.operations = [text.lower() for text in ordered[FLATTENED_OPERATION].to_pylist()]
        self.keys = list(zip(*(ordered[name].to_pylist() for name in ids), strict=True))
        source = ordered[SOURCE].combine_chunks()
        parts = [pc.struct_field(source, name).to_pylist() for name in ("db", "lsn")]
        self.positions = list(zip(*parts, strict=True))
        self.headers = pc.struct_field(ordered[KAFKA_COLUMN].combine_chunks(), "headers")
        self.deletes: dict[tuple[str | None, int], list[int]] = {}
        for index, operation in enumerate(self.operations):
            if operation == "d" and self.positions[index][1] is not None:
                self.deletes.setdefault(self.positions[index], []).append(index)

    def find_older(self, index: int) -> int | None:
        """Return the change of the same row before this one; None if this one created the row.

        Kafka may hold a delete twice: what precedes the first one was the row.
        """
        is_repeatable = self.operations[index] == "d"
        if self._is_moved(index):
            ends = self.deletes.get(self.positions[index], [])
            if len({self.keys[each] for each in ends}) != 1:
                return None
            # The first of two equal deletes ended the row.
            index = ends[0]
        older = index - 1
        if older < 0 or self.keys[older] != self.keys[index]:
            return None
        return older if is_repeatable or self.operations[older] != "d" else None

    def _is_moved(self, index: int) -> bool:
        headers = self.headers[index].as_py() or []
        is_created = self.operations[index] == "c"
        return is_created and any(each["key"] == _OLD_KEY for each in headers)

    def find_value(self, index: int, name: str) -> int | None:
        """Return the change that carried the value of a column for the row of this one."""
        seen: set[int] = set()
        at: int | None = index
        while at is not None and at not in seen:
            seen.add(at)
            if self.operations[at] != "d" and name not in (self.lacks[at] or ()):
                return at
            at = self.find_older(at)
        return None


def fill_newest(ordered: pa.Table, is_last: npt.NDArray[np.bool_], ids: Sequence[str]) -> pa.Table:
    """Return the newest changes of each key, filled; deletes have the values of their rows.

    The changes are sorted by key, then by their order.
    """
    newest = np.flatnonzero(is_last)
    events = _Events(ordered, ids)
    filled = {}
    for name in ordered.column_names:
        places: list[int | None] = [*newest.tolist()]
        for row, index in enumerate(newest.tolist()):
            is_lost = events.operations[index] == "d" and name not in {*ids, *_OWN}
            if is_lost or name in (events.lacks[index] or ()):
                places[row] = events.find_value(index, name)
        filled[name] = ordered[name].take(pa.array(places, pa.int64()))
    return pa.table(filled, schema=ordered.schema)
