"""Recompute the invariants E1 to E7 of one stream's table from Kafka and Iceberg alone.

The auditor shares no code with the product: a mistake in the product cannot hide itself here. It knows
the commit protocol (snapshot summaries, dead letters, the ledger archive) and nothing else, and reads
the topic, the table's metadata, its Parquet files, its dead letters and `frazil.ledger`.

    python tests/faults/auditor.py --catalog-name lake --property type=sql --property uri=... \
        --table demo.flights --bootstrap 127.0.0.1:9092 --stream flights

prints one JSON document; it exits with 0 when nothing was found and with 1 when something was.

E1 every delivered record is in the table or counts as a dead letter, exactly once
E2 the ranges on main's ancestry have no gap and no overlap; epochs rise as their kinds say
E3 rows = read - quarantined - skipped, in the summary, the manifests and the files
E4 the recovery point is never ahead of the data and goes back only by a recorded rewind
E5 no file is referenced twice, none is missing, footers and manifests agree
E6 nobody else changed rows
E7 repeating a finished run is a no-op: compare `fingerprint` before and after

What the table alone cannot tell is left out and named in `facts`: an upsert stream is not searched for
missing rows (its key is not in the metadata), nor is a partition below its `checked_from` offset.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Partition = tuple[str, int]
Coordinate = tuple[str, int, int]
Summary = Mapping[str, str]

LEDGER = "frazil.ledger"
NO_ROWS = ("bootstrap", "gap", "adopt", "carry", "rewind")
WITH_ROWS = ("ingest", "replay", "redrive")
EPOCH_RISES = {
    "ingest": (1, 1),
    "adopt": (1, 1),
    "gap": (1, None),
    "rewind": (1, None),
    "carry": (0, 0),
}
SHOWN_COORDINATES = 20
READ_FAILURES = (OSError, pa.ArrowInvalid)
COORDINATE_TYPES = {
    "_kafka.topic": pa.string(),
    "_kafka.partition": pa.int64(),
    "_kafka.offset": pa.int64(),
}
LETTER_TYPES = {**COORDINATE_TYPES, "attempt": pa.string()}
LEDGER_TYPES = {
    "table_uuid": pa.string(),
    "snapshot_id": pa.int64(),
    "parent_id": pa.int64(),
    "summary": pa.string(),
}


# ---- values -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finding:
    """One broken invariant; `coordinates` shows at most the first twenty records concerned."""

    invariant: str
    text: str
    coordinates: tuple[Coordinate, ...] = ()


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
    """What Kafka delivers of one partition: `offsets` ascending, `earliest` and `end` half-open."""

    earliest: int
    end: int
    offsets: Offsets
    is_compacted: bool = False


TopicLog = Mapping[str, Mapping[int, PartitionLog]]
TopicReader = Callable[[str, str], TopicLog]


class Range(NamedTuple):
    """Half-open offsets of one partition."""

    partition: Partition
    start: int
    end: int


class Span(NamedTuple):
    """Half-open offsets that the event at `index` of the ancestry published."""

    start: int
    end: int
    index: int


@dataclass(frozen=True)
class State:
    """The content of `frazil.state.<stream>`."""

    epoch: int
    batch: str
    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True)
class Event:
    """One snapshot on main's ancestry, seen by one stream."""

    snapshot_id: int
    parent_id: int | None
    summary: Summary
    is_retained: bool
    state: State | None = None
    ranges: tuple[Range, ...] = ()
    taken: Mapping[Partition, Offsets] | None = None

    @property
    def kind(self) -> str:
        """Return `frazil.kind`, empty for a snapshot that Frazil did not make."""
        return self.summary.get("frazil.kind", "")

    @property
    def is_sealed(self) -> bool:
        """Say whether the rows came with the parent, a staged MERGE or redrive."""
        source = self.summary.get("source-snapshot-id")
        return (
            self.kind in WITH_ROWS and self.parent_id is not None and source == str(self.parent_id)
        )

    def count(self, key: str) -> int:
        """Return a number of the summary, 0 where it is absent."""
        text = self.summary.get(key, "0")
        return int(text) if text.lstrip("-").isdigit() else 0

    def __str__(self) -> str:
        """Name the snapshot in a finding."""
        return f"{self.kind or 'foreign'} snapshot {self.snapshot_id}"


@dataclass(frozen=True)
class Held:
    """Offsets of one partition, ascending, each with a label of what brought it."""

    offsets: Offsets
    labels: Offsets


class LiveFile(NamedTuple):
    """One entry of the head's manifests."""

    path: str
    records: int
    snapshot_id: int
    sequence_number: int
    content: DataFileContent


@dataclass(frozen=True)
class Live:
    """The head's files and the rows in them that deletes left."""

    files: tuple[LiveFile, ...]
    rows: pa.Table
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Tables:
    """The audited table and the two beside it, None where they do not exist."""

    base: Table
    dead_letters: Table | None
    ledger: Table | None


@dataclass(frozen=True)
class History:
    """Main's ancestry, oldest first; `cut_at` is the parent that no source knows."""

    events: tuple[Event, ...]
    cut_at: int | None
    findings: tuple[Finding, ...]

    @property
    def carrier(self) -> Event | None:
        """Return the event that holds the recovery point."""
        return next((event for event in reversed(self.events) if event.state), None)

    @property
    def is_upsert(self) -> bool:
        """Say whether the stream's ingests are MERGEs."""
        return any(event.kind == "ingest" and event.is_sealed for event in self.events)


# ---- summaries ----------------------------------------------------------------------------------
def decode_json(text: str) -> object:
    """Parse a summary value, plain or `z:` plus base64 of zlib."""
    if text.startswith("z:"):
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    document: object = json.loads(text)
    return document


def as_map(document: object) -> dict[str, object]:
    """Return a JSON object, or raise ValueError."""
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, found {document!r}")
    return document


def as_list(document: object) -> list[object]:
    """Return a JSON array, or raise ValueError."""
    if not isinstance(document, list):
        raise ValueError(f"expected a JSON array, found {document!r}")
    return document


def as_int(document: object) -> int:
    """Return a JSON integer, or raise ValueError."""
    if not isinstance(document, int) or isinstance(document, bool):
        raise ValueError(f"expected an integer, found {document!r}")
    return document


def parse_state(text: str) -> State:
    """Parse `frazil.state.<stream>`."""
    document = as_map(decode_json(text))
    offsets = {
        (topic, number): as_int(next_offset)
        for topic, listed in as_map(document.get("offsets")).items()
        for number, next_offset in enumerate(as_list(listed))
    }
    ids = {topic: str(value) for topic, value in as_map(document.get("topic-ids", {})).items()}
    return State(as_int(document.get("epoch")), str(document.get("batch")), offsets, ids)


def parse_ranges(text: str) -> tuple[Range, ...]:
    """Parse `frazil.ranges`: topic, partition, one pair or a list of pairs."""
    found: list[Range] = []
    for topic, partitions in as_map(decode_json(text)).items():
        for number, listed in as_map(partitions).items():
            values = as_list(listed)
            pairs = (
                [values] if values and isinstance(values[0], int) else [as_list(v) for v in values]
            )
            found += [Range((topic, int(number)), as_int(a), as_int(b)) for a, b in pairs]
    return tuple(found)


def parse_taken(summary: Summary) -> dict[Partition, Offsets]:
    """Return the coordinates that a redrive lists.

    The list is a `frazil.…coordinates` key, else `frazil.ranges`; either holds [topic, partition,
    offset] triples or topic, partition and then offsets or half-open pairs.
    """
    exact = sorted(key for key in summary if key.startswith("frazil.") and "coordinates" in key)
    document = decode_json(summary[exact[0]] if exact else summary.get("frazil.ranges", "{}"))
    taken: defaultdict[Partition, set[int]] = defaultdict(set)
    if isinstance(document, list):
        for topic, number, offset in map(as_list, document):
            taken[str(topic), as_int(number)].add(as_int(offset))
    else:
        for topic, partitions in as_map(document).items():
            for number, listed in as_map(partitions).items():
                taken[topic, int(number)] |= listed_offsets(as_list(listed), is_exact=bool(exact))
    return {key: np.array(sorted(values), dtype=np.int64) for key, values in taken.items()}


def listed_offsets(listed: Sequence[object], *, is_exact: bool) -> set[int]:
    """Expand single offsets, one pair (unless `is_exact`) or many pairs."""
    if not is_exact and len(listed) == 2 and not isinstance(listed[0], list):
        return set(range(as_int(listed[0]), as_int(listed[1])))
    offsets: set[int] = set()
    for item in listed:
        pair = as_list(item) if isinstance(item, list) else [item, as_int(item) + 1]
        offsets |= set(range(as_int(pair[0]), as_int(pair[1])))
    return offsets


# ---- ancestry -----------------------------------------------------------------------------------
def summary_of(snapshot: Snapshot) -> dict[str, str]:
    """Return a snapshot's summary with its operation as plain text."""
    if snapshot.summary is None:
        return {}
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def read_archive(
    tables: Tables,
) -> tuple[dict[int, tuple[int | None, Summary]], tuple[Finding, ...]]:
    """Read the table's rows of the ledger archive; the first row for an id wins."""
    if tables.ledger is None:
        return {}, ()
    live = read_live(tables.ledger, LEDGER_TYPES)
    archive: dict[int, tuple[int | None, Summary]] = {}
    uuid = str(tables.base.metadata.table_uuid)
    for row in live.rows.to_pylist():
        if row["table_uuid"] == uuid:
            summary = {k: str(v) for k, v in as_map(decode_json(row["summary"])).items()}
            archive.setdefault(int(row["snapshot_id"]), (row["parent_id"], summary))
    return archive, live.findings


def walk_ancestry(
    table: Table, archive: Mapping[int, tuple[int | None, Summary]]
) -> tuple[list[Event], int | None]:
    """Walk parent ids from main's head through the metadata, then the archive; oldest first.

    A survivor whose parent id an expiry erased takes it from its archive row.
    """
    retained = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    head = table.metadata.current_snapshot_id
    walked: dict[int, Event] = {}
    while head is not None and head not in walked:
        snapshot, archived = retained.get(head), archive.get(head)
        if snapshot is None and archived is None:
            return list(reversed(walked.values())), head
        parent = snapshot.parent_snapshot_id if snapshot else None
        if parent is None and archived:
            parent = archived[0]
        summary = summary_of(snapshot) if snapshot else (archived[1] if archived else {})
        walked[head] = Event(head, parent, summary, is_retained=snapshot is not None)
        head = parent
    return list(reversed(walked.values())), None


def read_history(tables: Tables, stream: str) -> History:
    """Read main's ancestry as the stream sees it; unreadable keys become findings."""
    archive, archive_findings = read_archive(tables)
    bare, cut_at = walk_ancestry(tables.base, archive)
    findings = list(archive_findings)
    states: dict[int, State] = {}
    for event in bare:
        try:
            if text := event.summary.get(f"frazil.state.{stream}"):
                states[event.snapshot_id] = parse_state(text)
        except (ValueError, zlib.error) as error:
            findings.append(Finding("E4", f"{event}: its state cannot be read: {error}"))
    topics = {topic for state in states.values() for topic, _ in state.offsets}
    events: list[Event] = []
    for event in bare:
        try:
            events.append(see_event(event, states.get(event.snapshot_id), topics))
        except (ValueError, TypeError, zlib.error) as error:
            findings.append(Finding("E2", f"{event}: its ranges cannot be read: {error}"))
            events.append(event)
    return History(tuple(events), cut_at, tuple(findings))


def see_event(event: Event, state: State | None, topics: set[str]) -> Event:
    """Add the stream's state, ranges and redriven coordinates to a bare event."""
    ranges: tuple[Range, ...] = ()
    taken: dict[Partition, Offsets] = {}
    if event.kind in ("ingest", "replay"):
        found = parse_ranges(event.summary.get("frazil.ranges", "{}"))
        ranges = tuple(moved for moved in found if moved.partition[0] in topics)
    if event.kind == "redrive":
        taken = {
            key: value for key, value in parse_taken(event.summary).items() if key[0] in topics
        }
    fields = (event.snapshot_id, event.parent_id, event.summary, event.is_retained)
    return Event(*fields, state, ranges, taken)


# ---- files --------------------------------------------------------------------------------------
def read_entries(
    io: FileIO, manifests: Iterable[ManifestFile], name: str
) -> tuple[list[LiveFile], list[Finding]]:
    """Read the live entries of some manifests."""
    files: list[LiveFile] = []
    findings: list[Finding] = []
    for manifest in manifests:
        try:
            entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        except READ_FAILURES as error:
            findings.append(
                Finding("E5", f"{name}: manifest {manifest.manifest_path} is unreadable: {error}")
            )
            continue
        for entry in entries:
            file = entry.data_file
            ids = (entry.snapshot_id or 0, entry.sequence_number or 0)
            files.append(LiveFile(file.file_path, file.record_count, *ids, file.content))
    return files, findings


def list_manifests(
    table: Table, snapshot: Snapshot | None, name: str
) -> tuple[list[ManifestFile], list[Finding]]:
    """Read a snapshot's manifest list."""
    try:
        return (snapshot.manifests(table.io) if snapshot else []), []
    except READ_FAILURES as error:
        return [], [Finding("E5", f"{name}: the manifest list of its head is unreadable: {error}")]


def read_parquet(io: FileIO, path: str, names: Sequence[str]) -> tuple[pa.Table, int]:
    """Read some columns of one Parquet file, structs flattened, and the row count of its footer."""
    with io.new_input(path).open() as source, pq.ParquetFile(source) as file:
        rows = file.read(columns=list(names))
        return (rows.flatten() if rows.num_columns else rows), file.metadata.num_rows


def conform(rows: pa.Table, types: Mapping[str, pa.DataType], height: int) -> pa.Table:
    """Give a file's rows the wanted columns and types, null where the file lacks one."""
    columns = {
        name: rows[name].cast(kind) if name in rows.column_names else pa.nulls(height, kind)
        for name, kind in types.items()
    }
    return pa.table(columns)


def read_live(table: Table, types: Mapping[str, pa.DataType]) -> Live:
    """Read the wanted columns of all live rows at main's head, oldest file first.

    The rows get a column `snapshot_id`, of the snapshot that added their file.
    """
    name = ".".join(table.name())
    manifests, findings = list_manifests(table, table.current_snapshot(), name)
    files, unreadable = read_entries(table.io, manifests, name)
    findings += unreadable
    files.sort(key=lambda file: file.sequence_number)
    findings += audit_references(files, name)
    deleted, broken = read_position_deletes(table.io, files, name)
    findings += broken
    data = [file for file in files if file.content == DataFileContent.DATA]

    def read(file: LiveFile) -> tuple[pa.Table | None, list[Finding]]:
        try:
            rows, footer_rows = read_parquet(table.io, file.path, list(types))
        except READ_FAILURES as error:
            return None, [
                Finding("E5", f"{name}: data file {file.path} is missing or unreadable: {error}")
            ]
        rows = conform(rows, types, footer_rows)
        label = pa.array(np.full(footer_rows, file.snapshot_id, dtype=np.int64))
        rows = rows.append_column("snapshot_id", label)
        if file.path in deleted:
            rows = rows.filter(pa.array(~np.isin(np.arange(footer_rows), deleted[file.path])))
        return rows, audit_footer(file, footer_rows, name)

    with ThreadPoolExecutor(max_workers=4) as pool:
        results = list(pool.map(read, data))
    findings += [finding for _, found in results for finding in found]
    empty = conform(pa.table({}), {**types, "snapshot_id": pa.int64()}, 0)
    rows = pa.concat_tables([empty, *(rows for rows, _ in results if rows is not None)])
    return Live(tuple(files), rows, tuple(findings))


def read_position_deletes(
    io: FileIO, files: Sequence[LiveFile], name: str
) -> tuple[dict[str, Offsets], list[Finding]]:
    """Read which row positions of which files are deleted; equality deletes are findings."""
    tables: list[pa.Table] = []
    findings: list[Finding] = []
    for file in files:
        if file.content == DataFileContent.EQUALITY_DELETES:
            findings.append(
                Finding("E5", f"{name}: {file.path} holds equality deletes, never allowed")
            )
        if file.content != DataFileContent.POSITION_DELETES:
            continue
        try:
            rows, footer_rows = read_parquet(io, file.path, ["file_path", "pos"])
            tables.append(conform(rows, {"file_path": pa.string(), "pos": pa.int64()}, footer_rows))
            findings += audit_footer(file, footer_rows, name)
        except READ_FAILURES as error:
            findings.append(
                Finding("E5", f"{name}: delete file {file.path} is missing or unreadable: {error}")
            )
    if not tables:
        return {}, findings
    grouped = pa.concat_tables(tables).group_by("file_path").aggregate([("pos", "list")])
    return {row["file_path"]: np.array(row["pos_list"]) for row in grouped.to_pylist()}, findings


def audit_references(files: Sequence[LiveFile], name: str) -> list[Finding]:
    """Find paths that the head references more than once."""
    times = Counter(file.path for file in files)
    return [
        Finding("E5", f"{name}: {path} is referenced {count} times")
        for path, count in times.items()
        if count > 1
    ]


def audit_footer(file: LiveFile, footer_rows: int, name: str) -> list[Finding]:
    """Compare a manifest's record count with the Parquet footer."""
    if file.records == footer_rows:
        return []
    text = f"{name}: {file.path} holds {footer_rows} rows, its manifest says {file.records}"
    return [Finding("E5", text)]


# ---- coordinates --------------------------------------------------------------------------------
def group_by_partition(rows: pa.Table, labels: Offsets) -> dict[Partition, Held]:
    """Sort rows with coordinates into partitions; `labels` has one number per row."""
    known = pc.and_(
        pc.and_(rows["_kafka.topic"].is_valid(), rows["_kafka.partition"].is_valid()),
        rows["_kafka.offset"].is_valid(),
    )
    labels = labels[known.to_numpy()]
    rows = rows.filter(known)
    topics = rows["_kafka.topic"].combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = rows["_kafka.partition"].to_numpy()
    offsets = rows["_kafka.offset"].to_numpy()
    groups = codes * 2**32 + numbers
    order = np.lexsort((offsets, groups))
    groups, offsets, labels = groups[order], offsets[order], labels[order]
    keys, starts = np.unique(groups, return_index=True)
    ends = [*starts[1:], len(groups)]
    names = topics.dictionary.to_pylist()
    return {
        (names[key >> 32], int(key & 0xFFFFFFFF)): Held(offsets[a:b], labels[a:b])
        for key, a, b in zip(keys.tolist(), starts, ends, strict=True)
    }


def paint(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Return for each offset the index of the last span that covers it, -1 for none."""
    owners = np.full(len(offsets), -1, dtype=np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        owners[low:high] = span.index
    return owners


def find_strays(held: Held, spans: Iterable[Span], labels: Mapping[int, int]) -> Offsets:
    """Return offsets whose label names an event, but lie in none of its spans.

    `labels` maps the index of an event to its label.
    """
    is_inside = np.zeros(len(held.offsets), dtype=np.bool_)
    for span in spans:
        if span.index in labels:
            low, high = np.searchsorted(held.offsets, [span.start, span.end])
            is_inside[low:high] |= held.labels[low:high] == labels[span.index]
    return held.offsets[np.isin(held.labels, list(labels.values())) & ~is_inside]


def show(partition: Partition, offsets: Offsets) -> tuple[Coordinate, ...]:
    """Return the first coordinates for a finding."""
    return tuple((*partition, int(offset)) for offset in offsets[:SHOWN_COORDINATES])


def name_partition(partition: Partition) -> str:
    """Write a partition as topic-number."""
    return f"{partition[0]}-{partition[1]}"


# ---- E2 and E4: the states on the ancestry ------------------------------------------------------
def audit_history(history: History, stream: str) -> list[Finding]:
    """Follow the stream's state from snapshot to snapshot."""
    findings = list(history.findings)
    if history.cut_at is not None:
        text = f"the ancestry is cut: neither metadata nor ledger knows snapshot {history.cut_at}"
        findings.append(Finding("E2", text))
    if history.carrier is None:
        text = f"no snapshot on main's ancestry carries frazil.state.{stream}"
        return [*findings, Finding("E2", text)]
    previous: State | None = None
    for event in history.events:
        findings += audit_event(previous, event, is_cut=history.cut_at is not None)
        previous = event.state or previous
    return findings + audit_batches(history)


def audit_event(previous: State | None, event: Event, *, is_cut: bool) -> list[Finding]:
    """Check one snapshot's state against the one before it."""
    if event.kind in ("replay", "redrive"):
        return audit_replayed(previous, event)
    if event.state is None:
        unstated = event.kind == "ingest" and event.ranges
        return [Finding("E4", f"{event}: moves rows without a state")] if unstated else []
    if event.kind not in (*EPOCH_RISES, "bootstrap"):
        return [Finding("E4", f"{event}: carries a state, which its kind must not")]
    if previous is None:
        is_start = event.kind in ("bootstrap", "adopt", "rewind") or is_cut
        return [] if is_start else [Finding("E2", f"{event}: the first state is not a bootstrap")]
    if event.kind == "bootstrap":
        return [Finding("E2", f"{event}: a second bootstrap on one ancestry")]
    return audit_epoch(previous, event, event.state) + audit_offsets(previous, event, event.state)


def audit_replayed(previous: State | None, event: Event) -> list[Finding]:
    """Check that a replay or redrive stays below the recovery point and moves no state."""
    findings = []
    if event.state is not None:
        findings.append(Finding("E4", f"{event}: carries a state, which its kind must not"))
    ends = [(moved.partition, moved.end) for moved in event.ranges]
    ends += [(key, int(taken[-1]) + 1) for key, taken in (event.taken or {}).items() if len(taken)]
    known = previous.offsets if previous else {}
    for partition, end in ends:
        if end > known.get(partition, 0):
            text = f"{event}: {name_partition(partition)} up to {end} is above the recovery point"
            findings.append(Finding("E4", text))
    return findings


def audit_epoch(previous: State, event: Event, state: State) -> list[Finding]:
    """Check how the epoch rises, that the batch is the snapshot's own, and the topic's identity."""
    findings = []
    least, most = EPOCH_RISES[event.kind]
    rise = state.epoch - previous.epoch
    if rise < least or (most is not None and rise > most):
        findings.append(
            Finding("E2", f"{event}: the epoch goes from {previous.epoch} to {state.epoch}")
        )
    batch = event.summary.get("frazil.batch-id", state.batch)
    if event.kind == "ingest" and batch != state.batch:
        text = f"{event}: frazil.batch-id is {batch}, the state says {state.batch}"
        findings.append(Finding("E2", text))
    if event.kind == "carry" and state.batch != previous.batch:
        text = f"{event}: the batch changes from {previous.batch} to {state.batch}"
        findings.append(Finding("E4", text))
    for topic in previous.topic_ids.keys() & state.topic_ids.keys():
        if event.kind == "ingest" and previous.topic_ids[topic] != state.topic_ids[topic]:
            findings.append(Finding("E2", f"{event}: the id of topic {topic} changes"))
    return findings


def audit_offsets(previous: State, event: Event, state: State) -> list[Finding]:
    """Check that each partition moves as the snapshot's kind and ranges say."""
    findings: list[Finding] = []
    moves: dict[Partition, Range] = {moved.partition: moved for moved in event.ranges}
    for partition in sorted({*previous.offsets, *state.offsets, *moves}):
        before, after = previous.offsets.get(partition, 0), state.offsets.get(partition, 0)
        name = f"{event}: {name_partition(partition)}"
        moved = moves.get(partition, Range(partition, before, before))
        if event.kind == "ingest":
            findings += audit_range(name, before, after, moved)
        elif after < before:
            findings.append(Finding("E4", f"{name} goes back from {before} to {after}"))
        elif after > before and event.kind in ("carry", "rewind"):
            findings.append(Finding("E4", f"{name} goes from {before} to {after} without data"))
    return findings


def audit_range(name: str, before: int, after: int, moved: Range) -> list[Finding]:
    """Check one partition of an ingest: it starts at the carrier and ends at the new state."""
    findings = []
    if moved.start > before:
        findings.append(Finding("E2", f"{name}: gap, [{before}, {moved.start}) is in no range"))
    if moved.start < before:
        findings.append(
            Finding("E2", f"{name}: overlap, [{moved.start}, {before}) is in two ranges")
        )
    if moved.end < moved.start:
        findings.append(Finding("E2", f"{name}: range [{moved.start}, {moved.end}) is no range"))
    if after > moved.end:
        findings.append(
            Finding("E4", f"{name}: the state says {after}, the data end at {moved.end}")
        )
    elif after < before:
        findings.append(Finding("E4", f"{name}: the state goes back from {before} to {after}"))
    elif after < moved.end:
        findings.append(
            Finding("E2", f"{name}: the state says {after}, the range ends at {moved.end}")
        )
    return findings


def audit_batches(history: History) -> list[Finding]:
    """Find batches that main's ancestry holds more than once."""
    ids = [
        event.summary.get("frazil.batch-id") for event in history.events if event.kind in WITH_ROWS
    ]
    return [
        Finding("E2", f"batch {batch} was published {count} times")
        for batch, count in Counter(ids).items()
        if batch and count > 1
    ]


def audit_setback(table: Table, carrier: Event | None, stream: str) -> list[Finding]:
    """Find states above main's: main went back without a recorded rewind."""
    if carrier is None or carrier.state is None:
        return []
    epochs: dict[str, int] = {}
    try:
        for snapshot in table.metadata.snapshots:
            if text := summary_of(snapshot).get(f"frazil.state.{stream}"):
                epochs[f"snapshot {snapshot.snapshot_id}"] = parse_state(text).epoch
        hint = as_map(decode_json(table.properties.get(f"frazil.hint.{stream}", "{}")))
        epochs["the hint"] = as_int(hint.get("epoch", 0))
    except (ValueError, zlib.error) as error:
        return [Finding("E4", f"a state or hint beside main cannot be read: {error}")]
    return [
        Finding(
            "E4",
            f"{where} has epoch {epoch}, main's carrier {carrier.state.epoch}: no rewind says why",
        )
        for where, epoch in epochs.items()
        if epoch > carrier.state.epoch
    ]


# ---- E3 and E6: counts and foreign snapshots ----------------------------------------------------
def changed_records(event: Event) -> int:
    """Return how many records a snapshot adds, removes or marks deleted."""
    keys = ("added-records", "deleted-records", "added-position-deletes")
    return sum(event.count(key) for key in keys)


def audit_counts(table: Table, history: History, live: Live) -> list[Finding]:
    """Check each snapshot's counts against its summary, its manifests and its files."""
    findings: list[Finding] = []
    by_id = {event.snapshot_id: event for event in history.events}
    for event in history.events:
        if (event.kind in NO_ROWS or event.is_sealed) and changed_records(event):
            text = f"{event}: must be empty, but changes {changed_records(event)} records"
            findings.append(Finding("E3", text))
        if event.kind not in WITH_ROWS or not (event.ranges or event.taken or event.state):
            continue
        if event.kind == "ingest" and event.is_sealed:
            continue
        findings += audit_conservation(event)
        source = by_id.get(event.parent_id or 0) if event.is_sealed else event
        if source is not None and source.summary.get("operation") == "append":
            findings += audit_added(table, event, source, live)
    return findings


def audit_conservation(event: Event) -> list[Finding]:
    """Check read = written + quarantined + skipped in one summary."""
    keys = [f"frazil.rows-{name}" for name in ("read", "written", "quarantined", "skipped")]
    absent = [key for key in keys if not event.summary.get(key, "").isdigit()]
    if absent:
        return [Finding("E3", f"{event}: no exact count in {', '.join(absent)}")]
    read, written, quarantined, skipped = (event.count(key) for key in keys)
    if read == written + quarantined + skipped:
        return []
    text = f"{event}: read {read} is not written {written} + quarantined {quarantined} + skipped {skipped}"
    return [Finding("E3", text)]


def audit_added(table: Table, event: Event, source: Event, live: Live) -> list[Finding]:
    """Compare rows-written with the manifests' and the files' rows of the appending snapshot."""
    written = event.count("frazil.rows-written")
    findings = []
    if (added := source.count("added-records")) != written:
        text = f"{event}: wrote {written} rows, its snapshot added {added} records"
        findings.append(Finding("E3", text))
    if not source.is_retained:
        return findings
    data = [file for file in live.files if file.content == DataFileContent.DATA]
    if sum(file.records for file in data if file.snapshot_id == source.snapshot_id) == written:
        return findings
    # Compaction took its files from the head: its own manifests still name them.
    snapshot = table.metadata.snapshot_by_id(source.snapshot_id)
    manifests, broken = list_manifests(table, snapshot, str(event))
    own = [manifest for manifest in manifests if manifest.added_snapshot_id == source.snapshot_id]
    files, unreadable = read_entries(table.io, own, str(event))
    findings += broken + unreadable
    files = [file for file in files if file.snapshot_id == source.snapshot_id]
    if (rows := sum(file.records for file in files)) != written:
        findings.append(Finding("E3", f"{event}: wrote {written} rows, its files hold {rows}"))
    current = {file.path for file in live.files}
    gone = [
        file.path for file in files if file.path not in current and not exists(table.io, file.path)
    ]
    return findings + [Finding("E5", f"{event}: data file {path} is missing") for path in gone]


def exists(io: FileIO, path: str) -> bool:
    """Say whether the storage holds a path."""
    try:
        return io.new_input(path).exists()
    except OSError:
        return False


def foreign_events(history: History) -> list[Event]:
    """Return the snapshots without a Frazil kind, less those that a seal follows."""
    staged = {event.parent_id for event in history.events if event.is_sealed}
    known = (*NO_ROWS, *WITH_ROWS)
    return [e for e in history.events if e.kind not in known and e.snapshot_id not in staged]


def audit_foreign(history: History) -> list[Finding]:
    """Find foreign snapshots that changed rows, and compactions that lost or made some."""
    findings = []
    for event in foreign_events(history):
        added, deleted = event.count("added-records"), event.count("deleted-records")
        operation = event.summary.get("operation", "unknown operation")
        if operation == "replace":
            # Applied position deletes leave fewer rows: then only E1 can tell.
            is_less_explained = added < deleted and event.count("total-delete-files") + event.count(
                "removed-delete-files"
            )
            if added != deleted and not is_less_explained:
                text = f"{event}: a replace took {deleted} records and gave {added}"
                findings.append(Finding("E6", text))
        elif changed_records(event):
            text = f"foreign rows: {operation} {event.snapshot_id} adds {added}, deletes {deleted} records"
            findings.append(Finding("E6", text))
    return findings


# ---- E1: delivery -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ledger:
    """The ancestry arranged for delivery checks, all by index into `events`."""

    events: tuple[Event, ...]
    spans: Mapping[Partition, Sequence[Span]]
    adopted: frozenset[int]
    overlaid: frozenset[int]

    def published(self, partition: Partition) -> list[Span]:
        """Return what attempts published of a partition, oldest first, without adopted offsets."""
        return [span for span in self.spans.get(partition, ()) if span.index not in self.adopted]


@dataclass
class Tally:
    """What the partitions add up to, by index into the events."""

    rows: Counter[int]
    redriven: Counter[int]
    delivered: Counter[int]
    aged: set[int]
    missing: defaultdict[int, list[tuple[Partition, Offsets]]]
    facts: Counter[str]


def arrange_ledger(history: History) -> Ledger:
    """Arrange ranges by partition; adopted offsets count as published by the adopt."""
    spans: defaultdict[Partition, list[Span]] = defaultdict(list)
    adopted: set[int] = set()
    overlaid: set[int] = set()
    before: Mapping[Partition, int] = {}
    for index, event in enumerate(history.events):
        if event.kind == "adopt" and event.state:
            adopted.add(index)
            for key, end in event.state.offsets.items():
                spans[key].append(Span(before.get(key, 0), end, index))
        for moved in event.ranges:
            if event.kind == "replay":
                older = spans[moved.partition]
                overlaid |= {s.index for s in older if s.start < moved.end and moved.start < s.end}
            spans[moved.partition].append(Span(moved.start, moved.end, index))
        before = event.state.offsets if event.state else before
    return Ledger(history.events, spans, frozenset(adopted), frozenset(overlaid))


def counting_letters(
    ledger: Ledger, partition: Partition, letters: Held, attempts: Sequence[str]
) -> Mask:
    """Say which letters count (protocol, 'Dead letters').

    A letter counts iff its attempt is the last on the ancestry that covers its coordinate, and no
    redrive above that lists the coordinate. `letters.labels` are positions in `attempts`.
    """
    codes = {attempt: code for code, attempt in enumerate(attempts)}
    names = [event.summary.get("frazil.attempt", "") for event in ledger.events]
    own = np.array([codes.get(name, -2) for name in names] + [-2], dtype=np.int64)
    last = paint(letters.offsets, ledger.published(partition))
    redriven = np.full(len(letters.offsets), -1, dtype=np.int64)
    for index, event in enumerate(ledger.events):
        taken = (event.taken or {}).get(partition)
        if taken is not None:
            redriven[np.isin(letters.offsets, taken)] = index
    mask: Mask = (last >= 0) & (own[last] == letters.labels) & (redriven < last)
    return mask


def audit_partition(
    ledger: Ledger, partition: Partition, rows: Held, letters: Offsets, log: PartitionLog | None
) -> tuple[list[Finding], Tally]:
    """Compare one partition's rows and counting letters with its published ranges and its log."""
    name, spans = name_partition(partition), ledger.spans.get(partition, ())
    tally = Tally(Counter(), Counter(), Counter(), set(), defaultdict(list), Counter())
    owners = paint(rows.offsets, spans)
    present = np.sort(np.concatenate([rows.offsets, letters]))
    tally.rows.update(owners[owners >= 0].tolist())
    findings = []
    if len(outside := rows.offsets[owners < 0]):
        top = max((span.end for span in spans), default=0)
        text = f"{name}: {len(outside)} rows outside every published range, {int((outside >= top).sum())}"
        text += f" of them above the recovery point {top}"
        findings.append(Finding("E1", text, show(partition, outside)))
    unique, times = np.unique(present, return_counts=True)
    if len(doubled := unique[times > 1]):
        text = f"{name}: {len(doubled)} records exist more than once in table and dead letters"
        findings.append(Finding("E1", text, show(partition, doubled)))
    for index, event in enumerate(ledger.events):
        taken = (event.taken or {}).get(partition)
        if taken is not None:
            older = paint(taken, [span for span in spans if span.index < index])
            tally.redriven.update(older[older >= 0].tolist())
    if log is not None:
        findings += audit_log(ledger, partition, unique, log, tally)
    return findings, tally


def audit_log(
    ledger: Ledger, partition: Partition, present: Offsets, log: PartitionLog, tally: Tally
) -> list[Finding]:
    """Compare what exists of a partition with what Kafka delivers of it."""
    spans = ledger.spans.get(partition, ())
    tally.aged |= {span.index for span in spans if span.start < log.earliest or log.is_compacted}
    owners = paint(log.offsets, spans)
    delivered, owners = log.offsets[owners >= 0], owners[owners >= 0]
    tally.delivered.update(owners.tolist())
    tally.facts["records_delivered"] += len(delivered)
    is_missing = ~np.isin(delivered, present)
    for index in np.unique(owners[is_missing]).tolist():
        tally.missing[index].append((partition, delivered[is_missing & (owners == index)]))
    phantom = present[(present >= log.earliest) & ~np.isin(present, log.offsets)]
    if len(phantom) and not log.is_compacted:
        text = f"{name_partition(partition)}: {len(phantom)} rows or letters that Kafka does not deliver"
        return [Finding("E1", text, show(partition, phantom))]
    return []


def audit_totals(ledger: Ledger, tally: Tally) -> list[Finding]:
    """Compare each append snapshot's counts with what exists and what Kafka delivers of its ranges."""
    findings: list[Finding] = []
    for index, event in enumerate(ledger.events):
        if index in ledger.adopted or event.kind not in ("ingest", "replay"):
            continue
        missing, skipped = tally.missing.get(index, []), event.count("frazil.rows-skipped")
        absent = sum(len(offsets) for _, offsets in missing)
        if absent > skipped:
            text = f"{event}: {absent} delivered records are neither in the table nor dead letters"
            shown = [c for partition, offsets in missing for c in show(partition, offsets)]
            found = Finding(
                "E1", f"{text}, {skipped} were skipped", tuple(shown[:SHOWN_COORDINATES])
            )
            findings.append(found)
        if index in ledger.overlaid or event.kind == "replay":
            continue
        read, delivered = event.count("frazil.rows-read"), tally.delivered[index]
        if index not in tally.aged and read != delivered:
            text = f"{event}: read {read} rows, Kafka delivers {delivered} in its ranges"
            findings.append(Finding("E3", text))
        expected = event.count("frazil.rows-written") + tally.redriven[index]
        if index in tally.aged and tally.rows[index] != expected:
            text = (
                f"{event}: the table holds {tally.rows[index]} rows of its ranges, not {expected}"
            )
            findings.append(Finding("E1", text))
    return findings


def audit_logs(carrier: Event | None, logs: Mapping[Partition, PartitionLog]) -> list[Finding]:
    """Find partitions whose recovery point lies beyond what Kafka has."""
    findings = []
    for partition, next_offset in (
        carrier.state.offsets if carrier and carrier.state else {}
    ).items():
        log = logs.get(partition)
        if log is None or next_offset > log.end:
            end = "no such partition" if log is None else f"the end {log.end}"
            text = (
                f"{name_partition(partition)}: the recovery point is {next_offset}, Kafka has {end}"
            )
            findings.append(Finding("E4", text))
    return findings


def audit_letters(
    ledger: Ledger, letters: Mapping[Partition, Held], attempts: Sequence[str]
) -> list[Finding]:
    """Compare each attempt's letters with its rows-quarantined and its ranges."""
    codes = {attempt: code for code, attempt in enumerate(attempts)}
    held: Counter[int] = Counter()
    findings = []
    names = {
        i: e.summary["frazil.attempt"]
        for i, e in enumerate(ledger.events)
        if "frazil.attempt" in e.summary
    }
    own = {i: codes[name] for i, name in names.items() if name in codes and ledger.events[i].ranges}
    for partition, letter in letters.items():
        pairs = np.unique(np.stack([letter.offsets, letter.labels]), axis=1)
        held.update(pairs[1].tolist())
        strays = find_strays(letter, ledger.published(partition), own)
        if len(strays):
            text = (
                f"{name_partition(partition)}: {len(strays)} letters outside their attempt's ranges"
            )
            findings.append(Finding("E1", text, show(partition, strays)))
    for index, event in enumerate(ledger.events):
        if event.kind in ("ingest", "replay") and event.ranges:
            found = held[codes.get(names.get(index, ""), -1)]
            if (said := event.count("frazil.rows-quarantined")) != found:
                text = f"{event}: quarantined {said} records, its attempt holds {found} letters"
                findings.append(Finding("E3", text))
    return findings


def audit_delivery(
    history: History,
    rows: Mapping[Partition, Held],
    letters: LetterBox,
    logs: Mapping[Partition, PartitionLog],
) -> tuple[list[Finding], dict[str, object]]:
    """Check E1 over all partitions of the stream, and return what was counted."""
    ledger = arrange_ledger(history)
    findings = audit_letters(ledger, letters.held, letters.attempts)
    total = Tally(Counter(), Counter(), Counter(), set(), defaultdict(list), Counter())
    appended = {
        i: e.snapshot_id
        for i, e in enumerate(ledger.events)
        if e.kind == "ingest" and not e.is_sealed
    }
    checked_from: dict[str, int] = {}
    nothing = Held(np.empty(0, np.int64), np.empty(0, np.int64))
    for partition in sorted({*ledger.spans, *rows, *letters.held}):
        row, letter, log = (
            rows.get(partition, nothing),
            letters.held.get(partition, nothing),
            logs.get(partition),
        )
        counting = letter.offsets[counting_letters(ledger, partition, letter, letters.attempts)]
        found, tally = audit_partition(ledger, partition, row, counting, log)
        findings += found
        if len(strays := find_strays(row, ledger.spans.get(partition, ()), appended)):
            text = f"{name_partition(partition)}: {len(strays)} rows came with a snapshot of other ranges"
            findings.append(Finding("E4", text, show(partition, strays)))
        merge_tally(total, tally)
        total.facts["dead_letters_counting"] += len(counting)
        spans = ledger.published(partition)
        if log and spans:
            checked_from[name_partition(partition)] = max(
                log.earliest, min(span.start for span in spans)
            )
    findings += [] if history.is_upsert else audit_totals(ledger, total)
    return findings, {**total.facts, "checked_from": checked_from}


def merge_tally(total: Tally, tally: Tally) -> None:
    """Add one partition's tally to the total."""
    total.rows.update(tally.rows)
    total.redriven.update(tally.redriven)
    total.delivered.update(tally.delivered)
    total.facts.update(tally.facts)
    total.aged |= tally.aged
    for index, found in tally.missing.items():
        total.missing[index] += found


# ---- Kafka --------------------------------------------------------------------------------------
def read_kafka_topic(bootstrap: str, topic: str, isolation: str) -> TopicLog:
    """Read which offsets of a topic Kafka delivers under an isolation level.

    Raises:
        KafkaException: the broker refused.
        TimeoutError: nothing arrived for 30 seconds before the end was reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "frazil-auditor",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            return {}
        limits = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
            for number in found.partitions
        }
        offsets = consume_offsets(consumer, topic, limits)
    finally:
        consumer.close()
    is_compacted = read_is_compacted(bootstrap, topic)
    logs = {
        number: PartitionLog(low, high, offsets[number], is_compacted)
        for number, (low, high) in limits.items()
    }
    return {topic: logs}


def consume_offsets(
    consumer: Consumer, topic: str, limits: Mapping[int, tuple[int, int]]
) -> dict[int, Offsets]:
    """Consume partitions between their limits; only the broker's end or the limit ends one."""
    consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in limits.items()])
    pending = {number for number, (low, high) in limits.items() if low < high}
    collected: dict[int, list[int]] = {number: [] for number in limits}
    waited_from = time.monotonic()
    while pending:
        messages = consumer.consume(50_000, timeout=0.5)
        if not messages and time.monotonic() - waited_from > 30:
            raise TimeoutError(
                f"Kafka sent nothing of {topic}, partitions {sorted(pending)}, for 30 s"
            )
        waited_from = time.monotonic() if messages else waited_from
        for message in messages:
            number, offset = place_message(message)
            if message.error() is None and offset < limits[number][1]:
                collected[number].append(offset)
            if message.error() is not None or offset + 1 >= limits[number][1]:
                pending.discard(number)
    return {number: np.array(listed, dtype=np.int64) for number, listed in collected.items()}


def place_message(message: Message) -> tuple[int, int]:
    """Return a message's partition and offset; raise an error that is not the partition's end."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
        raise KafkaException(error)
    number, offset = message.partition(), message.offset()
    if number is None or offset is None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN, "a message without coordinates"))
    return number, offset


def read_is_compacted(bootstrap: str, topic: str) -> bool:
    """Say whether a topic is compacted; a broker that does not tell is taken to keep everything."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        described = AdminClient({"bootstrap.servers": bootstrap}).describe_configs([resource])
        return "compact" in str(described[resource].result(timeout=10)["cleanup.policy"].value)
    except (KafkaException, KeyError):
        return False


# ---- the audit ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class LetterBox:
    """Dead letters by partition; labels are positions in `attempts`."""

    held: Mapping[Partition, Held]
    attempts: tuple[str, ...]
    findings: tuple[Finding, ...]


def read_letters(table: Table | None, topics: set[str]) -> LetterBox:
    """Read the stream's dead letters."""
    if table is None:
        return LetterBox({}, (), ())
    live = read_live(table, LETTER_TYPES)
    findings = list(live.findings)
    if unkeyed := live.rows["attempt"].null_count:
        findings.append(
            Finding("E1", f"{unkeyed} dead letters name no attempt: they can never count")
        )
    encoded = live.rows["attempt"].fill_null("").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    held = group_by_partition(live.rows, codes)
    mine = {partition: letters for partition, letters in held.items() if partition[0] in topics}
    return LetterBox(mine, tuple(encoded.dictionary.to_pylist()), tuple(findings))


def load_if_exists(catalog: Catalog, name: str) -> Table | None:
    """Load a table, None where it does not exist."""
    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def open_tables(catalog: Catalog, name: str) -> Tables:
    """Load the audited table, its dead letters and the ledger archive."""
    base = catalog.load_table(name)
    return Tables(
        base, load_if_exists(catalog, f"{name}__dead_letters"), load_if_exists(catalog, LEDGER)
    )


def topics_of(history: History, prefix: str) -> set[str]:
    """Return the topics of all states whose key starts with a prefix."""
    topics: set[str] = set()
    for event in history.events:
        for key, text in event.summary.items():
            if key.startswith(prefix):
                try:
                    topics |= {topic for topic, _ in parse_state(text).offsets}
                except (ValueError, zlib.error):
                    continue  # said by the history already, or another stream's matter
    return topics


def sort_rows(
    history: History, live: Live, topics: set[str]
) -> tuple[dict[Partition, Held], list[Finding]]:
    """Sort the table's rows into the stream's partitions; rows of nobody are findings."""
    findings = []
    held = group_by_partition(live.rows, live.rows["snapshot_id"].to_numpy())
    bare = live.rows.num_rows - sum(len(rows.offsets) for rows in held.values())
    is_adopted = any(event.kind == "adopt" for event in history.events)
    if bare and not is_adopted:
        findings.append(Finding("E1", f"{bare} rows carry no Kafka coordinate"))
    known = topics_of(history, "frazil.state.")
    for partition, rows in held.items():
        if partition[0] not in known:
            text = f"{name_partition(partition)}: {len(rows.offsets)} rows of a topic that no stream reads"
            findings.append(Finding("E1", text, show(partition, rows.offsets)))
    return {key: rows for key, rows in held.items() if key[0] in topics}, findings


def audit(
    tables: Tables, stream: str, read_topic: TopicReader, isolation: str = "read_committed"
) -> AuditReport:
    """Audit one stream of an open table; `read_topic` takes a topic and an isolation level."""
    history = read_history(tables, stream)
    live = read_live(tables.base, COORDINATE_TYPES)
    topics = {topic for event in history.events if event.state for topic, _ in event.state.offsets}
    letters = read_letters(tables.dead_letters, topics)
    rows, findings = sort_rows(history, live, topics)
    # The table is read before Kafka, which can only have more by then.
    read = {topic: read_topic(topic, isolation).get(topic, {}) for topic in sorted(topics)}
    logs = {(topic, number): log for topic, found in read.items() for number, log in found.items()}
    findings += audit_history(history, stream) + audit_setback(tables.base, history.carrier, stream)
    findings += audit_counts(tables.base, history, live) + audit_foreign(history)
    findings += [*live.findings, *letters.findings, *audit_logs(history.carrier, logs)]
    delivery, counted = audit_delivery(history, rows, letters, logs)
    findings.extend(delivery)
    state = history.carrier.state if history.carrier else None
    facts = {
        "head": tables.base.metadata.current_snapshot_id,
        "mode": "upsert" if history.is_upsert else "append",
        "isolation": isolation,
        "snapshots": dict(Counter(event.kind or "without kind" for event in history.events)),
        "archived_snapshots": sum(not event.is_retained for event in history.events),
        "foreign_snapshots": [event.snapshot_id for event in foreign_events(history)],
        "live_files": len(live.files),
        "rows": live.rows.num_rows,
        "rows_of_stream": sum(len(held.offsets) for held in rows.values()),
        "dead_letters": sum(len(held.offsets) for held in letters.held.values()),
        "rows_skipped": sum(
            event.count("frazil.rows-skipped") for event in history.events if event.ranges
        ),
        "epoch": state.epoch if state else None,
        "recovery_point": {
            name_partition(k): v for k, v in (state.offsets if state else {}).items()
        },
        **counted,
    }
    return AuditReport(".".join(tables.base.name()), stream, tuple(findings), facts)


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
        KafkaException: the broker refused; TimeoutError: it went silent.
    """
    catalog = load_catalog(catalog_name, **catalog_properties)
    return audit(
        open_tables(catalog, table), stream, functools.partial(read_kafka_topic, bootstrap)
    )


def fingerprint(table: Table) -> str:
    """Return the head's id with digests of all rows' and dead letters' coordinates (E7).

    Equal before and after a repetition says that it published nothing, neither rows nor letters.
    """
    letters = load_if_exists(table.catalog, ".".join(table.name()) + "__dead_letters")
    parts = [str(table.metadata.current_snapshot_id)]
    for found, types in ((table, COORDINATE_TYPES), (letters, LETTER_TYPES)):
        digest = hashlib.sha256()
        rows = read_live(found, types).rows if found else conform(pa.table({}), types, 0)
        for line in sorted(lines_of(rows.select(list(types)))):
            digest.update(line.encode())
        parts.append(f"{rows.num_rows}:{digest.hexdigest()[:16]}")
    return " ".join(parts)


def lines_of(rows: pa.Table) -> Iterator[str]:
    """Write each row as one line."""
    for values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield "\t".join(map(str, values)) + "\n"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Recompute E1 to E6 of a Frazil table.")
    parser.add_argument("--catalog-name", required=True)
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", required=True, metavar="NAMESPACE.NAME")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--stream", required=True)
    parser.add_argument(
        "--isolation", default="read_committed", choices=["read_committed", "read_uncommitted"]
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report as JSON and return 1 when something was found."""
    chosen = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    properties = dict(item.split("=", 1) for item in chosen.property)
    tables = open_tables(load_catalog(chosen.catalog_name, **properties), chosen.table)
    reader = functools.partial(read_kafka_topic, chosen.bootstrap)
    report = audit(tables, chosen.stream, reader, chosen.isolation)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
