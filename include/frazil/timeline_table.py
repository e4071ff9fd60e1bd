"""The Iceberg table `frazil.timeline`: events written after the fact, for SQL and for other hosts.

It is never asked for a decision, and what was derived can be derived again: drop it, and
`frazil timeline --record` writes it anew, all but the noted failures.
"""

import json
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from frazil import keys
from frazil.event_notes import close_notes, read_notes
from frazil.publishing import load_with_history
from frazil.tables import NewTable, TableStore, translated_errors
from frazil.timeline import Event, derive_events, join_events
from frazil.turns import lose_on_conflict, take_turns
from frazil.workspace import Workspace

SCHEMA = Schema(
    NestedField(1, "event_id", StringType(), required=True),
    NestedField(2, "at", TimestamptzType(), required=True),
    NestedField(3, "stream", StringType(), required=True),
    NestedField(4, "table_name", StringType(), required=True),
    NestedField(5, "kind", StringType(), required=True),
    NestedField(6, "text", StringType(), required=True),
    NestedField(7, "run_id", StringType()),
    NestedField(8, "facts", StringType(), required=True),
)


def read_timeline(work: Workspace, since: datetime) -> list[Event]:
    """Give the stream's events since an instant: derived, recorded and noted ones.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    stream, name = work.stream.stream, work.stream.table.name
    derived: list[Event] = []
    if work.store.find(name) is not None:
        derived = list(derive_events(load_with_history(work.store, name)[1], stream))
    events = join_events(derived, read_recorded(work.store, since), read_notes())
    return [e for e in events if e.at >= since and (e.stream == stream or e.table == name)]


def read_recorded(store: TableStore, since: datetime) -> list[Event]:
    """Read the table's events since an instant."""
    table = store.find(keys.TIMELINE_TABLE)
    if table is None:
        return []
    with translated_errors("reading the timeline"):
        rows = table.scan(row_filter=f"at >= '{since.isoformat()}'").to_arrow()
    return [
        Event(
            **{name: row[name] for name in ("event_id", "at", "stream", "kind", "text", "run_id")},
            table=row["table_name"],
            facts=json.loads(row["facts"]),
        )
        for row in rows.to_pylist()
    ]


def record_timeline(work: Workspace) -> int:
    """Append the stream's events and all notes that the table does not hold; give their number."""
    noted = read_notes()
    _, history = load_with_history(work.store, work.stream.table.name)
    events = join_events(derive_events(history, work.stream.stream), noted)
    if events:
        known = {event.event_id for event in read_recorded(work.store, events[0].at)}
        events = [event for event in events if event.event_id not in known]
    if events:
        _append(work.store, events)
    close_notes(noted)
    return len(events)


def _append(store: TableStore, events: Sequence[Event]) -> None:
    """Append rows; a repetition is harmless, events count once by their id."""
    rows = [
        {
            **event.model_dump(include={"event_id", "at", "stream", "kind", "text", "run_id"}),
            "table_name": event.table,
            "facts": json.dumps(event.facts, separators=(",", ":")),
        }
        for event in events
    ]

    def append() -> None:
        table = store.find(keys.TIMELINE_TABLE) or store.create(
            keys.TIMELINE_TABLE, NewTable(SCHEMA)
        )
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()))

    with translated_errors("recording the timeline"):
        take_turns("recording the timeline", lambda: lose_on_conflict(append))
