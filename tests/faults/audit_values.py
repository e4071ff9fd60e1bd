"""Values of the independent auditor, and how it reads them from summaries."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.manifest import DataFileContent
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
TAKING = ("erase", "expire-rows", "trim")
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
        """Return whether the rows came with the parent, a staged MERGE or redrive."""
        source = self.summary.get("source-snapshot-id")
        return self.kind in WITH_ROWS and source == str(self.parent_id)

    @property
    def is_authored(self) -> bool:
        """Return whether the snapshot tells who wanted it and why."""
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
        """Return whether the stream's ingests are MERGEs."""
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


def summary_of(snapshot: Snapshot) -> Summary:
    """Return a snapshot's summary with its operation as plain text."""
    if snapshot.summary is None:
        return {}
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
