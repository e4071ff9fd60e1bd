"""Read the ancestry, files, rows and dead letters of a table, for the independent auditor."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from faults.audit_values import (
    DELETE_TYPES,
    LEDGER,
    LEDGER_TYPES,
    LETTER_TYPES,
    NOTHING_HELD,
    ROW_TYPES,
    TAKING,
    UNREADABLE_FILE,
    UNREADABLE_TEXT,
    Event,
    Findings,
    Held,
    History,
    Letters,
    Live,
    LiveFile,
    Offsets,
    Partition,
    Tables,
    Types,
    parse_gone_letters,
    parse_ranges,
    parse_state,
    parse_taken,
    summary_of,
)


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
    """Sort the table's rows into the stream's partitions; rows of no stream are findings."""
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
