"""The ledger archive `frazil.ledger`: id, parent id and summary of every ancestor of main.

Snapshot expiry removes snapshots; the archive keeps their summaries for good. A snapshot that was
appended twice counts once, by a row with a parent id: expiry by another writer may have erased the
parent id in the table before the other row was written.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import CHANGED_PARTITION_PREFIX, PARTITION_SUMMARY_PROP
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from frazil.errors import TableDroppedError
from frazil.iceberg.catalog import (
    NewTable,
    TableStore,
    read_history,
    translated_errors,
)
from frazil.iceberg.commit_retry import raise_on_conflict, retry_commit
from frazil.iceberg.commits import SnapshotRetention, append_rows
from frazil.iceberg.table_compatibility import list_obstacles
from frazil.ledger import keys
from frazil.ledger.recovery_point import Archive, History, LedgerEntry, walk_ancestors
from frazil.messages import count_noun
from frazil.streams.timestamps import from_epoch_ms

SCHEMA = Schema(
    NestedField(1, "table_uuid", StringType(), required=True),
    NestedField(2, "table_name", StringType(), required=True),
    NestedField(3, "snapshot_id", LongType(), required=True),
    NestedField(4, "parent_id", LongType()),
    NestedField(5, "committed_at", TimestamptzType(), required=True),
    NestedField(6, "summary", StringType(), required=True),
)
RETAINED = SnapshotRetention(count=100, age_ms=15 * 60_000)
"""Retention of the archive's own snapshots; its rows are never deleted, all streams append."""
_ARROW = pa.schema(
    [
        pa.field("table_uuid", pa.string(), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("parent_id", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("summary", pa.string(), nullable=False),
    ]
)


def read_archive(store: TableStore, name: str, table_uuid: str) -> Archive:
    """Return the archived entries of a table; uuids and streams of earlier ones of its name."""
    entries: dict[int, LedgerEntry] = {}
    earlier: dict[str, set[str]] = {}
    for row in _read_rows(store, name):
        summary = json.loads(row["summary"])
        if row["table_uuid"] != table_uuid:
            earlier.setdefault(row["table_uuid"], set()).update(_streams_of(summary))
            continue
        entry = LedgerEntry(
            row["snapshot_id"],
            row["parent_id"],
            int(row["committed_at"].timestamp() * 1000),
            summary,
        )
        known = entries.get(entry.snapshot_id)
        if known is None or known.parent_id is None:  # expiry by others erases parent ids
            entries[entry.snapshot_id] = entry
    streams = frozenset(name for names in earlier.values() for name in names)
    return Archive(entries, frozenset(earlier), streams)


def _read_rows(store: TableStore, name: str) -> list[dict[str, Any]]:
    """Read the archive's rows of all tables that had this name, oldest first."""
    table = store.find(keys.LEDGER_TABLE)
    if table is None:
        return []
    with translated_errors(f"reading the ledger archive of {name}"):
        rows: list[dict[str, Any]] = (
            table.scan(row_filter=f"table_name = '{name}'").to_arrow().to_pylist()
        )
    return sorted(rows, key=lambda row: row["committed_at"])


def require_not_dropped(store: TableStore, name: str, stream: str | None = None) -> None:
    """Raise if the archive has a stream in a table of this name; the catalog has none now.

    Without a name any stream counts.

    Raises:
        TableDroppedError: a person decides, as a new table would begin without the old rows.
    """
    rows = [(row, json.loads(row["summary"])) for row in _read_rows(store, name)]
    own = [
        (row, found)
        for row, found in rows
        if (names := _streams_of(found)) and (stream is None or stream in names)
    ]
    if not own:
        return
    newest, summary = own[-1]
    stream = stream or min(_streams_of(summary))
    batches = {row["snapshot_id"] for row, found in own if found.get(keys.KIND) == keys.INGEST}
    raise TableDroppedError(
        f"table {name} was dropped: catalog {store.preset.name} does not have it, and the ledger "
        f"archive has {count_noun(len(batches), 'batch', 'batches')} of stream {stream} in it "
        f"(newest snapshot {newest['snapshot_id']}, uuid {newest['table_uuid']}); nothing was "
        "created",
        "to restore the table, register its newest metadata file in the catalog "
        f"(`CALL system.register_table` of Spark), and the stream continues; `frazil recover "
        f"{stream} --new-table --by YOU --reason WHY --no-dry-run` creates an empty one and starts "
        "over from source.start",
    )


def make_absent_history(store: TableStore, name: str) -> History:
    """Return the ledger of a table that is not there: the archive of earlier ones of its name."""
    return History(name, "", None, {}, {}, partial(read_archive, store, name, ""))


def _streams_of(summary: dict[str, str]) -> set[str]:
    return {
        key.removeprefix(keys.STATE_PREFIX) for key in summary if key.startswith(keys.STATE_PREFIX)
    }


def archive_new_entries(store: TableStore, history: History) -> int:
    """Archive main's entries down to the last batch or marker below the head; return their number.

    Every publish does this, so it does not read the archive. Maintenance adds entries that a crash
    left out by `archive_all_entries` before snapshots expire.
    """
    fresh: list[LedgerEntry] = []
    for entry in walk_ancestors(history, beyond_metadata=False):
        has_state = any(key.startswith(keys.STATE_PREFIX) for key in entry.summary)
        if fresh and (has_state or entry.summary.get(keys.KIND) in keys.ROW_KINDS):
            break
        fresh.append(entry)
    _append(store, history, fresh)
    return len(fresh)


def archive_all_entries(store: TableStore, history: History) -> int:
    """Archive the ancestors of main that the archive does not have; return their number."""
    entries = [*walk_ancestors(history, beyond_metadata=False)]
    known = find_archived(store, history)
    missing = [entry for entry in entries if entry.snapshot_id not in known]
    _append(store, history, missing)
    return len(missing)


def find_archived(store: TableStore, history: History) -> frozenset[int]:
    """Return the ids of the table's current snapshots that are in the archive.

    Only rows since the oldest of these snapshots are read, because the archive grows for good.
    """
    table = store.find(keys.LEDGER_TABLE)
    if table is None or not history.entries:
        return frozenset()
    oldest = from_epoch_ms(min(entry.committed_at_ms for entry in history.entries.values()))
    of_table = f"table_name = '{history.table}' and table_uuid = '{history.table_uuid}'"
    condition = f"{of_table} and committed_at >= '{oldest.isoformat()}'"
    with translated_errors(f"reading the ledger archive of {history.table}"):
        rows = table.scan(condition, selected_fields=("snapshot_id",)).to_arrow()
    return frozenset(rows["snapshot_id"].to_pylist()) & frozenset(history.entries)


def _append(store: TableStore, history: History, entries: Iterable[LedgerEntry]) -> None:
    """Append entries; a repetition is harmless, as a snapshot id counts once."""
    rows = [
        {
            "table_uuid": history.table_uuid,
            "table_name": history.table,
            "snapshot_id": entry.snapshot_id,
            "parent_id": entry.parent_id,
            "committed_at": from_epoch_ms(entry.committed_at_ms),
            "summary": json.dumps(_omit_partitions(entry.summary), separators=(",", ":")),
        }
        for entry in entries
    ]
    if not rows:
        return
    content = pa.Table.from_pylist(rows, schema=_ARROW)

    def append() -> None:
        append_rows(store.catalog, _ledger_table(store), content, RETAINED)

    with translated_errors(f"archiving the ledger of {history.table}"):
        retry_commit(f"archiving {history.table}", lambda: raise_on_conflict(append))


def _omit_partitions(summary: Mapping[str, str]) -> dict[str, str]:
    """Leave out what `write.summary.partition-limit` adds: the archive must hold no value of a row.

    The archive is never erased or expired.
    """
    return {
        key: text
        for key, text in summary.items()
        if not key.startswith(CHANGED_PARTITION_PREFIX) and key != PARTITION_SUMMARY_PROP
    }


def _ledger_table(store: TableStore) -> Table:
    return store.find(keys.LEDGER_TABLE) or store.create(keys.LEDGER_TABLE, NewTable(SCHEMA))


def read_ledger(store: TableStore, table: Table, name: str) -> History:
    """Return a loaded table's ledger; the archive is read only where its snapshots end."""
    uuid = str(table.metadata.table_uuid)
    history = read_history(table, name, partial(read_archive, store, name, uuid))
    return replace(history, obstacles=list_obstacles(table))
