"""A table made by hand after the commit protocol, for mutation tests of the auditor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)

from faults import audit_tables, audit_values, auditor
from faults.audit_values import AuditReport, PartitionLog

KAFKA = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
ROWS = pa.schema([("flight", pa.string()), ("_kafka", KAFKA)])
LETTERS = pa.schema([("_kafka", KAFKA), ("reason", pa.string()), ("attempt", pa.string())])
LEDGER = pa.schema(
    [
        ("table_uuid", pa.string()),
        ("table_name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("parent_id", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("summary", pa.string()),
    ]
)
Ranges = Mapping[int, tuple[int, int]]


def coordinates(
    *offsets: int, partition: int = 0, topic: str = "flights"
) -> list[dict[str, object]]:
    """Return `_kafka` structs."""
    return [{"topic": topic, "partition": partition, "offset": offset} for offset in offsets]


class Lake:
    """A table that follows the protocol until a test breaks it, and the log that it came from."""

    def __init__(self, folder: Path, base: Lake | None = None) -> None:
        """Create empty tables and a topic of two partitions, or go on where `base` stands."""
        warehouse = f"file://{folder}/warehouse"
        self.catalog = SqlCatalog("lake", uri="sqlite:///:memory:", warehouse=warehouse)
        for namespace in ("demo", "frazil"):
            self.catalog.create_namespace(namespace)
        for name, schema in (("demo.flights", ROWS), ("demo.flights__dead_letters", LETTERS)):
            if base is None:
                self.catalog.create_table(name, schema)
            else:
                at = base.catalog.load_table(name).metadata_location
                self.catalog.register_table(name, at)
        self.letters = self.catalog.load_table("demo.flights__dead_letters")
        self.log = {0: PartitionLog(0, 40, np.arange(40)), 1: PartitionLog(0, 10, np.arange(10))}
        self.epoch: int = base.epoch if base else 0
        self.batch: str = base.batch if base else "b0"
        self.next: list[int] = list(base.next) if base else [0, 0]
        self.cluster = base.cluster if base else "one"
        self.topic_id = "id-1"

    @property
    def table(self) -> Table:
        """Load the table as it is now."""
        return self.catalog.load_table("demo.flights")

    @property
    def head(self) -> int:
        """Return the id of main's head."""
        return self.table.metadata.current_snapshot_id or 0

    def state(self) -> dict[str, str]:
        """Return the summary key of the state."""
        offsets = {"flights": self.next}
        state: dict[str, object] = {"v": 1, "epoch": self.epoch, "batch": self.batch}
        state |= {"offsets": offsets, "topic-ids": {"flights": self.topic_id}}
        state["cluster-id"] = self.cluster
        return {"frazil.state.flights": json.dumps(state)}

    def write(self, rows: list[dict[str, object]]) -> list[DataFile]:
        """Write one data file that nothing references yet, none for no rows."""
        if not rows:
            return []
        flights = pa.Table.from_pylist([{"flight": "UA1", "_kafka": row} for row in rows], ROWS)
        return list(_dataframe_to_data_files(self.table.metadata, flights, self.table.io))

    def commit(
        self,
        summary: Mapping[str, str],
        files: list[DataFile] | None = None,
        removed: list[DataFile] | None = None,
        operation: Operation | None = None,
        parent: int | None = None,
    ) -> int:
        """Set main to a new snapshot on `parent`, or on main's head."""
        if parent is not None:
            self.table.manage_snapshots().create_branch(parent, f"at_{parent}").commit()
        table, branch = self.table, "main" if parent is None else f"at_{parent}"
        update = table.transaction().update_snapshot(dict(summary), branch=branch)
        producer = update.overwrite() if removed else update.fast_append()
        for file in files or []:
            producer.append_data_file(file)
        for file in removed or []:
            producer.delete_data_file(file)
        added = producer._commit()[0][0]  # noqa: SLF001 - a commit that is not yet made
        assert isinstance(added, AddSnapshotUpdate)
        snapshot = added.snapshot
        if operation is not None and snapshot.summary is not None:
            facts = snapshot.summary.additional_properties
            snapshot = snapshot.model_copy(update={"summary": Summary(operation, **facts)})
        ref = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot.snapshot_id}
        main = SetSnapshotRefUpdate.model_validate(ref)
        self.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), main))
        return self.head

    def mark(
        self, kind: str, *, rise: int = 1, forged: Mapping[str, str] | None = None, **moved: int
    ) -> int:
        """Publish an empty snapshot with a state: bootstrap, gap, adopt, carry or rewind."""
        self.epoch += rise
        self.batch = f"{kind}{self.epoch}" if rise else self.batch
        summary = {"frazil.kind": kind}
        if kind in ("gap", "adopt"):
            summary |= {"frazil.by": "jane@example.org", "frazil.reason": "request 13"}
        if kind == "gap":
            gone = {name[1:]: (self.next[int(name[1:])], end) for name, end in moved.items()}
            lost = {number: [start, end] for number, (start, end) in gone.items() if end > start}
            summary |= {"frazil.ranges": json.dumps({"flights": lost})}
        for name, next_offset in moved.items():
            self.next[int(name[1:])] = next_offset
        return self.commit({**summary, **self.state(), **(forged or {})})

    def move(self, *nexts: int, **forged: str) -> int:
        """Go on at other offsets of another cluster, which delivers from there on."""
        told = {
            str(p): [old, new, "seen"]
            for p, (old, new) in enumerate(zip(self.next, nexts, strict=True))
        }
        self.epoch, self.cluster, self.next = self.epoch + 1, "two", list(nexts)
        self.batch = f"move{self.epoch}"
        told_of = {"frazil.moved": json.dumps({"partitions": {"flights": told}})}
        named = {"frazil.kind": "move", "frazil.by": "jane@example.org"}
        return self.commit({**named, **told_of, **self.state(), **forged})

    def ingest(
        self,
        ranges: Ranges,
        bad: tuple[int, ...] = (),
        skipped: tuple[int, ...] = (),
        forged: Mapping[str, str] | None = None,
        files: list[DataFile] | None = None,
    ) -> int:
        """Publish a batch; `bad` and `skipped` are offsets of partition 0."""
        self.epoch += 1
        self.batch = f"b{self.epoch}"
        for partition, (_, end) in ranges.items():
            self.next[partition] = end
        rows, read = self.read(ranges, {*bad, *skipped})
        self.quarantine(f"try_{self.batch}", *bad)
        summary = {
            "frazil.kind": "ingest",
            "frazil.batch-id": self.batch,
            "frazil.attempt": f"try_{self.batch}",
            "frazil.ranges": json.dumps({"flights": ranges}),
            **self.counts(read, len(bad), len(skipped)),
            **self.state(),
        }
        return self.commit(
            {**summary, **(forged or {})}, self.write(rows) if files is None else files
        )

    def read(self, ranges: Ranges, left_out: set[int]) -> tuple[list[dict[str, object]], int]:
        """Return the rows of some ranges and how many records Kafka delivers there."""
        delivered = {
            p: [int(o) for o in self.log[p].offsets if start <= o < end]
            for p, (start, end) in ranges.items()
        }
        rows = [
            row
            for p, offsets in delivered.items()
            for row in coordinates(*(o for o in offsets if p or o not in left_out), partition=p)
        ]
        return rows, sum(map(len, delivered.values()))

    def counts(self, read: int, quarantined: int, skipped: int) -> dict[str, str]:
        """Return the counts of a summary."""
        written = read - quarantined - skipped
        numbers = {"read": read, "written": written, "quarantined": quarantined, "skipped": skipped}
        return {f"frazil.rows-{name}": str(number) for name, number in numbers.items()}

    def quarantine(self, attempt: str | None, *offsets: int) -> None:
        """Append dead letters of partition 0."""
        letters = [
            {"_kafka": c, "reason": "json", "attempt": attempt} for c in coordinates(*offsets)
        ]
        if letters:
            self.letters.append(pa.Table.from_pylist(letters, LETTERS))

    def seal(self, kind: str, listed: Mapping[str, object], more: Mapping[str, str]) -> int:
        """Publish the empty snapshot that gives a staged one its meaning."""
        named = {
            "frazil.kind": kind,
            "frazil.batch-id": f"{kind}-1",
            "frazil.attempt": f"try_{kind}",
        }
        source = {"source-snapshot-id": str(self.head)}
        return self.commit(
            {**named, **source, **more, **{k: json.dumps(v) for k, v in listed.items()}}
        )

    def files(self) -> list[DataFile]:
        """Return the live data files, lowest offsets first."""
        files = [task.file for task in self.table.scan().plan_files()]
        return sorted(files, key=lambda file: [row["offset"] for row in self.rows_of(file)])

    def rows_of(self, file: DataFile) -> list[dict[str, object]]:
        """Read the `_kafka` structs of one data file."""
        read = audit_tables.read_parquet(self.table.io, file.file_path, audit_values.ROW_TYPES)
        rows = read.to_pylist()
        return [{name.split(".")[1]: value for name, value in row.items()} for row in rows]

    def take(
        self,
        offsets: tuple[int, ...],
        listed: Mapping[str, object] | None = None,
        kind: str = "erase",
        **forged: str,
    ) -> int:
        """Take rows of partition 0 away on purpose; what is listed may be something else."""
        old = [f for f in self.files() if {r["offset"] for r in self.rows_of(f)} & {*offsets}]
        rows = [row for file in old for row in self.rows_of(file)]
        rest = [r for r in rows if r["partition"] != 0 or r["offset"] not in offsets]
        summary = {
            "frazil.kind": kind,
            "frazil.stream": "flights",
            "frazil.coordinates": json.dumps(listed or {"flights": {"0": [*offsets]}}),
            "frazil.rows-deleted": str(len(offsets)),
            "frazil.by": "jane@example.org",
            "frazil.reason": "request 12",
            **{f"frazil.{name}": text for name, text in forged.items()},
        }
        return self.commit(summary, self.write(rest), removed=old)

    def erase_letters(self, attempt: str, *offsets: int) -> None:
        """Say that letters left, in a snapshot without rows; they stay in their table."""
        letters = {attempt: {"flights": {"0": [*offsets]}}}
        named = {"kind": "erase", "by": "jane@example.org", "reason": "request 12"}
        listed = {"coordinates": "{}", "rows-deleted": "0", "letters": json.dumps(letters)}
        self.commit({f"frazil.{name}": text for name, text in {**named, **listed}.items()})

    def ledger_rows(self, left_out: int = 0) -> list[dict[str, object]]:
        """Write every snapshot as a row of the ledger, less one."""
        uuid = str(self.table.metadata.table_uuid)
        return [
            {
                "table_uuid": uuid,
                "snapshot_id": snapshot.snapshot_id,
                "parent_id": snapshot.parent_snapshot_id,
                "summary": json.dumps(snapshot.summary.model_dump()) if snapshot.summary else "{}",
            }
            for snapshot in self.table.metadata.snapshots
            if snapshot.snapshot_id != left_out
        ]

    def archive(self, rows: list[dict[str, object]]) -> None:
        """Append rows to the ledger."""
        ledger = self.catalog.create_table_if_not_exists("frazil.ledger", LEDGER)
        ledger.append(pa.Table.from_pylist(rows, LEDGER))

    def expire(self, *snapshot_ids: int) -> None:
        """Remove snapshots as PyIceberg does: survivors lose their parent id."""
        self.catalog.commit_table(
            self.table, (), (RemoveSnapshotsUpdate(snapshot_ids=snapshot_ids),)
        )

    def audit(self) -> AuditReport:
        """Audit the table against the log."""
        tables = audit_tables.open_tables(self.catalog, "demo.flights")
        return auditor.audit(
            tables, "flights", "read_committed", lambda topic, _: {topic: self.log}
        )


def forge_state(lake: Lake, **changed: object) -> dict[str, str]:
    """Write the summary key of another state than the one that the lake would write."""
    state = json.loads(lake.state()["frazil.state.flights"])
    offsets = changed.pop("offsets", None)
    state |= {"offsets": {"flights": offsets}} if offsets else {}
    return {"frazil.state.flights": json.dumps(state | changed)}


def located(report: AuditReport, invariant: str) -> set[audit_values.Coordinate]:
    """Return the coordinates that findings of one invariant name."""
    return {c for f in report.findings if f.invariant == invariant for c in f.coordinates}


def compact(lake: Lake) -> None:
    """Write all rows into one file, as a compaction does."""
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]
    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)


def redrive(lake: Lake, *offsets: int, before: int | None = None) -> None:
    """Bring letters back as rows; `before` is the end of the log that they were read from."""
    lake.commit({}, lake.write(coordinates(*offsets)))
    told = lake.counts(len(offsets), 0, 0)
    named = {"frazil.batch-id": f"redrive-{before}"}
    named |= {} if before is None else {"frazil.letters-before": str(before)}
    lake.seal("redrive", {"frazil.coordinates": {"flights": {"0": [*offsets]}}}, told | named)
