"""Recompute the invariants E1 to E7 of one stream's table from Kafka and Iceberg alone.

The auditor shares no code with the product: a mistake in the product cannot hide itself here. It
knows the commit protocol and reads the topic, the table's metadata and Parquet files, its dead
letters and `frazil.ledger`, nothing else.

    python tests/faults/auditor.py --catalog-name lake --property type=sql --property uri=... \
        --table demo.flights --bootstrap 127.0.0.1:9092 --stream flights

prints one JSON document and exits with 0 when nothing was found, with 1 when something was.

E1 every delivered record is in the table or counts as a dead letter, exactly once
E2 the ranges on main's ancestry have no gap and no overlap; epochs rise as their kinds say
E3 rows = read - quarantined - skipped, in the summary, the manifests and the files
E4 the recovery point is never ahead of the data and goes back only by a recorded rewind
E5 no file is referenced twice, none is missing, footers and manifests agree
E6 nobody else changed rows
E7 repeating a finished run is a no-op: compare `fingerprint` before and after

What cannot be told is left out and named in `facts`: an upsert stream is not searched for missing
rows (its key is not in the metadata), nor is a partition below its `checked_from` offset; there
only the counts are compared.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import itertools
import json
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

Offsets = npt.NDArray[np.int64]
Partition = tuple[str, int]
Coordinate = tuple[str, int, int]
Summary = Mapping[str, str]
Types = Mapping[str, pa.DataType]

LEDGER = "frazil.ledger"
WITHOUT_ROWS = ("bootstrap", "gap", "adopt", "carry", "rewind", "move")
WITH_ROWS = ("ingest", "replay", "backfill", "redrive")
TAKING = ("erase", "expire-rows")
KINDS = (*WITHOUT_ROWS, *WITH_ROWS, *TAKING)
EPOCH_RISES = {
    "ingest": (1, 1),
    "adopt": (1, 1),
    "carry": (0, 0),
    "move": (1, 1),
    "gap": (1, None),
    "rewind": (1, None),
}
SHOWN_COORDINATES = 20
SILENCE_SECONDS = 30
UNREADABLE_FILE = (OSError, ValueError, EOFError)
UNREADABLE_TEXT = (ValueError, TypeError, KeyError, AttributeError, zlib.error)
ROW_TYPES = {
    "_kafka.topic": pa.string(),
    "_kafka.partition": pa.int64(),
    "_kafka.offset": pa.int64(),
}
LETTER_TYPES = {**ROW_TYPES, "attempt": pa.string()}
LEDGER_TYPES = {
    "table_uuid": pa.string(),
    "snapshot_id": pa.int64(),
    "parent_id": pa.int64(),
    "summary": pa.string(),
}
DELETE_TYPES = {"file_path": pa.string(), "pos": pa.int64()}


# ---- values -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """One broken invariant; `coordinates` shows at most the first twenty records concerned."""

    invariant: str
    text: str
    coordinates: tuple[Coordinate, ...] = ()


class Findings(list[Finding]):
    """The findings so far, in the order of the checks."""

    def say(self, invariant: str, text: str) -> None:
        """Add a finding about snapshots or files."""
        self.append(Finding(invariant, text))

    def show(self, invariant: str, text: str, partition: Partition, offsets: Offsets) -> None:
        """Add a finding about records of one partition, unless there are none."""
        if len(offsets):
            text = f"{write_name(partition)}: {len(offsets)} {text}"
            self.append(Finding(invariant, text, shown_coordinates(partition, offsets)))


@dataclass(frozen=True)
class AuditReport:
    """What was found, and what was counted on the way."""

    table: str
    stream: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, object]

    def found(self) -> set[str]:
        """Return the invariants that do not hold."""
        return {finding.invariant for finding in self.findings}


class PartitionLog(NamedTuple):
    """What Kafka delivers of one partition: `offsets` ascend in the half-open earliest to end."""

    earliest: int
    end: int
    offsets: Offsets
    is_compacted: bool = False


TopicReader = Callable[[str, str], Mapping[str, Mapping[int, PartitionLog]]]


@dataclass(frozen=True)
class Range:
    """Half-open offsets of one partition."""

    partition: Partition
    start: int
    end: int


class Span(NamedTuple):
    """Half-open offsets that the event at position `owner` of the ancestry published."""

    start: int
    end: int
    owner: int


@dataclass(frozen=True)
class State:
    """The content of `frazil.state.<stream>`."""

    epoch: int
    batch: str
    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    cluster: str = ""


@dataclass(frozen=True)
class Event:
    """One snapshot on main's ancestry, as one stream sees it.

    `lost` is what a gap says it left out, `taken` what a redrive lists; `gone` are rows and
    `gone_letters`, by attempt, letters that left on purpose.
    """

    snapshot_id: int
    parent_id: int | None
    summary: Summary
    is_retained: bool
    state: State | None = None
    ranges: tuple[Range, ...] = ()
    lost: tuple[Range, ...] = ()
    taken: Mapping[Partition, Offsets] = field(default_factory=dict)
    gone: Mapping[Partition, Offsets] = field(default_factory=dict)
    gone_letters: Mapping[str, Mapping[Partition, Offsets]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the snapshot in a finding."""
        return f"{self.kind or 'foreign'} snapshot {self.snapshot_id}"

    @property
    def kind(self) -> str:
        """Return `frazil.kind`, empty for a snapshot that Frazil did not make."""
        return self.summary.get("frazil.kind", "")

    @property
    def is_seal(self) -> bool:
        """Say whether the rows came with the parent, a staged MERGE or redrive."""
        source = self.summary.get("source-snapshot-id")
        return self.kind in WITH_ROWS and source == str(self.parent_id)

    @property
    def is_authored(self) -> bool:
        """Say whether the snapshot tells who wanted it and why."""
        return all(self.summary.get(f"frazil.{key}", "").strip() for key in ("by", "reason"))

    @property
    def changed_records(self) -> int:
        """Return how many records the snapshot adds, removes or marks as deleted."""
        keys = ("added-records", "deleted-records", "added-position-deletes")
        return sum(self.count(key) for key in keys)

    def count(self, key: str) -> int:
        """Return a number of the summary, 0 where it is absent or none."""
        text = self.summary.get(key, "0")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Restart:
    """The event at `index` put a partition on another log, of which it has read nothing yet.

    Below `cut` the log is the same one: 0 where the topic or the cluster is another.
    """

    index: int
    cut: int


@dataclass(frozen=True)
class History:
    """Main's ancestry, oldest first; `cut_at` is a parent that no source knows."""

    events: tuple[Event, ...]
    cut_at: int | None

    @property
    def state(self) -> State | None:
        """Return the recovery point."""
        return next((event.state for event in reversed(self.events) if event.state), None)

    @functools.cached_property
    def topics(self) -> set[str]:
        """Return the topics that the stream ever read."""
        return {topic for event in self.events if event.state for topic, _ in event.state.offsets}

    @functools.cached_property
    def is_upsert(self) -> bool:
        """Say whether the stream's ingests are MERGEs."""
        return any(event.kind == "ingest" and event.is_seal for event in self.events)

    @functools.cached_property
    def inherited(self) -> tuple[Event, ...]:
        """Return the snapshots that were there before Frazil's first: a table taken over."""
        first = (i for i, event in enumerate(self.events) if event.kind in KINDS)
        return () if self.cut_at else self.events[: next(first, len(self.events))]

    @functools.cached_property
    def foreign_events(self) -> list[Event]:
        """Return the snapshots of other writers: no known kind, and no seal follows."""
        staged = {event.parent_id for event in self.events if event.is_seal}
        later = self.events[len(self.inherited) :]
        return [e for e in later if e.kind not in KINDS and e.snapshot_id not in staged]


class LiveFile(NamedTuple):
    """One live entry of a manifest."""

    path: str
    records: int
    snapshot_id: int
    sequence_number: int
    content: DataFileContent


class Live(NamedTuple):
    """The head's files, and the rows in them that deletes left."""

    files: list[LiveFile]
    rows: pa.Table


class Held(NamedTuple):
    """Offsets of one partition, ascending, each with a label of what brought it."""

    offsets: Offsets
    labels: Offsets


NOTHING_HELD = Held(np.empty(0, np.int64), np.empty(0, np.int64))


class Letters(NamedTuple):
    """Dead letters by partition; their labels are positions in `attempts`."""

    held: Mapping[Partition, Held]
    attempts: Sequence[str]


class Generation(NamedTuple):
    """What was read of one partition from one log: where, counting letters, rows."""

    spans: list[Span]
    letters: Offsets
    rows: Held


class Tables(NamedTuple):
    """The audited table and the two beside it, None where they do not exist."""

    base: Table
    dead_letters: Table | None
    ledger: Table | None


def write_name(partition: Partition) -> str:
    """Write a partition as topic-number."""
    return f"{partition[0]}-{partition[1]}"


def shown_coordinates(partition: Partition, offsets: Offsets) -> tuple[Coordinate, ...]:
    """Return the first coordinates, for a finding."""
    return tuple((*partition, int(offset)) for offset in offsets[:SHOWN_COORDINATES])


# ---- summaries ----------------------------------------------------------------------------------
def decode_text(text: str) -> str:
    """Return the JSON text of a summary value, plain or `z:` and base64 of zlib."""
    return zlib.decompress(base64.b64decode(text[2:])).decode() if text.startswith("z:") else text


def parse_state(text: str) -> State:
    """Parse `frazil.state.<stream>`."""
    document = json.loads(decode_text(text))
    offsets = {
        (topic, number): int(next_offset)
        for topic, listed in document["offsets"].items()
        for number, next_offset in enumerate(listed)
    }
    ids = {topic: str(value) for topic, value in document.get("topic-ids", {}).items()}
    cluster = str(document.get("cluster-id", ""))
    return State(int(document["epoch"]), str(document["batch"]), offsets, ids, cluster)


def parse_ranges(text: str) -> tuple[Range, ...]:
    """Parse `frazil.ranges`."""
    return tuple(
        Range((topic, int(number)), int(start), int(end))
        for topic, partitions in json.loads(decode_text(text)).items()
        for number, (start, end) in partitions.items()
    )


def parse_taken(summary: Summary) -> dict[Partition, Offsets]:
    """Return the coordinates that a redrive lists.

    They stand in a `frazil.…coordinates` key, where bare numbers are offsets, else in
    `frazil.ranges`, where a bare pair is a range. Both may list [topic, partition, offset] triples.
    """
    exact = sorted(key for key in summary if key.startswith("frazil.") and "coordinates" in key)
    document = json.loads(decode_text(summary[exact[0] if exact else "frazil.ranges"]))
    taken: defaultdict[Partition, set[int]] = defaultdict(set)
    if isinstance(document, list):
        for topic, number, offset in document:
            taken[topic, int(number)].add(int(offset))
        document = {}
    for topic, partitions in document.items():
        for number, listed in partitions.items():
            is_range = not exact and isinstance(listed[0], int)
            for item in [listed] if is_range else listed:
                start, end = item if isinstance(item, list) else (item, item + 1)
                taken[topic, int(number)].update(range(start, end))
    return {key: np.array(sorted(offsets), np.int64) for key, offsets in taken.items()}


def parse_gone_letters(summary: Summary) -> dict[str, dict[Partition, Offsets]]:
    """Return the letters that a deletion lists, or that a rewind says again, by attempt."""
    listed = json.loads(decode_text(summary.get("frazil.letters", "{}")))
    texts = {attempt: json.dumps(places) for attempt, places in listed.items()}
    return {attempt: parse_taken({"frazil.coordinates": text}) for attempt, text in texts.items()}


# ---- ancestry -----------------------------------------------------------------------------------
def summary_of(snapshot: Snapshot) -> Summary:
    """Return a snapshot's summary with its operation as plain text."""
    if snapshot.summary is None:
        return {}
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def read_archive(tables: Tables, findings: Findings) -> dict[int, Event]:
    """Read the table's rows of the ledger archive; one with a parent wins, then the first one."""
    archive: dict[int, Event] = {}
    uuid = str(tables.base.metadata.table_uuid)
    rows = read_live(tables.ledger, LEDGER_TYPES, findings).rows.to_pylist()
    for row in (row for row in rows if row["table_uuid"] == uuid):
        summary = {key: str(value) for key, value in json.loads(row["summary"]).items()}
        event = Event(row["snapshot_id"], row["parent_id"], summary, is_retained=False)
        known = archive.get(event.snapshot_id)
        if known is None or known.parent_id is None:
            archive[event.snapshot_id] = event
    return archive


def walk_ancestry(table: Table, archive: Mapping[int, Event]) -> tuple[list[Event], int | None]:
    """Walk parent ids from main's head through the metadata, then the archive; oldest first.

    A survivor whose parent id was erased by an expiry takes it from its archive row.
    """
    retained = {
        snapshot.snapshot_id: Event(
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            summary_of(snapshot),
            is_retained=True,
        )
        for snapshot in table.metadata.snapshots
    }
    head = table.metadata.current_snapshot_id
    walked: dict[int, Event] = {}
    while head is not None and head not in walked:
        event = retained.get(head) or archive.get(head)
        if event is None:
            return list(reversed(walked.values())), head
        if event.parent_id is None and head in archive:
            event = replace(event, parent_id=archive[head].parent_id)
        walked[head] = event
        head = event.parent_id
    return list(reversed(walked.values())), None


def read_history(tables: Tables, stream: str, findings: Findings) -> History:
    """Read main's ancestry as the stream sees it."""
    bare, cut_at = walk_ancestry(tables.base, read_archive(tables, findings))
    stated: list[Event] = []
    for event in bare:
        text = event.summary.get(f"frazil.state.{stream}")
        try:
            stated.append(replace(event, state=parse_state(text) if text else None))
        except UNREADABLE_TEXT as error:
            findings.say("E4", f"{event}: its state cannot be read: {error!r}")
            stated.append(event)
    topics = History(tuple(stated), cut_at).topics
    return History(tuple(add_ranges(event, topics, findings) for event in stated), cut_at)


def add_held(held: Held, offsets: Offsets, label: int) -> Held:
    """Add offsets under one label."""
    joined = np.concatenate([held.offsets, offsets])
    labels = np.concatenate([held.labels, np.full(len(offsets), label)])
    order = np.argsort(joined, kind="stable")
    return Held(joined[order], labels[order])


def restore_letters(history: History, letters: Letters, findings: Findings) -> Letters:
    """Add the letters that left on purpose: their batches are counted as they were published."""
    attempts, held = list(letters.attempts), dict(letters.held)
    listed: defaultdict[tuple[str, Partition], set[int]] = defaultdict(set)
    for event in history.events:
        for attempt, places in event.gone_letters.items():
            for partition, offsets in places.items():
                listed[attempt, partition].update(offsets.tolist())
    for (attempt, partition), gone in sorted(listed.items()):
        if attempt not in attempts:
            attempts.append(attempt)
        code, known = attempts.index(attempt), held.get(partition, NOTHING_HELD)
        still = np.intersect1d(known.offsets[known.labels == code], list(gone))
        text = f"dead letters of {attempt} deleted on purpose but still there"
        findings.show("E1", text, partition, still)
        absent = np.setdiff1d(np.array(sorted(gone), np.int64), still)
        held[partition] = add_held(known, absent, code)
    in_topics = {
        partition: each for partition, each in held.items() if partition[0] in history.topics
    }
    return Letters(in_topics, attempts)


def add_ranges(event: Event, topics: set[str], findings: Findings) -> Event:
    """Add the ranges or the redriven coordinates of some topics to an event."""
    try:
        if event.kind in ("ingest", "replay", "backfill"):
            found = parse_ranges(event.summary["frazil.ranges"])
            return replace(event, ranges=tuple(r for r in found if r.partition[0] in topics))
        if event.kind == "gap":
            return replace(event, lost=parse_ranges(event.summary.get("frazil.ranges", "{}")))
        if event.kind == "redrive":
            taken = {k: v for k, v in parse_taken(event.summary).items() if k[0] in topics}
            return replace(event, taken=taken)
        if event.kind in TAKING or "frazil.letters" in event.summary:
            gone = parse_taken(event.summary) if event.kind in TAKING else {}
            letters = parse_gone_letters(event.summary)
            return replace(event, gone=gone, gone_letters=letters)
    except UNREADABLE_TEXT as error:
        findings.say("E2", f"{event}: its ranges cannot be read: {error!r}")
    return event


# ---- files --------------------------------------------------------------------------------------
def list_files(
    table: Table, snapshot: Snapshot, is_wanted: Callable[[ManifestFile], bool], findings: Findings
) -> list[LiveFile]:
    """Read the live entries of a snapshot's wanted manifests, oldest first."""
    name = f"{'.'.join(table.name())}: snapshot {snapshot.snapshot_id}"
    files: list[LiveFile] = []
    manifests: list[ManifestFile] = []
    try:
        manifests = snapshot.manifests(table.io)
    except UNREADABLE_FILE as error:
        findings.say("E5", f"{name}: its manifest list is missing or unreadable: {error}")
    for manifest in filter(is_wanted, manifests):
        try:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        except UNREADABLE_FILE as error:
            findings.say("E5", f"{name}: a manifest is missing or unreadable: {error}")
            continue
        for entry in entries:
            file, ids = entry.data_file, (entry.snapshot_id or 0, entry.sequence_number or 0)
            files.append(LiveFile(file.file_path, file.record_count, *ids, file.content))
    return sorted(files, key=lambda file: file.sequence_number)


def read_parquet(io: FileIO, path: str, types: Types) -> pa.Table:
    """Read columns of one Parquet file, structs flattened, null where the file lacks one."""
    with io.new_input(path).open() as source, pq.ParquetFile(source) as file:
        rows, height = file.read(columns=list(types)), file.metadata.num_rows
    rows = rows.flatten() if rows.num_columns else rows
    columns = {
        name: rows[name].cast(kind) if name in rows.column_names else pa.nulls(height, kind)
        for name, kind in types.items()
    }
    return pa.table(columns)


def read_checked(table: Table, file: LiveFile, types: Types) -> tuple[pa.Table | None, Findings]:
    """Read a live file and compare its footer with its manifest; None where it is unreadable."""
    findings = Findings()
    where = f"{'.'.join(table.name())}: {file.path}"
    try:
        rows = read_parquet(table.io, file.path, types)
    except UNREADABLE_FILE as error:
        findings.say("E5", f"{where} is missing or unreadable: {error}")
        return None, findings
    if rows.num_rows != file.records:
        findings.say("E5", f"{where} holds {rows.num_rows} rows, its manifest says {file.records}")
    return rows, findings


def read_live(table: Table | None, types: Types, findings: Findings) -> Live:
    """Read columns of all live rows at main's head, oldest file first.

    The rows get a column `added_by`, the id of the snapshot that added their file.
    """
    labelled = {**types, "added_by": pa.int64()}
    parts = [pa.table({name: pa.nulls(0, kind) for name, kind in labelled.items()})]
    head = table.current_snapshot() if table else None
    if table is None or head is None:
        return Live([], parts[0])
    files = list_files(table, head, lambda _: True, findings)
    for path, count in Counter(file.path for file in files).items():
        if count > 1:
            findings.say("E5", f"{'.'.join(table.name())}: {path} is referenced {count} times")
    deleted = read_deletes(table, files, findings)
    data = [file for file in files if file.content == DataFileContent.DATA]
    with ThreadPoolExecutor(max_workers=4) as pool:
        results = pool.map(lambda file: read_checked(table, file, types), data)
    for file, (rows, found) in zip(data, results, strict=True):
        findings += found
        if rows is not None:
            label = pa.array(np.full(rows.num_rows, file.snapshot_id, np.int64))
            is_left = ~np.isin(np.arange(rows.num_rows), deleted.get(file.path, np.empty(0)))
            parts.append(rows.append_column("added_by", label).filter(pa.array(is_left)))
    return Live(files, pa.concat_tables(parts))


def read_deletes(table: Table, files: list[LiveFile], findings: Findings) -> dict[str, Offsets]:
    """Read which row positions of which files are deleted."""
    parts: list[pa.Table] = []
    for file in files:
        if file.content == DataFileContent.EQUALITY_DELETES:
            findings.say("E5", f"{file.path} holds equality deletes, which no table may have")
        if file.content == DataFileContent.POSITION_DELETES:
            rows, found = read_checked(table, file, DELETE_TYPES)
            findings += found
            parts += [] if rows is None else [rows]
    if not parts:
        return {}
    grouped = pa.concat_tables(parts).group_by("file_path").aggregate([("pos", "list")])
    return {row["file_path"]: np.array(row["pos_list"]) for row in grouped.to_pylist()}


def group_by_partition(rows: pa.Table, labels: Offsets) -> dict[Partition, Held]:
    """Sort the rows that have a coordinate into partitions; `labels` has one number per row."""
    is_known = np.ones(rows.num_rows, np.bool_)
    for name in ROW_TYPES:
        is_known &= rows[name].is_valid().to_numpy()
    rows, labels = rows.filter(pa.array(is_known)), labels[is_known]
    topics = rows["_kafka.topic"].combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    groups = codes * 2**32 + rows["_kafka.partition"].to_numpy()
    offsets = rows["_kafka.offset"].to_numpy()
    order = np.lexsort((offsets, groups))
    groups, offsets, labels = groups[order], offsets[order], labels[order]
    keys, starts = np.unique(groups, return_index=True)
    names, ends = topics.dictionary.to_pylist(), np.append(starts, len(groups))[1:]
    return {
        (names[key >> 32], key & 0xFFFFFFFF): Held(offsets[start:end], labels[start:end])
        for key, start, end in zip(keys.tolist(), starts, ends, strict=True)
    }


# ---- E2 and E4: the states on the ancestry ------------------------------------------------------
def audit_history(history: History, stream: str, findings: Findings) -> None:
    """Follow the stream's state from snapshot to snapshot."""
    if history.cut_at is not None:
        text = f"the ancestry is cut: neither metadata nor ledger knows {history.cut_at}"
        findings.say("E2", text)
    if history.state is None:
        findings.say("E2", f"no snapshot on main's ancestry carries frazil.state.{stream}")
    previous: State | None = None
    ended: dict[str, State | None] = {}
    for event in history.events:
        if event.kind in ("replay", "backfill", "redrive"):
            named = event.summary.get("frazil.letters-before", "")
            audit_beside(ended.get(named, previous), event, findings)
        ended[str(event.snapshot_id)] = previous
        if event.kind in ("gap", "adopt") and event.state and not event.is_authored:
            findings.say("E6", f"{event}: nobody's name or reason")
        if previous is None and event.state is not None:
            if event.kind not in ("bootstrap", "adopt", "rewind") and history.cut_at is None:
                findings.say("E2", f"{event}: the first state is not a bootstrap's")
        else:
            audit_step(previous, event, findings)
        previous = event.state or previous
    ids = [
        event.summary.get("frazil.batch-id") for event in history.events if event.kind in WITH_ROWS
    ]
    for batch, times in Counter(ids).items():
        if batch and times > 1:
            findings.say("E2", f"batch {batch} was published {times} times")


def audit_beside(point: State | None, event: Event, findings: Findings) -> None:
    """Check that what moves no offsets stays below the recovery point of the log that it is of."""
    known = point.offsets if point else {}
    ends = [(moved.partition, moved.end) for moved in event.ranges]
    ends += [(key, int(taken[-1]) + 1) for key, taken in event.taken.items()]
    for partition, end in ends:
        if end > known.get(partition, 0):
            text = f"{event}: {write_name(partition)} to {end} is above the recovery point"
            findings.say("E4", text)


def audit_step(previous: State | None, event: Event, findings: Findings) -> None:
    """Check what one snapshot does to the recovery point `previous`."""
    if event.state is None or previous is None:
        if event.kind == "ingest" and event.ranges:
            findings.say("E4", f"{event}: moves rows without a state")
    elif event.kind == "bootstrap":
        findings.say("E2", f"{event}: a second bootstrap on one ancestry")
    elif event.kind not in EPOCH_RISES:
        findings.say("E4", f"{event}: carries a state, which its kind must not")
    else:
        audit_identity(previous, event, event.state, findings)
        check = {"move": audit_move, "gap": audit_gap}.get(event.kind, audit_offsets)
        check(previous, event, event.state, findings)


def audit_identity(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check how the epoch rises, the batch, and the ids of cluster and topics."""
    known = {cluster for cluster in (previous.cluster, state.cluster) if cluster}
    if (len(known) > 1) != (event.kind == "move"):
        findings.say("E2", f"{event}: from cluster {previous.cluster} to {state.cluster}")
    if event.kind == "move" and not (event.summary.get("frazil.by") and moved_by(event)):
        findings.say("E6", f"{event}: nobody's name, or no word of what moved")
    least, most = EPOCH_RISES[event.kind]
    rise = state.epoch - previous.epoch
    if rise < least or (most is not None and rise > most):
        findings.say("E2", f"{event}: the epoch goes from {previous.epoch} to {state.epoch}")
    batch = event.summary.get("frazil.batch-id")
    if event.kind == "ingest" and batch != state.batch:
        findings.say("E2", f"{event}: frazil.batch-id is {batch}, the state's {state.batch}")
    if (state.batch == previous.batch) != (event.kind == "carry"):
        findings.say(
            "E2", f"{event}: the state's batch goes from {previous.batch} to {state.batch}"
        )
    for topic in previous.topic_ids.keys() & state.topic_ids.keys():
        if event.kind == "ingest" and previous.topic_ids[topic] != state.topic_ids[topic]:
            findings.say("E2", f"{event}: topic {topic} is another one, by its id")


def moved_by(event: Event) -> dict[Partition, tuple[int, int]]:
    """Return the next offsets before and after, as a move to another cluster tells them."""
    try:
        told = json.loads(event.summary.get("frazil.moved", "{}")).get("partitions", {})
        return {
            (topic, int(number)): (int(listed[0]), int(listed[1]))
            for topic, partitions in told.items()
            for number, listed in partitions.items()
        }
    except UNREADABLE_TEXT:
        return {}


def audit_move(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that a move to another cluster says what it did to each partition."""
    for partition in sorted({*previous.offsets, *state.offsets}):
        went = (previous.offsets.get(partition, 0), state.offsets.get(partition, 0))
        told = moved_by(event).get(partition, (went[0], went[0]))
        if told != went:
            text = f"{event}: {write_name(partition)} goes {went}, the move says {told}"
            findings.say("E2", text)


def audit_offsets(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that each partition moves as the snapshot's kind and ranges say."""
    moves = {moved.partition: moved for moved in event.ranges}
    for partition in sorted({*previous.offsets, *state.offsets, *moves}):
        before, after = previous.offsets.get(partition, 0), state.offsets.get(partition, 0)
        moved = moves.get(partition, Range(partition, before, before))
        name = f"{event}: {write_name(partition)}"
        if moved.start > before:
            findings.say("E2", f"{name}: gap, [{before}, {moved.start}) is in no range")
        if moved.start < before:
            findings.say("E2", f"{name}: overlap, [{moved.start}, {before}) is in two ranges")
        if after < before:
            findings.say("E4", f"{name}: the state goes back from {before} to {after}")
        elif after > moved.end:
            findings.say("E4", f"{name}: the state says {after}, the data end at {moved.end}")
        elif after < moved.end:
            findings.say("E2", f"{name}: the state says {after}, the range ends at {moved.end}")


def audit_gap(previous: State, event: Event, state: State, findings: Findings) -> None:
    """Check that a gap says exactly what it leaves out: each partition's move forward.

    It may go back where the topic is another one or its log was cut: see `list_restarts`.
    """
    moved = {
        Range(partition, previous.offsets.get(partition, 0), after)
        for partition, after in state.offsets.items()
        if after > previous.offsets.get(partition, 0)
    }
    for each in sorted(moved.symmetric_difference(event.lost), key=str):
        says = "leaves it out and does not say so" if each in moved else "says so, and does not"
        text = f"[{each.start}, {each.end}): {says}"
        findings.say("E2", f"{event}: {write_name(each.partition)} {text}")


def audit_setback(table: Table, history: History, stream: str, findings: Findings) -> None:
    """Find states above main's: somebody set main back without a recorded rewind."""
    epochs: dict[str, int] = {}
    try:
        for snapshot in table.metadata.snapshots:
            if text := summary_of(snapshot).get(f"frazil.state.{stream}"):
                epochs[f"snapshot {snapshot.snapshot_id}"] = parse_state(text).epoch
        hint = json.loads(table.properties.get(f"frazil.hint.{stream}", "{}"))
        epochs["the hint"] = int(hint.get("epoch", -1))
    except UNREADABLE_TEXT as error:
        findings.say("E4", f"a state or hint cannot be read: {error!r}")
    main_epoch = history.state.epoch if history.state else -1
    for where, epoch in epochs.items():
        if epoch > main_epoch:
            findings.say(
                "E4", f"{where} has epoch {epoch}, main {main_epoch}, and no rewind says why"
            )


def audit_end(history: History, logs: Mapping[Partition, PartitionLog], findings: Findings) -> None:
    """Find partitions whose recovery point lies beyond what Kafka has."""
    for partition, next_offset in (history.state.offsets if history.state else {}).items():
        log = logs.get(partition)
        if log is None or next_offset > log.end:
            has = f"ends at {log.end}" if log else "does not have it"
            text = f"{write_name(partition)}: the recovery point is {next_offset}, Kafka {has}"
            findings.say("E4", text)


# ---- E3 and E6: counts and foreign snapshots ----------------------------------------------------
def audit_counts(table: Table, history: History, live: Live, findings: Findings) -> None:
    """Check each snapshot's counts against its summary, its manifests and its files."""
    by_id = {event.snapshot_id: event for event in history.events}
    for event in history.events:
        if (event.kind in WITHOUT_ROWS or event.is_seal) and event.changed_records:
            findings.say("E3", f"{event}: must be empty, changes {event.changed_records} records")
        if event.kind in TAKING:
            audit_taking(event, findings)
        is_mine = event.kind in WITH_ROWS and (event.ranges or event.taken or event.state)
        if not is_mine or (event.kind == "ingest" and event.is_seal):
            continue
        audit_conservation(event, findings)
        source = by_id.get(event.parent_id or 0) if event.is_seal else event
        if source is not None and source.summary.get("operation", "append") == "append":
            audit_added(table, event, source, live, findings)


def audit_taking(event: Event, findings: Findings) -> None:
    """Check that a deletion took as many rows as it lists, and says who wanted it."""
    listed = sum(len(offsets) for offsets in event.gone.values())
    said, taken = (
        event.count("frazil.rows-deleted"),
        event.count("deleted-records") - event.count("added-records"),
    )
    if said != taken or listed > said:
        text = f"{event}: says {said} rows, lists {listed}, took {taken}"
        findings.say("E3", text)
    if event.kind == "erase" and not event.is_authored:
        findings.say("E6", f"{event}: nobody's name or reason")


def audit_conservation(event: Event, findings: Findings) -> None:
    """Check read = written + quarantined + skipped in one summary."""
    names = ("read", "written", "quarantined", "skipped")
    for name in names:
        if not event.summary.get(f"frazil.rows-{name}", "").isdigit():
            findings.say("E3", f"{event}: no exact frazil.rows-{name}")
    read, written, quarantined, skipped = (event.count(f"frazil.rows-{name}") for name in names)
    if read != written + quarantined + skipped:
        text = (
            f"read {read} is not written {written} + quarantined {quarantined} + skipped {skipped}"
        )
        findings.say("E3", f"{event}: {text}")


def audit_added(table: Table, event: Event, source: Event, live: Live, findings: Findings) -> None:
    """Compare rows-written with the records that the snapshot `source` added, by its files too."""
    written, added = event.count("frazil.rows-written"), source.count("added-records")
    if added != written:
        findings.say("E3", f"{event}: wrote {written} rows, added-records is {added}")
    snapshot = table.metadata.snapshot_by_id(source.snapshot_id)
    mine = [file for file in live.files if file.snapshot_id == source.snapshot_id]
    if snapshot is None or sum(file.records for file in mine) == written:
        return
    # A compaction took files from the head: the snapshot's own manifests still name them.
    own = source.snapshot_id
    files = list_files(table, snapshot, lambda m: m.added_snapshot_id == own, findings)
    if (rows := sum(file.records for file in files if file.snapshot_id == own)) != written:
        findings.say("E3", f"{event}: wrote {written} rows, its files hold {rows}")
    for path in {file.path for file in files} - {file.path for file in live.files}:
        if not table.io.new_input(path).exists():
            findings.say("E5", f"{event}: data file {path} is missing")


def audit_foreign(history: History, findings: Findings) -> None:
    """Find foreign snapshots that changed rows, and compactions that lost or made some."""
    for event in history.foreign_events:
        added, deleted = event.count("added-records"), event.count("deleted-records")
        operation = event.summary.get("operation", "unknown")
        if operation != "replace" and event.changed_records:
            taken = deleted + event.count("added-position-deletes")
            text = f"foreign rows: {operation} {event.snapshot_id} adds {added}, takes {taken}"
            findings.say("E6", text)
        # A compaction that applies position deletes leaves fewer rows: there only E1 can tell.
        deletes = event.count("total-delete-files") + event.count("removed-delete-files")
        if operation == "replace" and (added > deleted or (added < deleted and not deletes)):
            findings.say("E6", f"{event}: a compaction took {deleted} records and gave {added}")


# ---- E1: delivery -------------------------------------------------------------------------------
def paint(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Return for each offset the index of the last span that covers it, -1 for none."""
    owners = np.full(len(offsets), -1, np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        owners[low:high] = span.owner
    return owners


def list_restarts(before: State, event: Event, index: int) -> dict[Partition, Restart]:
    """List the partitions whose offsets mean other records from this event on.

    So it is after a move to another cluster, and after a gap that answers a topic that was created
    again (another id) or a log that was cut (the offsets go back).
    """
    after = event.state
    if after is None or event.kind not in ("gap", "move"):
        return {}
    restarts: dict[Partition, Restart] = {}
    for partition in {*before.offsets, *after.offsets}:
        ids = (before.topic_ids.get(partition[0]), after.topic_ids.get(partition[0]))
        end = after.offsets.get(partition, 0)
        if event.kind == "move" or ids[0] != ids[1]:
            restarts[partition] = Restart(index, 0)
        elif end < before.offsets.get(partition, 0):
            restarts[partition] = Restart(index, end)
    return restarts


def cut_log(log: PartitionLog | None, restarts: Iterable[Restart]) -> PartitionLog | None:
    """Return what the log still has in common with the one that was read before the restarts."""
    cut = min((restart.cut for restart in restarts), default=None)
    if log is None or cut is None:
        return log
    return log._replace(end=cut, offsets=log.offsets[log.offsets < cut])


def find_strays(held: Held, spans: Iterable[Span], labels: Mapping[int, int]) -> Offsets:
    """Return offsets whose label is an event's, but which lie in none of that event's spans.

    `labels` maps the index of an event to its label.
    """
    is_inside = np.zeros(len(held.offsets), np.bool_)
    for span in spans:
        if span.owner in labels:
            low, high = np.searchsorted(held.offsets, [span.start, span.end])
            is_inside[low:high] |= held.labels[low:high] == labels[span.owner]
    return held.offsets[np.isin(held.labels, list(labels.values())) & ~is_inside]


class Delivery:
    """The check of E1 over all partitions; numbers are kept by index into the history's events."""

    def __init__(self, history: History, letters: Letters, findings: Findings) -> None:
        """Arrange what the ancestry published by partition."""
        self.events, self.letters, self.findings = history.events, letters, findings
        self.spans: defaultdict[Partition, list[Span]] = defaultdict(list)
        self.lost: defaultdict[Partition, list[Span]] = defaultdict(list)
        self.overlaid: set[int] = set()
        self.rows: Counter[int] = Counter()
        self.redriven: Counter[int] = Counter()
        self.delivered: Counter[int] = Counter()
        self.unheld: set[int] = set()
        self.missing: defaultdict[int, list[tuple[Partition, Offsets]]] = defaultdict(list)
        self.counting = 0
        self.appended = {
            index: event.snapshot_id
            for index, event in enumerate(self.events)
            if event.kind == "ingest" and not event.is_seal
        }
        self.restarts: defaultdict[Partition, list[Restart]] = defaultdict(list)
        before = State(0, "", {}, {})
        for index, event in enumerate(self.events):
            for partition, restart in list_restarts(before, event, index).items():
                self.restarts[partition].append(restart)
                kept = [span for span in self.lost[partition] if span.start < restart.cut]
                self.lost[partition] = [s._replace(end=min(s.end, restart.cut)) for s in kept]
            for moved in event.ranges:
                self.add_range(index, moved)
            if event.kind == "adopt" and event.state:
                for partition, end in event.state.offsets.items():
                    self.spans[partition].append(Span(before.offsets.get(partition, 0), end, index))
            # One that answers a rollback, by its epoch, may leave out what Kafka still has.
            if event.kind == "gap" and event.state and event.state.epoch == before.epoch + 1:
                for gone in event.lost:
                    self.lost[gone.partition].append(Span(gone.start, gone.end, index))
            before = event.state or before

    def add_range(self, index: int, moved: Range) -> None:
        """Note a published range, and whose ranges a replay overlays; a backfill never does."""
        spans, event = self.spans[moved.partition], self.events[index]
        last = max((restart.index for restart in self.restarts[moved.partition]), default=-1)
        hit = [
            span.owner
            for span in spans
            if span.owner > last and span.start < moved.end and moved.start < span.end
        ]
        if event.kind == "replay":
            self.overlaid.update(hit)
        elif event.kind == "backfill" and hit:
            text = f"{event}: {moved} was published before, by {self.events[hit[0]]}"
            self.findings.say("E2", text)
        spans.append(Span(moved.start, moved.end, index))

    def audit_partition(self, partition: Partition, rows: Held, log: PartitionLog | None) -> None:
        """Compare one partition's rows and counting letters with its ranges and its log.

        What was read from each log is judged apart: of an earlier one there is only what the last
        one has in common with it.
        """
        spans = self.spans[partition]
        strays = find_strays(rows, spans, self.appended)
        self.findings.show("E4", "rows came with a snapshot of other ranges", partition, strays)
        generations = self.split_generations(partition, rows)
        if log is not None:
            there = np.setdiff1d(log.offsets, generations[-1].rows.offsets)
            there = there[paint(there, self.lost[partition]) >= 0]
            text = "records recorded as lost that Kafka still delivers"
            self.findings.show("E1", text, partition, there)
        for number, own in enumerate(generations):
            own_log = cut_log(log, self.restarts[partition][number:])
            if own_log is not log:
                end = own_log.end if own_log else 0
                self.unheld.update(span.owner for span in own.spans if span.end > end)
            self.audit_generation(partition, own, own_log)

    def list_starts(self, partition: Partition) -> list[int]:
        """List where the ranges start that were read from today's log."""
        last = max((restart.index for restart in self.restarts[partition]), default=-1)
        return [span.start for span in self.spans[partition] if span.owner > last]

    def split_generations(self, partition: Partition, rows: Held) -> list[Generation]:
        """Give what was read from each log, oldest first.

        Files say it, until a compaction: then the newest log that can have had a row's record is
        it, and what is left is the oldest one's.
        """
        bounds = [-1, *(each.index for each in self.restarts[partition]), len(self.events)]
        split: list[Generation] = []
        for low, high in reversed(list(itertools.pairwise(bounds))):
            spans = [span for span in self.spans[partition] if low < span.owner < high]
            letters = self.counting_letters(partition, spans)
            if low == -1:
                return [Generation(spans, letters, rows), *reversed(split)]
            own = [label for index, label in self.appended.items() if low < index < high]
            is_own = np.isin(rows.labels, own)
            is_free = ~np.isin(rows.labels, list(self.appended.values()))
            is_free &= (paint(rows.offsets, spans) >= 0) & ~np.isin(
                rows.offsets, np.concatenate([rows.offsets[is_own], letters])
            )
            free = np.flatnonzero(is_free)
            taken = is_own.copy()
            taken[free[np.unique(rows.offsets[free], return_index=True)[1]]] = True
            own_rows = Held(rows.offsets[taken], rows.labels[taken])
            split.append(Generation(spans, letters, own_rows))
            rows = Held(rows.offsets[~taken], rows.labels[~taken])
        return split

    def audit_generation(
        self, partition: Partition, own: Generation, log: PartitionLog | None
    ) -> None:
        """Compare what was read from one log."""
        spans, letters, rows = own
        gone = self.find_gone(partition, spans, rows)
        self.counting += len(np.setdiff1d(letters, gone))
        text = "records deleted on purpose but still there"
        self.findings.show("E1", text, partition, np.intersect1d(rows.offsets, gone))
        absent = gone[~np.isin(gone, np.concatenate([rows.offsets, letters]))]
        rows = add_held(rows, absent, -1)
        owners = paint(rows.offsets, spans)
        self.rows.update(owners.tolist())
        top = max((span.end for span in spans), default=0)
        outside = rows.offsets[owners < 0]
        above, below = outside[outside >= top], outside[outside < top]
        self.findings.show("E1", f"rows above every published range ({top})", partition, above)
        self.findings.show("E1", "rows outside every published range", partition, below)
        present, times = np.unique(np.concatenate([rows.offsets, letters]), return_counts=True)
        text = "records more than once in table and counting dead letters"
        self.findings.show("E1", text, partition, present[times > 1])
        if log is not None:
            self.audit_log(partition, spans, present, log)

    def find_gone(self, partition: Partition, own: list[Span], rows: Held) -> Offsets:
        """Return what left on purpose and did not come back: by a batch, or if too old a replay.

        Where two logs had a record at an offset, the one that is there has not left.
        """
        found = [np.empty(0, np.int64)]
        others = [span for span in self.spans[partition] if span not in own]
        for index, event in enumerate(self.events):
            if event.kind in TAKING:
                letters = [
                    held[partition] for held in event.gone_letters.values() if partition in held
                ]
                listed = np.unique(np.concatenate([event.gone.get(partition, found[0]), *letters]))
                again = ("ingest",) if event.kind == "erase" else ("ingest", "replay", "backfill")
                later = [s for s in own if s.owner > index and self.events[s.owner].kind in again]
                listed = listed[paint(listed, later) < 0]
                is_unsure = paint(listed, others) >= 0
                is_own = (paint(listed, own) >= 0) | ~is_unsure
                is_there = is_unsure & np.isin(listed, rows.offsets)
                found.append(listed[is_own & ~is_there])
        return np.unique(np.concatenate(found))

    def counting_letters(self, partition: Partition, own_spans: list[Span]) -> Offsets:
        """Return the letters of one log that count (the protocol's 'Dead letters').

        A letter counts iff its attempt is the last on the ancestry that covers its coordinate, and
        no redrive above that lists the coordinate. A redrive takes letters of the last batches
        before it, or before the end of an earlier log that it names.
        """
        letters = self.letters.held.get(partition, NOTHING_HELD)
        is_adopted = {index for index, event in enumerate(self.events) if event.kind == "adopt"}
        spans = [span for span in own_spans if span.owner not in is_adopted]
        codes = self.attempt_codes()
        mine = {span.owner for span in spans}
        named = {i: code for i, code in codes.items() if code >= 0 and i in mine}
        strays = find_strays(letters, spans, named)
        self.findings.show("E1", "letters outside their attempt's ranges", partition, strays)
        redriven = np.full(len(letters.offsets), -1, np.int64)
        for index, event in enumerate(self.events):
            if partition in event.taken:
                taken, before = event.taken[partition], self.find_bound(index)
                known = [span for span in self.spans[partition] if span.owner < before]
                owners = paint(taken, [span for span in known if span.owner not in is_adopted])
                is_own = np.isin(owners, list(mine))
                redriven[np.isin(letters.offsets, taken[is_own])] = index
                self.redriven.update(owners[is_own].tolist())
        last = paint(letters.offsets, spans)
        own = np.array([codes.get(index, -1) for index in range(len(self.events))] + [-1])
        is_counting: npt.NDArray[np.bool_] = (own[last] == letters.labels) & (redriven < last)
        return letters.offsets[is_counting]

    def find_bound(self, index: int) -> int:
        """Return the event before which a redrive's letters were read: itself, or a log's end."""
        named = self.events[index].summary.get("frazil.letters-before")
        ends = (i for i, event in enumerate(self.events) if str(event.snapshot_id) == named)
        return index if named is None else next(ends, -1)

    def attempt_codes(self) -> dict[int, int]:
        """Return the letters' label of each event that publishes ranges, -1 where none has it."""
        codes = {attempt: code for code, attempt in enumerate(self.letters.attempts)}
        return {
            index: codes.get(event.summary.get("frazil.attempt", ""), -1)
            for index, event in enumerate(self.events)
            if event.ranges
        }

    def audit_log(
        self, partition: Partition, spans: list[Span], present: Offsets, log: PartitionLog
    ) -> None:
        """Compare what exists of a partition with what Kafka delivers of it."""
        is_aged = [span.owner for span in spans if span.start < log.earliest or log.is_compacted]
        self.unheld.update(is_aged)
        owners = paint(log.offsets, spans)
        self.delivered.update(owners.tolist())
        is_missing = (owners >= 0) & ~np.isin(log.offsets, present)
        for index in np.unique(owners[is_missing]).tolist():
            self.missing[index].append((partition, log.offsets[is_missing & (owners == index)]))
        phantom = present[(present >= log.earliest) & ~np.isin(present, log.offsets)]
        if self.restarts[partition]:
            phantom = phantom[(paint(phantom, spans) >= 0) & (phantom < log.end)]
        if not log.is_compacted:
            self.findings.show(
                "E1", "rows or letters that Kafka does not deliver", partition, phantom
            )

    def audit_totals(self) -> None:
        """Compare each snapshot's counts with what exists and what Kafka delivers of its ranges.

        After a compaction a row of an old log stands for a record that the new one skipped at its
        offset: then what is unlike in one batch is made up for in another.
        """
        unlike: dict[int, int] = {}
        shared: set[int] = set()
        pool = 0
        for index, event in enumerate(self.events):
            if not event.ranges:
                continue
            absent, skipped = self.missing[index], event.count("frazil.rows-skipped")
            if (lost := sum(len(offsets) for _, offsets in absent)) > skipped:
                text = (
                    f"{event}: {lost} delivered records are neither in the table nor dead letters"
                )
                some = tuple(
                    c for name, offsets in absent for c in shown_coordinates(name, offsets)
                )
                shown = some[:SHOWN_COORDINATES]
                self.findings.append(Finding("E1", f"{text}; {skipped} were skipped", shown))
            read, delivered = event.count("frazil.rows-read"), self.delivered[index]
            if event.kind == "replay" or index in self.overlaid:
                continue
            if index not in self.unheld and read != delivered:
                text = f"{event}: read {read} records, Kafka delivers {delivered} in its ranges"
                self.findings.say("E3", text)
            is_shared = any(self.restarts[moved.partition] for moved in event.ranges)
            if index in self.unheld:
                written = event.count("frazil.rows-written") + self.redriven[index]
                unlike[index] = self.rows[index] - written
                pool += unlike[index] if is_shared else 0
                shared |= {index} if is_shared else set()
            elif is_shared:
                pool += skipped - min(lost, skipped)
        for index, more in unlike.items():
            if more and (pool or index not in shared):
                exist, event = self.rows[index], self.events[index]
                text = f"{event}: {exist} rows exist in its ranges, it wrote {exist - more}"
                self.findings.say("E1", text)

    def audit_quarantined(self) -> None:
        """Compare each attempt's letters with its rows-quarantined."""
        held: Counter[int] = Counter()
        for letters in self.letters.held.values():
            held.update(np.unique(np.stack(letters), axis=1)[1].tolist())
        for index, code in self.attempt_codes().items():
            event = self.events[index]
            if (said := event.count("frazil.rows-quarantined")) != held[code]:
                text = (
                    f"{event}: quarantined {said} records, its attempt holds {held[code]} letters"
                )
                self.findings.say("E3", text)


# ---- Kafka --------------------------------------------------------------------------------------
def read_kafka_topic(
    bootstrap: str, topic: str, isolation: str
) -> dict[str, dict[int, PartitionLog]]:
    """Read which offsets of a topic Kafka delivers under an isolation level.

    Raises:
        KafkaException: the broker refused.
        TimeoutError: nothing arrived for 30 seconds before the end was reached.
    """
    logs = read_logs(bootstrap, topic, isolation)
    is_compacted = bool(logs) and read_is_compacted(bootstrap, topic)
    return {topic: {n: log._replace(is_compacted=is_compacted) for n, log in logs.items()}}


def read_logs(bootstrap: str, topic: str, isolation: str) -> dict[int, PartitionLog]:
    """Read a topic's partitions from their earliest to their end; none where it does not exist."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": "frazil-auditor",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
    }
    consumer = Consumer(settings)
    try:
        found = consumer.list_topics(topic, timeout=SILENCE_SECONDS).topics[topic]
        limits = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), SILENCE_SECONDS)
            for number in (() if found.error else found.partitions)
        }
        offsets = consume_offsets(consumer, topic, limits)
    finally:
        consumer.close()
    return {n: PartitionLog(low, high, offsets[n]) for n, (low, high) in limits.items()}


def consume_offsets(
    consumer: Consumer, topic: str, limits: Mapping[int, tuple[int, int]]
) -> dict[int, Offsets]:
    """Consume partitions between their limits; only the limit or the broker's end ends one."""
    consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in limits.items()])
    pending = {number for number, (low, high) in limits.items() if low < high}
    collected: dict[int, list[int]] = {number: [] for number in limits}
    heard_at = time.monotonic()
    while pending:
        messages = consumer.consume(50_000, timeout=0.5)
        heard_at = time.monotonic() if messages else heard_at
        if time.monotonic() - heard_at > SILENCE_SECONDS:
            raise TimeoutError(f"Kafka sent nothing of {topic} {pending} for {SILENCE_SECONDS} s")
        for message in messages:
            error, number, offset = message.error(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - public in its documentation
                raise KafkaException(error)
            if number is None or offset is None:
                continue
            if error is None and offset < limits[number][1]:
                collected[number].append(offset)
            if error is not None or offset + 1 >= limits[number][1]:
                pending.discard(number)
    return {number: np.array(offsets, np.int64) for number, offsets in collected.items()}


def read_is_compacted(bootstrap: str, topic: str) -> bool:
    """Say whether a topic is compacted; a broker that does not tell is taken to keep everything."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive its answer
    try:
        described = admin.describe_configs([resource])[resource].result(timeout=10)
        return "compact" in str(described["cleanup.policy"].value)
    except (KafkaException, KeyError, TimeoutError):
        return False


# ---- the audit ----------------------------------------------------------------------------------
def load_if_exists(catalog: Catalog, name: str) -> Table | None:
    """Load a table, None where it does not exist."""
    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def open_tables(catalog: Catalog, name: str) -> Tables:
    """Load the audited table, its dead letters and the ledger archive."""
    letters = load_if_exists(catalog, f"{name}__dead_letters")
    return Tables(catalog.load_table(name), letters, load_if_exists(catalog, LEDGER))


def read_letters(table: Table | None, topics: set[str], findings: Findings) -> Letters:
    """Read the dead letters of some topics."""
    rows = read_live(table, LETTER_TYPES, findings).rows
    if unkeyed := rows["attempt"].null_count:
        findings.say("E1", f"{unkeyed} dead letters name no attempt: they can never count")
    encoded = rows["attempt"].fill_null("").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    held = {k: v for k, v in group_by_partition(rows, codes).items() if k[0] in topics}
    return Letters(held, encoded.dictionary.to_pylist())


def topics_of(text: str) -> set[str]:
    """Return the topics of any stream's state; a broken one names none."""
    try:
        return {topic for topic, _ in parse_state(text).offsets}
    except UNREADABLE_TEXT:
        return set()


def read_rows(history: History, live: Live, findings: Findings) -> dict[Partition, Held]:
    """Sort the table's rows into the stream's partitions; rows of nobody are findings."""
    held = group_by_partition(live.rows, live.rows["added_by"].to_numpy())
    bare = live.rows.num_rows - sum(len(rows.offsets) for rows in held.values())
    counts = [(e.count("added-records"), e.count("deleted-records")) for e in history.inherited]
    inherited = sum(added - deleted for added, deleted in counts)
    if bare > inherited:
        text = (
            f"{bare} rows carry no Kafka coordinate, {inherited} were there before the first batch"
        )
        findings.say("E1", text)
    summaries = [event.summary for event in history.events]
    states = [text for s in summaries for key, text in s.items() if key.startswith("frazil.state.")]
    known = history.topics.union(*map(topics_of, states))
    for partition, rows in held.items():
        if partition[0] not in known:
            findings.show("E1", "rows of a topic that no stream reads", partition, rows.offsets)
    return {partition: rows for partition, rows in held.items() if partition[0] in history.topics}


def audit(tables: Tables, stream: str, isolation: str, read_topic: TopicReader) -> AuditReport:
    """Audit one stream of an open table; `read_topic` takes a topic and the isolation level."""
    findings = Findings()
    history = read_history(tables, stream, findings)
    live = read_live(tables.base, ROW_TYPES, findings)
    letters = read_letters(tables.dead_letters, history.topics, findings)
    rows = read_rows(history, live, findings)
    # Kafka is read after the table: by then it can only have more.
    logs = {
        (topic, number): log
        for topic in sorted(history.topics)
        for number, log in read_topic(topic, isolation).get(topic, {}).items()
    }
    audit_history(history, stream, findings)
    audit_setback(tables.base, history, stream, findings)
    audit_end(history, logs, findings)
    audit_counts(tables.base, history, live, findings)
    audit_foreign(history, findings)
    delivery = Delivery(history, restore_letters(history, letters, findings), findings)
    for partition in sorted({*delivery.spans, *rows, *letters.held}):
        delivery.audit_partition(partition, rows.get(partition, NOTHING_HELD), logs.get(partition))
    delivery.audit_quarantined()
    if not history.is_upsert:
        delivery.audit_totals()
    facts = {
        "head": tables.base.metadata.current_snapshot_id,
        "isolation": isolation,
        "live_files": len(live.files),
        "rows_in_table": live.rows.num_rows,
        "rows_of_stream": sum(len(held.offsets) for held in rows.values()),
        "dead_letters": sum(len(held.offsets) for held in letters.held.values()),
        **history_facts(history),
        **delivery_facts(delivery, logs),
    }
    return AuditReport(".".join(tables.base.name()), stream, tuple(findings), facts)


def history_facts(history: History) -> dict[str, object]:
    """Count the snapshots on the ancestry and name the recovery point."""
    state, events = history.state, history.events
    return {
        "mode": "upsert" if history.is_upsert else "append",
        "snapshots": dict(Counter(event.kind or "without kind" for event in events)),
        "archived_snapshots": sum(not event.is_retained for event in events),
        "inherited_snapshots": len(history.inherited),
        "foreign_snapshots": [event.snapshot_id for event in history.foreign_events],
        "rows_skipped": sum(event.count("frazil.rows-skipped") for event in events if event.ranges),
        "epoch": state.epoch if state else None,
        "recovery_point": {write_name(k): n for k, n in (state.offsets if state else {}).items()},
    }


def delivery_facts(delivery: Delivery, logs: Mapping[Partition, PartitionLog]) -> dict[str, object]:
    """Count what was compared, and say from which offset Kafka could be asked."""
    starts = {partition: delivery.list_starts(partition) for partition in sorted(delivery.spans)}
    checked_from = {
        write_name(partition): max(logs[partition].earliest, min(found))
        for partition, found in starts.items()
        if found and partition in logs
    }
    return {
        "records_delivered": sum(n for index, n in delivery.delivered.items() if index >= 0),
        "dead_letters_counting": delivery.counting,
        "checked_from": checked_from,
    }


def audit_table(
    catalog_properties: Mapping[str, str],
    catalog_name: str,
    table: str,
    bootstrap: str,
    stream: str,
) -> AuditReport:
    """Audit one stream of a table as `read_committed` delivers it.

    Raises:
        NoSuchTableError: there is no such table.
        KafkaException: the broker refused.
        TimeoutError: the broker went silent.
    """
    tables = open_tables(load_catalog(catalog_name, **catalog_properties), table)
    reader = functools.partial(read_kafka_topic, bootstrap)
    return audit(tables, stream, "read_committed", reader)


def fingerprint(table: Table) -> str:
    """Return the head's id with digests of all rows' and dead letters' coordinates (E7).

    Equal before and after a repetition says that it published neither rows nor letters.
    """
    letters = load_if_exists(table.catalog, ".".join(table.name()) + "__dead_letters")
    parts = [str(table.metadata.current_snapshot_id)]
    for found, types in ((table, ROW_TYPES), (letters, LETTER_TYPES)):
        rows = read_live(found, types, Findings()).rows.select(list(types))
        columns = [column.to_pylist() for column in rows.columns]
        lines = sorted(map(repr, zip(*columns, strict=True)))
        parts.append(
            f"{len(lines)}:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
        )
    return " ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as JSON and return 1 when something was found."""
    parser = argparse.ArgumentParser(description="Recompute E1 to E6 of a Frazil table.")
    parser.add_argument("--catalog-name", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", required=True, metavar="NAMESPACE.NAME")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--stream", required=True)
    levels = ("read_committed", "read_uncommitted")
    parser.add_argument("--isolation", default=levels[0], choices=levels)
    chosen = parser.parse_args(arguments)
    properties = dict(item.split("=", 1) for item in chosen.property)
    tables = open_tables(load_catalog(chosen.catalog_name, **properties), chosen.table)
    reader = functools.partial(read_kafka_topic, chosen.bootstrap)
    report = audit(tables, chosen.stream, chosen.isolation, reader)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
