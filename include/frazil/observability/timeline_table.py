"""The Iceberg table `frazil.timeline`: recorded events, for SQL and for other hosts.

No decision depends on it. If it is dropped, `frazil timeline --record` writes it again, except
noted events and those of an earlier table of the same name.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from frazil.events import Event, close_notes, read_notes
from frazil.iceberg.catalog import NewTable, TableStore, translated_errors
from frazil.iceberg.commit_retry import raise_on_conflict, retry_commit
from frazil.iceberg.commits import append_rows
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.observability.timeline import derive_events, join_events
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


def read_timeline(work: Workspace, since: datetime, view: TableView | None = None) -> list[Event]:
    """Return the stream's events since an instant: derived, recorded and noted ones.

    Raises:
        CatalogUnavailableError: the catalog did not answer.
    """
    view = view or TableView(work.store, work.stream.table.name)
    derived: list[Event] = []
    if view.found is not None:
        derived = list(_derive_all(work, view))
    events = join_events(derived, read_recorded(work.store, since), read_notes())
    return [event for event in events if event.at >= since and _concerns(event, work)]


def read_own_notes(work: Workspace, since: datetime) -> list[Event]:
    """Return this machine's notes about a stream and its table, without using the catalog."""
    return [event for event in read_notes() if event.at >= since and _concerns(event, work)]


def read_recorded(store: TableStore, since: datetime, only: str = "") -> list[Event]:
    """Return recorded events since an instant; `only` is a further condition on the columns."""
    table = store.find(keys.TIMELINE_TABLE)
    if table is None:
        return []
    wanted = f"at >= '{since.isoformat()}'" + (f" and {only}" if only else "")
    with translated_errors("reading the timeline"):
        rows = table.scan(row_filter=wanted).to_arrow()
    return [
        Event(
            **{name: row[name] for name in ("event_id", "at", "stream", "kind", "text", "run_id")},
            table=row["table_name"],
            facts=json.loads(row["facts"]),
        )
        for row in rows.to_pylist()
    ]


def find_drills(work: Workspace, since: datetime) -> dict[str, Event]:
    """Return the newest result of each drill of the stream since an instant, by drill."""
    recorded = read_recorded(work.store, since, f"kind = 'drill' and ({_own(work)})")
    known = join_events(recorded, read_notes())
    found = [e for e in known if e.kind == "drill" and e.at >= since and _concerns(e, work)]
    return {e.event_id.split(":")[1]: e for e in sorted(found, key=lambda event: event.at)}


def record_notes(work: Workspace) -> int:
    """Append this machine's notes of the stream that the table lacks; return their number.

    Raises:
        FrazilError: the catalog or the warehouse cannot be used; the notes stay for the next time.
    """
    noted = [event for event in read_notes() if _concerns(event, work)]
    return _record(work, noted, noted) if noted else 0


def record_timeline(work: Workspace) -> int:
    """Append the stream's events and notes that the table lacks; return their number."""
    noted = [event for event in read_notes() if _concerns(event, work)]
    view = TableView(work.store, work.stream.table.name)
    if view.found is None:
        return 0
    return _record(work, join_events(_derive_all(work, view), noted), noted)


def _record(work: Workspace, events: Sequence[Event], noted: Sequence[Event]) -> int:
    """Append the events that the table lacks, then close the notes among them."""
    known = _read_known_ids(work)
    events = [event for event in events if event.event_id not in known]
    if events:
        _append(work.store, events)
    close_notes(noted)
    return len(events)


def _derive_all(work: Workspace, view: TableView) -> Iterator[Event]:
    """Derive the events of the stream's table, and those of its state table."""
    yield from derive_events(view.history, work.stream.stream)
    state = work.stream.table.state
    of_state = TableView(work.store, state.name) if state else None
    if of_state is not None and of_state.found is not None:
        yield from derive_events(of_state.history, work.stream.stream)


def _own(work: Workspace) -> str:
    """Return the row filter for events of a stream or its tables."""
    tables = ", ".join(f"'{name}'" for name in _list_tables(work))
    return f"stream = '{work.stream.stream}' or table_name in ({tables})"


def _concerns(event: Event, work: Workspace) -> bool:
    return event.stream == work.stream.stream or event.table in _list_tables(work)


def _list_tables(work: Workspace) -> list[str]:
    """Return the names of the stream's table and its state table."""
    table = work.stream.table
    return [table.name, *([table.state.name] if table.state else [])]


def _read_known_ids(work: Workspace) -> set[str]:
    """Return the ids of recorded events of the stream and its tables."""
    table = work.store.find(keys.TIMELINE_TABLE)
    if table is None:
        return set()
    own = _own(work)
    with translated_errors("reading the timeline"):
        return set(
            table.scan(own, selected_fields=("event_id",)).to_arrow()["event_id"].to_pylist()
        )


def _append(store: TableStore, events: Sequence[Event]) -> None:
    """Append rows; duplicates are harmless, since readers keep each event id once."""
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
        append_rows(store.catalog, table, pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow()))

    with translated_errors("recording the timeline"):
        retry_commit("recording the timeline", lambda: raise_on_conflict(append))
