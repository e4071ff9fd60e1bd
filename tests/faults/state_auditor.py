"""Recompute a state table from its change table and compare; like `auditor.py` without the product.

The auditor reads both tables, the delete memory and the merge position through PyIceberg alone, and
folds the changes in plain Python, change by change.

M1 the state has the newest change of each key, and its delete memory the deletes that won
M2 the merge position is a snapshot on the ancestry of the change table's main
M4 the counts of each merge add up
M5 each row of the state has its change in the change table
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from faults.audit_values import parse_taken

Row = dict[str, Any]
Key = tuple[object, ...]
Place = tuple[str, int, int]
Finding = tuple[str, str]
DELETES = {"d", "delete"}
OWN = {"_kafka", "_source", "_op", "_unavailable"}
EPOCH = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
"""When a row was deleted whose delete has no timestamp."""
APPLIED = ("inserted", "updated", "deleted", "absent", "superseded", "stale")


@dataclass(frozen=True)
class StateRules:
    """What a stream file says of a state table; `operation` is the column that tells deletes."""

    stream: str
    state: str
    ids: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    operation: str | None = None
    marks: bool = False
    has_events: bool = False


def place_of(row: Row) -> Place:
    """Return where in Kafka a change stands."""
    at = row["_kafka"]
    return at["topic"], at["partition"], at["offset"]


class Fold:
    """The changes of each key, oldest first."""

    def __init__(self, rules: StateRules, rows: list[Row]) -> None:
        """Sort the changes; note which delete ended the life of a row at each source position."""
        self.rules = rules
        self.places = {place_of(row) for row in rows}
        self.by_key: defaultdict[Key, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=self._order):
            self.by_key[self.key_of(row)].append(row)
        self.ends: dict[tuple[object, object], dict[Key, int]] = {}
        if rules.has_events:
            for key, changes in self.by_key.items():
                for index, row in enumerate(changes):
                    if self.is_delete(row) and (row["_source"] or {}).get("lsn") is not None:
                        self.ends.setdefault(position_of(row), {}).setdefault(key, index)

    def _order(self, row: Row) -> tuple[object, ...]:
        topic, partition, offset = place_of(row)
        if not self.rules.sequence:
            return (offset, partition)
        source = {f"_source.{name}": value for name, value in (row.get("_source") or {}).items()}
        of_row = {**row, "_kafka.timestamp": row["_kafka"].get("timestamp"), **source}
        sequence = [of_row.get(name) for name in self.rules.sequence]
        # A change without a value, such as a record without a timestamp, is older than all others.
        sortable = ((value is not None, value or 0) for value in sequence)
        return (*sortable, topic, partition, offset)

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.rules.ids)

    def is_delete(self, row: Row) -> bool:
        return self.rules.operation is not None and row[self.rules.operation].lower() in DELETES

    def winners(self) -> Iterator[tuple[Key, Row]]:
        """Yield the newest change of each key; of events with the values that it did not carry."""
        for key, changes in self.by_key.items():
            winner = changes[-1]
            if self.rules.has_events:
                winner = {**winner, **self._live_values(key, len(changes) - 1)}
            yield key, winner

    def _live_values(self, key: Key, index: int) -> Row:
        """Return what the changes of a row's life carried, the newest first.

        A marked delete keeps the values of the row that it ended, also where it came again.
        """
        found: Row = {}
        seen: set[tuple[Key, int]] = set()
        while index >= 0 and self.is_delete(self.by_key[key][index]):
            index -= 1
        while index >= 0 and (key, index) not in seen:
            seen.add((key, index))
            row = self.by_key[key][index]
            if self.is_delete(row):
                break
            lacks = {*(row["_unavailable"] or ()), *OWN, *self.rules.ids}
            for name, value in row.items():
                if name not in lacks:
                    found.setdefault(name, value)
            if is_moved(row):
                ended = self.ends.get(position_of(row), {})
                if len(ended) != 1:
                    break
                ((key, index),) = ended.items()
            index -= 1
        columns = {name for name in self.by_key[key][0] if name not in OWN}
        return {name: found.get(name) for name in columns - {*self.rules.ids}}


def position_of(row: Row) -> tuple[object, object]:
    """Return where in its source a change was made: the database, and the position in its log."""
    return row["_source"].get("db"), row["_source"]["lsn"]


def is_moved(row: Row) -> bool:
    """Return whether an event gave a row a key that it did not have before."""
    headers = row["_kafka"].get("headers") or []
    return row["_op"].lower() == "c" and any(h["key"] == "__debezium.oldkey" for h in headers)


def audit_state_table(catalog: Catalog, rules: StateRules) -> list[Finding]:
    """Return what is wrong with a state table; nothing if it is the fold of its changes."""
    state = catalog.load_table(rules.state)
    changes = catalog.load_table(f"{rules.state}__changes")
    findings = list(find_unbalanced(state, rules))
    position = find_position(state, rules)
    if position is None:
        count = state.scan().to_arrow().num_rows
        return [*findings, *([("M2", f"{count} rows without a merge position")] if count else [])]
    if position["snapshot_id"] not in list_ancestors(changes):
        return [*findings, ("M2", f"merge position {position['snapshot_id']} is not on main")]
    rows = changes.scan(snapshot_id=position["snapshot_id"]).to_arrow().to_pylist()
    removed = read_removed(changes, position)
    fold = Fold(rules, [row for row in rows if place_of(row) not in removed])
    findings += compare(fold, state.scan().to_arrow().to_pylist())
    if not rules.marks:
        findings += find_forgotten(catalog, fold, position["memory"])
    return findings


def read_removed(changes: Table, position: Mapping[str, Any]) -> set[Place]:
    """Read which changes left later: by erasures that the state has followed, or by trimming.

    Trimming takes changes that the state of a position had folded: this one, or an older one.
    """
    found: set[Place] = set()
    line = list_ancestors(changes)
    since = line[: line.index(position["snapshot_id"])]
    for number in since:
        snapshot = changes.snapshot_by_id(number)
        if snapshot is None or snapshot.summary is None:
            continue
        summary = snapshot.summary.additional_properties
        folded = summary.get("frazil.folded") if summary.get("frazil.kind") == "trim" else None
        is_behind = folded is not None and int(folded) not in since
        if number in position.get("erased", ()) or is_behind:
            taken = parse_taken(summary)
            found |= {(*at, int(offset)) for at, offsets in taken.items() for offset in offsets}
    return found


def list_ancestors(table: Table) -> list[int]:
    """List the snapshots on main, newest first."""
    found, at = list[int](), table.current_snapshot()
    while at is not None:
        found.append(at.snapshot_id)
        parent = at.parent_snapshot_id
        at = None if parent is None else table.snapshot_by_id(parent)
    return found


def read_positions(state: Table, rules: StateRules) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the merge positions on main, newest first."""
    for number in list_ancestors(state):
        snapshot = state.snapshot_by_id(number)
        summary = snapshot.summary if snapshot is not None else None
        text = (
            summary.additional_properties.get(f"frazil.merge.{rules.stream}") if summary else None
        )
        if text is not None:
            yield number, json.loads(text)


def find_position(state: Table, rules: StateRules) -> Mapping[str, Any] | None:
    """Return the newest merge position."""
    return next((position for _, position in read_positions(state, rules)), None)


def find_unbalanced(state: Table, rules: StateRules) -> Iterator[Finding]:
    """Yield the merges whose counts do not add up."""
    for number, position in read_positions(state, rules):
        counts = position["counts"]
        if counts["changes"] != sum(counts[name] for name in APPLIED):
            yield "M4", f"merge snapshot {number}: {counts}"


def compare(fold: Fold, rows: list[Row]) -> Iterator[Finding]:
    """Yield the keys that have no row, more than one, one too many, or another one than theirs."""
    have: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        have[fold.key_of(row)].append(row)
    want = {key: row for key, row in fold.winners() if fold.rules.marks or not fold.is_delete(row)}
    for key in want.keys() - have.keys():
        yield "M1", f"no row of the change at {place_of(want[key])}"
    for key, found in have.items():
        if len(found) > 1:
            yield "M1", f"{len(found)} rows with the key of the change at {place_of(found[0])}"
        if key not in want:
            is_there = place_of(found[0]) in fold.places
            says = "a row of a deleted or unknown key" if is_there else "a row without its change"
            yield "M1" if is_there else "M5", f"{says}, from {place_of(found[0])}"
        else:
            yield from differ(fold, found[0], want[key])


def differ(fold: Fold, have: Row, want: Row) -> Iterator[Finding]:
    """Yield a row that is not its newest change, with the columns that differ."""
    expected = dict(want)
    if fold.rules.marks:
        is_gone = fold.is_delete(want)
        expected["_deleted_at"] = (want["_kafka"]["timestamp"] or EPOCH) if is_gone else None
    wrong = [name for name in have if repr(have[name]) != repr(expected.get(name))]
    if wrong:
        yield "M1", f"{', '.join(wrong)} not as in the change at {place_of(want)}"


def find_forgotten(catalog: Catalog, fold: Fold, memory: str) -> Iterator[Finding]:
    """Yield the deletes that won and that the delete memory does not have."""
    try:
        table = catalog.load_table(f"{fold.rules.state}__deletes")
        rows = table.scan().to_arrow().to_pylist()
    except NoSuchTableError:
        rows = []
    held = {place_of(row) for row in rows if row["memory"] == memory}
    for _, row in fold.winners():
        if fold.is_delete(row) and place_of(row) not in held:
            yield "M1", f"the delete at {place_of(row)} is forgotten"
