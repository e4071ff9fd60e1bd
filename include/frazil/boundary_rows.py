"""The last records that were read, as a table and its dead letters know them.

They keep a record's timestamp and key beside its offset. A batch says how many records it read: one
whose rows and letters are fewer is no evidence. Records of two clusters may have one coordinate, so
rows come from the files of their batch while its snapshot is kept.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from frazil import keys
from frazil.audit_ledger import Step
from frazil.boundary import NO_PRINTS, WANTED_RECORDS, Known, make_print
from frazil.coordinates import Partition
from frazil.packed_texts import unpack
from frazil.staged_frame import read_files, read_staged_frame
from frazil.tables import translated_errors

_MAX_BATCHES = 20
_TYPES: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
}
_COLUMNS = tuple(f"{keys.KAFKA_COLUMN}.{name}" for name in _TYPES)


@dataclass(frozen=True)
class _Columns:
    """The metadata of records, as far as it is compared."""

    columns: tuple[str, ...] = _COLUMNS


@dataclass
class LedgerRecords:
    """Records that the table and its dead letters hold, batch by batch, newest first."""

    table: Table
    letters: Table | None
    steps: tuple[Step, ...]
    _read: dict[int, pa.Table] = field(default_factory=dict)

    def find_known(self, partition: Partition, old_next: int) -> Known:
        """Find the last records that were read before an offset, without a gap among them."""
        expected, batches = old_next, 0
        parts: list[pa.Table] = []
        is_complete = True
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            start, end = _find_move(step, partition)
            if end is None or start == end:
                continue
            if end != expected or step.kind not in {keys.INGEST, keys.MOVE}:
                break
            if step.kind == keys.INGEST and _count_read(step, partition):
                rows = self._fetch(index, partition)
                batches += 1
                is_whole = pc.count_distinct(rows["offset"]).as_py() == len(rows)
                if not is_whole or len(rows) != _count_read(step, partition):
                    is_complete = bool(parts)
                    parts = parts or [rows]
                    break
                parts.insert(0, rows)
            expected = start
            if _is_enough(parts) or batches == _MAX_BATCHES:
                break
        return _know(parts, is_complete=is_complete)

    def _fetch(self, index: int, partition: Partition) -> pa.Table:
        """Fetch a batch's records of one partition, ascending."""
        if index not in self._read:
            self._read[index] = self._fetch_batch(self.steps[index])
        rows = self._read[index]
        is_own = pc.and_(
            pc.equal(rows["topic"], partition[0]), pc.equal(rows["partition"], partition[1])
        )
        moved = self.steps[index].ranges[partition[0]][partition[1]]
        inside = pc.and_(
            pc.greater_equal(rows["offset"], moved.start), pc.less(rows["offset"], moved.end)
        )
        return rows.filter(pc.and_(is_own, inside)).sort_by("offset")

    def _fetch_batch(self, step: Step) -> pa.Table:
        """Read what a batch published: its rows and its letters, of all partitions."""
        snapshot_id = step.entry.snapshot_id
        if self.table.snapshot_by_id(snapshot_id) is not None:
            rows = read_staged_frame(self.table, snapshot_id, [_Columns()])
        else:
            rows = self._find_in_head(step)
        found = [_flatten(rows)]
        if self.letters is not None and keys.ATTEMPT in step.entry.summary:
            attempt = step.entry.summary[keys.ATTEMPT]
            with translated_errors(f"reading dead letters of {attempt}"):
                scan = self.letters.scan(
                    row_filter=f"attempt = '{attempt}'", selected_fields=_COLUMNS
                )
                found.append(_flatten(scan.to_arrow()))
        return pa.concat_tables(found)

    def _find_in_head(self, step: Step) -> pa.Table:
        """Find a batch's rows by their coordinates, where its snapshot has expired."""
        topic, partition, offset = _COLUMNS[:3]
        wanted = " or ".join(
            f"({topic} = '{name}' and {partition} = {number} and {offset} >= {span.start} "
            f"and {offset} < {span.end})"
            for name, parts in step.ranges.items()
            for number, span in parts.items()
        )
        with translated_errors(f"reading rows of {'.'.join(self.table.name())}"):
            tasks = self.table.scan(row_filter=wanted).plan_files()
            return read_files(self.table, self.table.schema().select(*_COLUMNS), tasks)


def _find_move(step: Step, partition: Partition) -> tuple[int, int | None]:
    """Give a partition's next offset before and after a step; None after it says nothing."""
    topic, number = partition
    before, after = (
        state.offsets.get(topic, ()) if state else () for state in (step.before, step.after)
    )
    start = before[number] if number < len(before) else 0
    return start, after[number] if number < len(after) else None


def _count_read(step: Step, partition: Partition) -> int:
    counts = json.loads(unpack(step.entry.summary.get(keys.COUNTS, "{}")))
    read, _ = counts.get(partition[0], {}).get(str(partition[1]), (0, 0))
    return int(read)


def _flatten(rows: pa.Table) -> pa.Table:
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    columns = {name: pc.struct_field(kafka, name) for name in _TYPES}
    instants = columns["timestamp"]
    columns["timestamp"] = instants.cast(pa.timestamp("ms", instants.type.tz), safe=False)
    return pa.table({name: columns[name].cast(kind) for name, kind in _TYPES.items()})


def _is_enough(parts: list[pa.Table]) -> bool:
    """Say whether these are enough records, and not all of one instant, which shows little."""
    if sum(map(len, parts)) < WANTED_RECORDS:
        return False
    return len(pc.unique(pa.concat_tables(parts)["timestamp"])) > 1


def _know(parts: list[pa.Table], *, is_complete: bool) -> Known:
    """Print the last of these records, as far back as another instant."""
    rows = pa.concat_tables(parts) if parts else pa.table({"timestamp": [], "key": []})
    times = rows["timestamp"].to_numpy()
    others = np.flatnonzero(times != times[-1]) if len(rows) else NO_PRINTS
    start = max(0, len(rows) - WANTED_RECORDS)
    rows = rows.slice(min(start, int(others[-1])) if len(others) else start)
    instants = [-1 if at is None else at for at in rows["timestamp"].to_pylist()]
    prints = [make_print(*each) for each in zip(instants, rows["key"].to_pylist(), strict=True)]
    return Known(
        before=np.array(prints, np.int64),
        after=NO_PRINTS,
        source="rows and dead letters, by timestamp and key",
        is_complete=is_complete,
        floor_ms=min(instants, default=None),
        instants_ms=np.array(instants, np.int64),
    )
