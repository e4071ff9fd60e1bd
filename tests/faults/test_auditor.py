"""Mutation tests of the auditor: each breaks a table made by hand after the protocol."""

from __future__ import annotations

import ast
import base64
import json
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)

from faults import auditor
from faults.auditor import AuditReport, Findings, LiveFile, PartitionLog

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
        rows = auditor.read_parquet(self.table.io, file.file_path, auditor.ROW_TYPES).to_pylist()
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
        tables = auditor.open_tables(self.catalog, "demo.flights")
        return auditor.audit(
            tables, "flights", "read_committed", lambda topic, _: {topic: self.log}
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Publish a bootstrap and two batches: 0-0 to 20, 0-1 to 6; two letters, one record skipped."""
    lake = Lake(tmp_path_factory.mktemp("base"))
    lake.mark("bootstrap", rise=0)
    lake.ingest({0: (0, 10), 1: (0, 6)}, bad=(3, 4), skipped=(7,))
    lake.ingest({0: (10, 20)})
    return lake


@pytest.fixture
def lake(base: Lake, tmp_path: Path) -> Lake:
    """Return a table of the test's own; the files that it starts with are shared."""
    return Lake(tmp_path, base)


def forge_state(lake: Lake, **changed: object) -> dict[str, str]:
    """Write the summary key of another state than the one that the lake would write."""
    state = json.loads(lake.state()["frazil.state.flights"])
    offsets = changed.pop("offsets", None)
    state |= {"offsets": {"flights": offsets}} if offsets else {}
    return {"frazil.state.flights": json.dumps(state | changed)}


def located(report: AuditReport, invariant: str) -> set[auditor.Coordinate]:
    """Return the coordinates that findings of one invariant name."""
    return {c for f in report.findings if f.invariant == invariant for c in f.coordinates}


# ---- what must pass -----------------------------------------------------------------------------
def test_a_clean_table_has_no_findings_and_its_facts_are_counted(lake: Lake) -> None:
    report = lake.audit()

    assert report.findings == ()
    assert report.facts["rows_of_stream"] == 23
    assert report.facts["dead_letters_counting"] == 2
    assert report.facts["records_delivered"] == 26
    assert report.facts["recovery_point"] == {"flights-0": 20, "flights-1": 6}


def test_a_compaction_that_keeps_all_rows_passes(lake: Lake) -> None:
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]

    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)

    assert lake.audit().findings == ()
    assert lake.audit().facts["foreign_snapshots"] == [lake.head]


def test_a_rewind_and_the_same_records_again_pass(lake: Lake) -> None:
    first = lake.table.metadata.snapshots[1].snapshot_id
    lake.epoch, lake.batch, lake.next = 3, "rewind3", [10, 6]
    lake.commit({"frazil.kind": "rewind", **lake.state()}, parent=first)

    lake.ingest({0: (10, 25)}, bad=(12,))

    assert lake.audit().findings == ()


@pytest.mark.parametrize("kind", ["erase", "expire-rows"])
def test_rows_that_left_on_purpose_are_not_missed(lake: Lake, kind: str) -> None:
    lake.take((5, 12), kind=kind)
    lake.ingest({0: (20, 25)})
    lake.log[0] = PartitionLog(8, 40, np.arange(8, 40))

    assert lake.audit().findings == ()
    assert lake.audit().facts["rows_of_stream"] == 26


def test_letters_that_left_on_purpose_are_not_missed(lake: Lake) -> None:
    lake.erase_letters("try_b1", 3, 4)
    lake.letters.delete("attempt == 'try_b1'")

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 0


def test_letters_that_are_listed_as_gone_and_are_there_are_found(lake: Lake) -> None:
    lake.erase_letters("try_b1", 3)

    assert located(lake.audit(), "E1") == {("flights", 0, 3)}


@pytest.mark.parametrize(
    ("harm", "found", "words"),
    [
        (lambda it: it.take((5,), {"flights": {"0": [5, 6]}}), "E1", "still there"),
        (lambda it: it.take((5,), {"flights": {"0": [6]}}), "E1", "neither in the table"),
        (lambda it: it.take((5, 6), {"flights": {"0": [5]}}), "E1", "neither in the table"),
        (lambda it: it.take((5,), **{"rows-deleted": "2"}), "E3", "says 2 rows, lists 1, took 1"),
        (lambda it: it.take((5,), {"flights": {"0": [5, 7]}}), "E3", "lists 2"),
        (lambda it: it.take((5,), {"flights": {"0": [5, 39]}}), "E1", "above every published"),
        (lambda it: it.take((5,), by=""), "E6", "nobody's name"),
    ],
    ids=["too many", "another", "too few", "miscounted", "skipped", "not read", "nobody"],
)
def test_a_forged_erasure_is_found(
    lake: Lake, harm: Callable[[Lake], object], found: str, words: str
) -> None:
    harm(lake)

    findings = lake.audit().findings

    assert [f for f in findings if f.invariant == found and words in f.text], findings


def test_what_a_replay_brings_back_is_found_if_erased_and_not_if_too_old(lake: Lake) -> None:
    lake.take((5,))
    lake.take((6,), kind="expire-rows")

    named = {"frazil.kind": "replay", "frazil.batch-id": "replay-1", "frazil.attempt": "try_r"}
    ranges = {"frazil.ranges": json.dumps({"flights": {"0": [5, 7]}})}
    lake.commit({**named, **ranges, **lake.counts(2, 0, 0)}, lake.write(coordinates(5, 6)))

    assert located(lake.audit(), "E1") == {("flights", 0, 5)}


def test_carry_gap_and_an_empty_batch_pass(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(30, 40))
    lake.mark("carry", rise=0)
    lake.mark("gap", p0=25)

    lake.ingest({0: (25, 30)})

    assert lake.audit().findings == ()
    assert lake.audit().facts["checked_from"] == {"flights-0": 25, "flights-1": 0}


@pytest.mark.parametrize(
    ("forged", "found", "words"),
    [
        ({"frazil.by": ""}, "E6", "nobody's name or reason"),
        ({"frazil.reason": " "}, "E6", "nobody's name or reason"),
        ({"frazil.ranges": "{}"}, "E2", "flights-0 [20, 25): leaves it out"),
        ({"frazil.ranges": '{"flights": {"0": [20, 24]}}'}, "E2", "[20, 25): leaves it out"),
        ({"frazil.ranges": '{"flights": {"0": [20, 26]}}'}, "E2", "[20, 26): says so"),
        ({"frazil.ranges": '{"flights": {"1": [20, 25]}}'}, "E2", "flights-1 [20, 25): says so"),
        ({"frazil.ranges": '{"trains": {"0": [0, 5]}}'}, "E2", "trains-0 [0, 5): says so"),
        ({"frazil.ranges": "[1"}, "E2", "its ranges cannot be read"),
    ],
    ids=["nobody", "no reason", "none", "too few", "too many", "another", "foreign", "unreadable"],
)
def test_a_gap_that_does_not_say_who_why_and_what_is_found(
    lake: Lake, forged: Mapping[str, str], found: str, words: str
) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))
    lake.mark("gap", p0=25, forged=forged)
    lake.ingest({0: (25, 30)})

    findings = lake.audit().findings

    assert {finding.invariant for finding in findings} == {found}, findings
    assert any(words in finding.text for finding in findings), findings


def test_a_gap_over_records_that_kafka_still_delivers_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(22, 40, np.arange(22, 40))
    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    report = lake.audit()

    assert report.found() == {"E1"}
    assert located(report, "E1") == {("flights", 0, offset) for offset in (22, 23, 24)}


def test_a_gap_that_answers_a_rollback_may_leave_out_what_kafka_has(lake: Lake) -> None:
    target = lake.head
    lake.ingest({0: (20, 25)})
    lake.table.manage_snapshots().rollback_to_snapshot(target).commit()
    lake.next = [20, 6]

    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    assert lake.audit().findings == ()


def test_a_table_that_nobody_took_over_by_name_is_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.mark("adopt", p0=3, forged={"frazil.by": ""})

    assert lake.audit().found() == {"E6"}


def test_an_adoption_on_a_stream_that_had_begun_is_found_where_it_jumps(lake: Lake) -> None:
    lake.mark("adopt", p0=25)

    assert "E4" in lake.audit().found()


def recreate(lake: Lake, end: int) -> None:
    """Let the topic be created again with so many records, and somebody accept that."""
    lake.topic_id = "id-2"
    lake.log = {0: PartitionLog(0, end, np.arange(end)), 1: PartitionLog(0, 0, np.arange(0))}
    lake.mark("gap", p0=0, p1=0)


def compact(lake: Lake) -> None:
    """Write all rows into one file, as a compaction does."""
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]
    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)


@pytest.mark.parametrize("end", [5, 40], ids=["shorter", "longer"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
def test_a_topic_that_was_created_again_is_counted_apart(
    lake: Lake, end: int, *, is_compacted: bool
) -> None:
    recreate(lake, end)
    lake.ingest({0: (0, 4)}, bad=(2, 3), skipped=(1,))
    lake.ingest({0: (4, end)})

    if is_compacted:
        compact(lake)

    report = lake.audit()
    assert report.findings == ()
    assert report.facts["rows_of_stream"] == 23 + end - 3
    assert report.facts["records_delivered"] == end
    assert report.facts["checked_from"] == {"flights-0": 0}


def redrive(lake: Lake, *offsets: int, before: int | None = None) -> None:
    """Bring letters back as rows; `before` is the end of the log that they were read from."""
    lake.commit({}, lake.write(coordinates(*offsets)))
    told = lake.counts(len(offsets), 0, 0)
    named = {"frazil.batch-id": f"redrive-{before}"}
    named |= {} if before is None else {"frazil.letters-before": str(before)}
    lake.seal("redrive", {"frazil.coordinates": {"flights": {"0": [*offsets]}}}, told | named)


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize("is_old", [False, True], ids=["new topic first", "old one first"])
def test_letters_at_one_offset_of_two_topics_count_and_come_back_apart(
    lake: Lake, *, is_old: bool, is_compacted: bool
) -> None:
    recreate(lake, 20)
    gap = lake.head
    lake.ingest({0: (0, 20)}, bad=(3,))
    counting = lake.audit().facts["dead_letters_counting"]

    redrive(lake, 3, before=gap if is_old else None)
    if is_compacted:
        compact(lake)

    assert counting == 3
    report = lake.audit()
    assert report.findings == ()
    assert report.facts["dead_letters_counting"] == 2
    redrive(lake, 3, before=None if is_old else gap)
    assert (lake.audit().findings, lake.audit().facts["dead_letters_counting"]) == ((), 1)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_letter_above_the_new_topics_end_needs_the_name_of_the_old_one(
    lake: Lake, *, is_named: bool
) -> None:
    recreate(lake, 2)
    gap = lake.head
    lake.ingest({0: (0, 2)})

    redrive(lake, 3, before=gap if is_named else None)

    assert lake.audit().found() == (set() if is_named else {"E4"})


@pytest.mark.parametrize("before", ["old", "unknown"])
def test_a_letter_of_an_old_topic_that_came_back_twice_or_from_nowhere_is_found(
    lake: Lake, before: str
) -> None:
    recreate(lake, 20)
    gap = lake.head
    lake.ingest({0: (0, 20)})
    redrive(lake, 3, before=gap)

    redrive(lake, 3, before=gap if before == "old" else 1)

    assert "E1" in lake.audit().found()


def test_a_log_that_was_cut_is_one_log_below_the_cut(lake: Lake) -> None:
    lake.mark("gap", p0=15)
    lake.ingest({0: (15, 25)}, bad=(16,))

    report = lake.audit()

    assert report.findings == ()
    assert report.facts["records_delivered"] == 31


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize(
    "offset", [2, 17, 22], ids=["before the cut", "read from both logs", "after it"]
)
def test_a_row_too_many_after_a_cut_is_found(
    lake: Lake, offset: int, *, is_compacted: bool
) -> None:
    lake.mark("gap", p0=15)
    lake.ingest({0: (15, 25)})

    lake.commit({}, lake.write(coordinates(offset)))
    if is_compacted:
        compact(lake)

    report = lake.audit()
    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, offset)}


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize("batch", [1, 2, 3], ids=["old topic", "old topic, later", "new topic"])
def test_a_batch_that_is_lost_beside_a_topic_that_was_created_again_is_found(
    lake: Lake, batch: int, *, is_compacted: bool
) -> None:
    recreate(lake, 15)
    lake.ingest({0: (0, 15)})
    compact(lake) if is_compacted and batch == 3 else None
    files = [task.file for task in lake.table.scan().plan_files()]
    gone = [f for f in files if len(lake.rows_of(f)) == {1: 13, 2: 10, 3: 15}[batch]]

    lake.commit({"frazil.kind": "carry", **lake.state()}, removed=gone or files)

    assert "E1" in lake.audit().found()


@pytest.mark.parametrize("forged", ["19", "21"])
def test_a_wrong_count_after_a_topic_was_created_again_is_found(lake: Lake, forged: str) -> None:
    recreate(lake, 20)
    lake.ingest({0: (0, 20)}, forged={"frazil.rows-read": forged, "frazil.rows-skipped": "0"})

    assert lake.audit().found() == {"E3"}


def test_a_skipped_record_of_the_new_topic_is_missed(lake: Lake) -> None:
    recreate(lake, 20)
    lake.ingest({0: (0, 20)}, files=lake.write(coordinates(*range(1, 20))))

    report = lake.audit()

    assert located(report, "E1") == {("flights", 0, 0)}


def test_a_topic_that_was_created_again_is_refused_without_a_gap(lake: Lake) -> None:
    lake.topic_id, lake.next = "id-2", [0, 0]
    lake.ingest({0: (0, 10)})

    assert {"E1", "E2", "E4"} <= lake.audit().found()


def test_partitions_that_a_new_topic_lacks_are_counted_by_the_ledger(lake: Lake) -> None:
    recreate(lake, 10)
    del lake.log[1]
    lake.next = [0]
    lake.mark("carry", rise=0)

    lake.ingest({0: (0, 10)})

    assert lake.audit().findings == ()


@pytest.mark.parametrize(
    "listed",
    [
        {"frazil.ranges": [["flights", 0, 3], ["flights", 0, 4]]},
        {"frazil.ranges": {"flights": {"0": [3, 5]}}},
        {"frazil.ranges": {"flights": {"0": [[3, 4], [4, 5]]}}},
        {"frazil.ranges": {}, "frazil.coordinates": {"flights": {"0": [3, 4]}}},
    ],
    ids=["triples", "range", "ranges", "offsets"],
)
def test_a_sealed_redrive_moves_letters_into_the_table(
    lake: Lake, listed: Mapping[str, object]
) -> None:
    lake.commit({}, lake.write(coordinates(3, 4)))

    lake.seal("redrive", listed, lake.counts(2, 0, 0))

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 0


def test_a_sealed_replay_that_cures_a_letter_passes(lake: Lake) -> None:
    old = lake.files()[:1]
    kept = [r for r in lake.rows_of(old[0]) if r["partition"] == 1]
    again = coordinates(*(o for o in range(10) if o not in (4, 7)))
    lake.commit({}, lake.write(kept + again), removed=old, operation=Operation.OVERWRITE)
    lake.quarantine("try_replay", 4)

    lake.seal("replay", {"frazil.ranges": {"flights": {"0": [0, 10]}}}, lake.counts(10, 1, 1))

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 1


@pytest.mark.parametrize("order", [1, -1], ids=["first", "after the one without"])
def test_the_ledger_continues_the_ancestry_and_a_row_with_a_parent_wins(
    lake: Lake, order: int
) -> None:
    whole = lake.ledger_rows()
    lake.expire(*(snapshot.snapshot_id for snapshot in lake.table.metadata.snapshots[:2]))
    without_parent = lake.ledger_rows()

    for rows in (whole, without_parent)[::order]:
        lake.archive(rows)

    assert lake.audit().findings == ()
    assert lake.audit().facts["archived_snapshots"] == 2


def test_another_streams_rows_and_batches_are_not_this_streams_matter(lake: Lake) -> None:
    state = {"epoch": 1, "batch": "t1", "offsets": {"trains": [2]}}
    summary = {
        "frazil.kind": "ingest",
        "frazil.ranges": '{"trains": {"0": [0, 2]}}',
        "frazil.state.trains": json.dumps(state),
        **lake.counts(2, 0, 0),
    }

    lake.commit(summary, lake.write(coordinates(0, 1, topic="trains")))

    assert lake.audit().findings == ()
    assert lake.audit().facts["rows_of_stream"] == 23


def test_an_upsert_stream_may_drop_superseded_rows_but_not_double_one(lake: Lake) -> None:
    last = lake.files()[-1:]
    lake.commit({}, lake.write(coordinates(19, 22)), last, Operation.OVERWRITE)
    lake.epoch, lake.batch, lake.next = 3, "ingest-1", [25, 6]
    lake.seal("ingest", {"frazil.ranges": {"flights": {"0": [20, 25]}}}, lake.state())
    clean = lake.audit()
    lake.commit({}, lake.write(coordinates(22)))

    assert (clean.findings, clean.facts["mode"]) == ((), "upsert")
    assert located(lake.audit(), "E1") == {("flights", 0, 22)}


def test_a_table_that_was_taken_over_is_checked_above_its_adoption(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    nameless: list[dict[str, object]] = [{"topic": None, "partition": None, "offset": None}]
    lake.commit({}, lake.write([*coordinates(0, 1, 2), *nameless]))
    lake.mark("adopt", p0=3)
    lake.ingest({0: (3, 6)})

    report = lake.audit()

    assert (report.findings, report.facts["inherited_snapshots"]) == ((), 1)


def test_letters_of_an_abandoned_attempt_do_not_count(lake: Lake) -> None:
    lake.quarantine("try_lost", 3, 15, 25)

    report = lake.audit()

    assert report.findings == ()
    assert (report.facts["dead_letters"], report.facts["dead_letters_counting"]) == (5, 2)


def test_a_compressed_state_is_read(lake: Lake) -> None:
    lake.epoch, lake.batch, lake.next = 3, "b3", [21, 6]
    plain = lake.state()["frazil.state.flights"]
    packed = "z:" + base64.b64encode(zlib.compress(plain.encode())).decode()
    lake.epoch, lake.next = 2, [20, 6]

    lake.ingest({0: (20, 21)}, forged={"frazil.state.flights": packed})

    assert lake.audit().findings == ()


# ---- E1 -----------------------------------------------------------------------------------------
def test_a_dropped_data_file_is_found(lake: Lake) -> None:
    lake.commit({"frazil.kind": "carry", **lake.state()}, removed=lake.files()[-1:])

    report = lake.audit()

    assert {"E1", "E3"} <= report.found()
    assert located(report, "E1") == {("flights", 0, offset) for offset in range(10, 20)}


def test_rows_appended_twice_are_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(11, 12)))

    report = lake.audit()

    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, 11), ("flights", 0, 12)}


def test_a_lost_letter_is_found(lake: Lake) -> None:
    lake.letters.delete("reason = 'json'")

    report = lake.audit()

    assert report.found() == {"E1", "E3"}
    assert {("flights", 0, 3), ("flights", 0, 4)} <= located(report, "E1")


def test_a_doubled_letter_is_found(lake: Lake) -> None:
    lake.quarantine("try_b1", 3)

    report = lake.audit()

    assert report.found() == {"E1"}
    assert located(report, "E1") == {("flights", 0, 3)}


def test_a_record_in_the_table_and_in_its_letters_is_found(lake: Lake) -> None:
    lake.quarantine("try_b2", 15)

    assert located(lake.audit(), "E1") == {("flights", 0, 15)}


def test_a_letter_outside_its_attempts_ranges_is_found(lake: Lake) -> None:
    lake.quarantine("try_b2", 30)

    assert located(lake.audit(), "E1") == {("flights", 0, 30)}


def test_a_row_above_the_recovery_point_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(20)))

    report = lake.audit()

    assert located(report, "E1") == {("flights", 0, 20)}
    assert any("above every published range" in finding.text for finding in report.findings)


def test_a_row_in_an_accepted_gap_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))
    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    lake.commit({}, lake.write(coordinates(22)))

    assert located(lake.audit(), "E1") == {("flights", 0, 22)}


def test_a_letter_without_an_attempt_is_found(lake: Lake) -> None:
    lake.quarantine(None, 30)

    assert lake.audit().found() == {"E1"}


def test_an_aborted_record_in_the_table_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(0, 40, np.delete(np.arange(40), 15))

    report = lake.audit()

    assert report.found() == {"E1", "E3"}
    assert located(report, "E1") == {("flights", 0, 15)}


def test_records_that_a_compacted_topic_forgot_may_stay_in_the_table(lake: Lake) -> None:
    lake.log[0] = PartitionLog(0, 40, np.delete(np.arange(40), 15), is_compacted=True)

    assert lake.audit().findings == ()


def test_rows_lost_below_kafkas_earliest_are_found_by_count(lake: Lake) -> None:
    lake.log[0] = PartitionLog(20, 40, np.arange(20, 40))
    files = lake.files()

    lake.commit({}, lake.write(lake.rows_of(files[-1])[1:]), removed=files[-1:])

    assert lake.audit().found() == {"E1", "E6"}


def test_rows_of_an_unknown_topic_or_without_coordinate_are_found(lake: Lake) -> None:
    nameless: list[dict[str, object]] = [{"topic": None, "partition": None, "offset": None}]

    lake.commit({}, lake.write([*coordinates(5, topic="trains"), *nameless]))

    assert [finding.invariant for finding in lake.audit().findings].count("E1") == 2


# ---- E2 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("start", "text"), [(22, "gap, [20, 22)"), (18, "overlap, [18, 20)")], ids=["gap", "overlap"]
)
def test_a_range_that_does_not_start_at_its_carrier_is_found(
    lake: Lake, start: int, text: str
) -> None:
    lake.ingest({0: (start, 30)})

    report = lake.audit()

    assert "E2" in report.found()
    assert any(text in finding.text for finding in report.findings)


def test_a_range_shifted_in_its_summary_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 30)}, forged={"frazil.ranges": '{"flights": {"0": [21, 31]}}'})

    assert {"E1", "E2"} <= lake.audit().found()


def test_a_backfill_of_what_a_batch_published_is_found(lake: Lake) -> None:
    ranges = json.dumps({"flights": {"0": [0, 2]}})
    summary = {"frazil.kind": "backfill", "frazil.batch-id": "f1", "frazil.ranges": ranges}

    lake.commit({**summary, "frazil.stream": "flights"}, [])

    assert "E2" in lake.audit().found()
    assert any("was published before" in each.text for each in lake.audit().findings)


def test_a_batch_published_twice_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    again = {"epoch": 4, "batch": "b2", "offsets": {"flights": [30, 6]}}
    forged = {"frazil.batch-id": "b2", "frazil.state.flights": json.dumps(again)}

    lake.ingest({0: (25, 30)}, forged=forged)

    assert [finding.text for finding in lake.audit().findings] == ["batch b2 was published 2 times"]


def test_a_batch_id_unlike_the_states_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.batch-id": "b9"})

    assert lake.audit().found() == {"E2"}


def test_a_gap_under_the_old_batch_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))

    lake.mark("gap", p0=25, forged=forge_state(lake, epoch=3, batch="b2", offsets=[25, 6]))

    assert lake.audit().found() == {"E2"}


def test_a_state_that_stops_inside_its_range_is_found(lake: Lake) -> None:
    state = {"epoch": 3, "batch": "b3", "offsets": {"flights": [28, 6]}}

    lake.ingest({0: (20, 30)}, forged={"frazil.state.flights": json.dumps(state)})

    assert lake.audit().found() == {"E2"}


def test_a_topic_that_was_made_anew_between_two_batches_is_found(lake: Lake) -> None:
    for epoch, end in ((3, 25), (4, 30)):
        state = {"epoch": epoch, "batch": f"b{epoch}", "offsets": {"flights": [end, 6]}}
        ids = {"topic-ids": {"flights": f"id-{epoch}"}}
        forged = {"frazil.state.flights": json.dumps(state | ids)}
        lake.ingest({0: (end - 5, end)}, forged=forged)

    assert lake.audit().found() == {"E2"}


def test_ranges_that_cannot_be_read_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.ranges": "[1"})

    assert any("its ranges cannot be read" in finding.text for finding in lake.audit().findings)


def test_an_epoch_that_does_not_rise_by_one_is_found(lake: Lake) -> None:
    lake.epoch += 1

    lake.ingest({0: (20, 25)})

    assert lake.audit().found() == {"E2"}


def test_a_second_bootstrap_is_found(lake: Lake) -> None:
    lake.mark("bootstrap", rise=0)

    assert lake.audit().found() == {"E2"}


def test_a_history_without_its_beginning_is_found(lake: Lake) -> None:
    lake.expire(lake.table.metadata.snapshots[0].snapshot_id)

    assert lake.audit().found() == {"E2"}


def test_a_snapshot_that_neither_metadata_nor_ledger_knows_is_found(lake: Lake) -> None:
    first = lake.table.metadata.snapshots[0].snapshot_id
    lake.archive(lake.ledger_rows(left_out=first))

    lake.expire(first)

    texts = [finding.text for finding in lake.audit().findings]
    assert texts == [f"the ancestry is cut: neither metadata nor ledger knows {first}"]


def test_a_stream_that_the_table_does_not_know_is_found(lake: Lake) -> None:
    tables = auditor.open_tables(lake.catalog, "demo.flights")

    report = auditor.audit(tables, "trains", "read_committed", lambda _topic, _level: {})

    assert "E2" in report.found()


# ---- E3 -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["read", "written", "quarantined", "skipped"])
def test_a_wrong_count_is_found(lake: Lake, name: str) -> None:
    lake.ingest({0: (20, 25)}, forged={f"frazil.rows-{name}": "9"})

    assert "E3" in lake.audit().found()


def test_a_count_that_is_no_number_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.rows-skipped": "none"})

    assert lake.audit().found() == {"E3"}


def test_counts_that_agree_with_each_other_but_not_with_kafka_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.rows-read": "6", "frazil.rows-skipped": "1"})

    assert lake.audit().found() == {"E3"}


def test_a_compacted_batch_is_counted_by_its_own_manifests(lake: Lake) -> None:
    batch = lake.ingest({0: (20, 25)}, forged={"frazil.rows-written": "6"})
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]

    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)

    texts = [finding.text for finding in lake.audit().findings]
    assert f"ingest snapshot {batch}: wrote 6 rows, its files hold 5" in texts
    assert f"ingest snapshot {batch}: wrote 6 rows, added-records is 5" in texts


# ---- E4 -----------------------------------------------------------------------------------------
def test_a_state_ahead_of_its_data_is_found(lake: Lake) -> None:
    lake.next = [20, 8]

    lake.ingest({0: (20, 25)})

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("state", ["", "{"], ids=["absent", "unreadable"])
def test_a_batch_without_a_state_is_found(lake: Lake, state: str) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.state.flights": state})

    report = lake.audit()

    assert "E4" in report.found()
    expected = "its state cannot be read" if state else "moves rows without a state"
    assert any(expected in finding.text for finding in report.findings)


def test_a_state_on_a_replay_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(3)))

    lake.seal(
        "redrive", {"frazil.ranges": [["flights", 0, 3]]}, lake.counts(1, 0, 0) | lake.state()
    )

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("kind", ["carry", "adopt"])
def test_a_state_that_goes_back_without_a_rewind_is_found(lake: Lake, kind: str) -> None:
    lake.mark(kind, rise=int(kind != "carry"), p0=15)

    assert "E4" in lake.audit().found()


def test_a_carry_that_moves_offsets_is_found(lake: Lake) -> None:
    lake.mark("carry", rise=0, p0=22)

    assert lake.audit().found() == {"E4"}


def test_a_rollback_without_a_rewind_is_found(lake: Lake) -> None:
    table = lake.table

    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[1].snapshot_id).commit()

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("text", ['{"epoch": 9, "batch": "b9"}', "{"], ids=["above", "unreadable"])
def test_a_hint_that_main_does_not_explain_is_found(lake: Lake, text: str) -> None:
    hint = SetPropertiesUpdate(updates={"frazil.hint.flights": text})

    lake.catalog.commit_table(lake.table, (), (hint,))

    assert lake.audit().found() == {"E4"}


def test_a_recovery_point_beyond_kafkas_end_is_found(lake: Lake) -> None:
    lake.log[1] = PartitionLog(0, 5, np.arange(5))

    assert "E4" in lake.audit().found()


def test_rows_that_came_with_another_batch_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, files=lake.write(coordinates(*range(25, 30))))
    lake.ingest({0: (25, 30)}, files=lake.write(coordinates(*range(20, 25))))

    assert lake.audit().found() == {"E4"}


def test_a_replay_above_the_recovery_point_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(*range(20, 23))))

    lake.seal("replay", {"frazil.ranges": {"flights": {"0": [20, 23]}}}, lake.counts(3, 0, 0))

    assert lake.audit().found() == {"E4"}


# ---- E5 -----------------------------------------------------------------------------------------
def test_a_file_referenced_twice_is_found(lake: Lake) -> None:
    lake.commit({}, lake.files()[-1:])

    assert {"E1", "E5"} <= lake.audit().found()


def test_an_object_missing_in_the_storage_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})

    Path(lake.files()[-1].file_path.removeprefix("file://")).unlink()

    assert {"E1", "E5"} <= lake.audit().found()


def test_an_object_missing_in_an_older_snapshot_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    old = lake.files()[-1:]
    lake.commit({}, lake.write(lake.rows_of(old[0])), old, Operation.REPLACE)

    Path(old[0].file_path.removeprefix("file://")).unlink()

    assert lake.audit().found() == {"E5"}


def test_a_missing_manifest_list_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    head = lake.table.current_snapshot()
    assert head is not None

    Path(head.manifest_list.removeprefix("file://")).unlink()

    assert "E5" in lake.audit().found()


def test_a_missing_manifest_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    head = lake.table.current_snapshot()
    assert head is not None
    newest = head.manifests(lake.table.io)[0]

    Path(newest.manifest_path.removeprefix("file://")).unlink()

    assert "E5" in lake.audit().found()


def test_a_record_count_unlike_the_footer_is_found(lake: Lake) -> None:
    file = lake.write(coordinates(*range(20, 25)))[0]
    file[4] = 6  # the record count

    lake.ingest({0: (20, 25)}, files=[file])

    assert {"E3", "E5"} <= lake.audit().found()


def test_position_deletes_take_rows_away(lake: Lake) -> None:
    path = lake.files()[-1].file_path
    deletes = pa.table({"file_path": [path, path], "pos": [0, 3]})
    target = Path(path.removeprefix("file://")).with_name("deletes.parquet")
    pq.write_table(deletes, target)
    file = LiveFile(f"file://{target}", 2, 1, 1, DataFileContent.POSITION_DELETES)

    found = auditor.read_deletes(lake.table, [file], Findings())

    assert found[path].tolist() == [0, 3]


def test_equality_deletes_are_found(lake: Lake) -> None:
    file, findings = (
        LiveFile("deletes.parquet", 2, 1, 1, DataFileContent.EQUALITY_DELETES),
        Findings(),
    )

    auditor.read_deletes(lake.table, [file], findings)

    assert [finding.invariant for finding in findings] == ["E5"]


# ---- E6, E7 -------------------------------------------------------------------------------------
def test_a_foreign_append_is_found(lake: Lake) -> None:
    lake.table.append(pa.Table.from_pylist([{"flight": "XX1"}], ROWS))

    report = lake.audit()

    assert report.found() == {"E1", "E6"}
    assert report.facts["foreign_snapshots"] == [lake.head]


def test_a_compaction_that_loses_rows_is_found(lake: Lake) -> None:
    old = lake.files()[-1:]

    lake.commit({}, lake.write(coordinates(*range(10, 19))), old, Operation.REPLACE)

    report = lake.audit()
    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, 19)}


def test_an_empty_foreign_snapshot_is_only_a_fact(lake: Lake) -> None:
    foreign = lake.commit({})

    report = lake.audit()

    assert (report.findings, report.facts["foreign_snapshots"]) == ((), [foreign])


def test_the_fingerprint_changes_with_rows_and_letters_only(lake: Lake) -> None:
    before = auditor.fingerprint(lake.table)
    again = auditor.fingerprint(lake.table)
    lake.quarantine("try_b3", 30)
    with_letter = auditor.fingerprint(lake.table)
    lake.ingest({0: (20, 25)})

    assert before == again
    assert len({before, with_letter, auditor.fingerprint(lake.table)}) == 3


# ---- the tool itself ----------------------------------------------------------------------------
def test_the_auditor_shares_no_code_with_the_product() -> None:
    tree = ast.parse(Path(auditor.__file__).read_text())
    plain = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    roots = {name.split(".")[0] for name in (*plain, *named)}

    foreign = {"confluent_kafka", "numpy", "pyarrow", "pyiceberg"}
    assert roots - foreign <= sys.stdlib_module_names


def test_the_reader_delivers_every_offset_of_every_partition() -> None:
    producer = Producer({"test.mock.num.brokers": 1})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    for number in range(3000):
        producer.produce("flights", b"{}", partition=number % 3)
    assert producer.flush(20) == 0

    logs = auditor.read_logs(f"{broker.host}:{broker.port}", "flights", "read_committed")

    read = {number: (logs[number].earliest, logs[number].end) for number in range(3)}
    assert read == dict.fromkeys(range(3), (0, 1000))
    assert all(logs[number].offsets.tolist() == list(range(1000)) for number in range(3))


def test_a_million_records_are_audited_in_seconds(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.log = {0: PartitionLog(0, 1_000_000, np.arange(1_000_000))}
    lake.next = [0]
    lake.mark("bootstrap", rise=0)
    offsets = pa.array(np.arange(1_000_000))
    topic = pa.array(["flights"]).take(pa.array(np.zeros(1_000_000, np.int64)))
    kafka = pa.StructArray.from_arrays(
        [topic, pa.array(np.zeros(1_000_000, np.int32)), offsets], fields=list(KAFKA)
    )
    flights = pa.table({"flight": topic, "_kafka": kafka})
    files = list(_dataframe_to_data_files(lake.table.metadata, flights, lake.table.io))
    lake.ingest({0: (0, 1_000_000)}, files=files)
    started = time.process_time()

    report = lake.audit()

    assert report.findings == ()
    assert time.process_time() - started < 15


def moved_to_another_cluster(lake: Lake) -> None:
    """Read offsets 0 to 30 of one cluster and 10 to 40 of another, with a bad one each."""
    lake.ingest({0: (20, 30)}, bad=(22,))
    lake.move(10, 10)
    lake.ingest({0: (10, 40)}, bad=(25,))


def test_two_clusters_may_have_the_same_offsets(lake: Lake) -> None:
    moved_to_another_cluster(lake)

    assert lake.audit().findings == ()


@pytest.mark.parametrize(
    "removed", [(0, 21), (1, 21)], ids=["of the old cluster", "of the new cluster"]
)
def test_a_row_that_is_missing_is_not_hidden_by_the_other_clusters(
    lake: Lake, removed: tuple[int, int]
) -> None:
    moved_to_another_cluster(lake)
    which, offset = removed
    both = [f for f in lake.files() if offset in {row["offset"] for row in lake.rows_of(f)}]
    old = sorted(both, key=lambda file: len(lake.rows_of(file)))[which]
    rest = [row for row in lake.rows_of(old) if row["offset"] != offset]
    lake.commit({}, lake.write(rest), removed=[old])

    assert "E1" in lake.audit().found()


def test_a_compaction_of_rows_of_two_clusters_is_no_loss(lake: Lake) -> None:
    moved_to_another_cluster(lake)
    files = lake.files()
    rows = [row for file in files for row in lake.rows_of(file)]
    lake.commit({}, lake.write(rows), removed=files, operation=Operation.REPLACE)

    assert lake.audit().findings == ()


@pytest.mark.parametrize(
    ("forged", "invariant"),
    [
        ({"frazil.moved": "{}"}, "E2"),
        ({"frazil.by": ""}, "E6"),
        ({"frazil.kind": "gap"}, "E2"),
    ],
    ids=["no word of it", "nobody's", "another kind"],
)
def test_a_change_of_cluster_is_a_named_move_that_says_what_it_did(
    lake: Lake, forged: Mapping[str, str], invariant: str
) -> None:
    lake.move(10, 10, **forged)

    assert invariant in lake.audit().found()
