"""VERIFY a state table against its source in PostgreSQL, also while the source is being written.

The first pass compares digests of all rows of the state with those of the source. Keys that differ
are compared again, each time at a new snapshot of the state and in a new transaction, until they
are equal, proven to be different, or the wait is over. Nothing is written.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.table import Table

from frazil.errors import ConfigurationError, FrazilError, IncompatibleTableError
from frazil.iceberg.table_view import TableView
from frazil.ledger.offsets import NextOffsets
from frazil.ledger.recovery_point import for_reading, require_recovery_point
from frazil.messages import count_noun, name_field
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.messages import KeyCounts, SourceCheck, SourceCheckRequest
from frazil.state_tables.source_check_rules import (
    LEAST_STILL_SECONDS,
    FirstPass,
    Reading,
    Row,
    RowPair,
    Suspect,
    Verdict,
    find_differing_parts,
    find_position,
    format_lsn,
    is_ahead,
    is_proven,
    judge,
)
from frazil.state_tables.source_table import (
    Keyed,
    SourceDatabase,
    SourceSnapshot,
    SourceTable,
    find_postgres_config,
)
from frazil.state_tables.source_values import Pairings, Text, pair_columns, show_key
from frazil.state_tables.state_rows import StateRows, find_source
from frazil.state_tables.state_status import read_state_status
from frazil.state_tables.tables import require_own_state, require_state
from frazil.streams.column_types import parse_column
from frazil.streams.models import Stream
from frazil.workspace import Workspace

MOST_PASSES = 20
SHOWN_KEYS = 20
"""Examples of each kind of finding."""
_PROGRESS_SECONDS = 10.0
_SHORTEST_PAUSE = 1.0
Progress: TypeAlias = Callable[[str], None]
Texts: TypeAlias = tuple[Text, ...]


@dataclass
class _Check:
    """One comparison: both sides, the suspects that are left, and what was decided."""

    work: Workspace
    database: SourceDatabase
    source: SourceTable
    pairings: Pairings
    report: Progress
    names_table: bool = False
    suspects: dict[bytes, Suspect] = field(default_factory=dict)
    keys: dict[bytes, Texts] = field(default_factory=dict)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    examples: dict[Verdict, list[bytes]] = field(default_factory=dict)
    columns: Counter[str] = field(default_factory=Counter)
    snapshot_id: int | None = None
    passes: int = 0

    def _open_state(self) -> StateRows:
        table = TableView(self.work.store, require_state(self.work.stream).name).table
        snapshot = table.current_snapshot()
        self.snapshot_id = snapshot.snapshot_id if snapshot else None
        return StateRows(table, self.pairings)

    def _read(self, rows: StateRows, snapshot: SourceSnapshot) -> Reading:
        """Return the positions of both sides; a partition without a row in the state has none."""
        names, state = self.work.stream.source.names, _read_offsets(self.work)
        read = {
            (topic, number)
            for topic, offsets in state.items()
            for number, offset in enumerate(offsets)
            if offset
        }
        known = {**dict.fromkeys(read), **rows.newest}
        newest = {each: lsn for each, lsn in known.items() if each[0] in names}
        self.passes += 1
        return Reading(snapshot.lsn, find_position(newest), time.monotonic())

    def compare_all(self) -> tuple[FirstPass, Reading]:
        """Compare all rows of the source with all rows of the state."""
        rows = self._open_state()
        first = FirstPass.read(_strip(self._count(rows.read(), "the state")))
        self._require_one_source(rows)
        with self.database.open() as snapshot:
            for batch in self._count(snapshot.read_rows(self.source, self.pairings), "the source"):
                for index in first.meet([row for row, _ in batch]):
                    self.keys[batch[index][0].key] = batch[index][1]
            self._require_unique_keys(first)
            first.end()
            now = self._read(rows, snapshot)
        self.suspects = {key: Suspect(pair, now, now) for key, pair in first.suspects.items()}
        first.suspects.clear()
        return first, now

    def _require_one_source(self, rows: StateRows) -> None:
        tables = sorted({f"{schema}.{table}" for _, schema, table in rows.sources})
        databases = ", ".join(sorted({database or "(none)" for database, *_ in rows.sources}))
        if len(tables) > 1:
            raise IncompatibleTableError(
                f"stream {self.work.stream.stream}: its rows come from several tables: "
                f"{', '.join(tables)}",
                "a state table of several source tables cannot be compared",
            )
        if len(rows.sources) > 1 and not self.names_table:
            raise IncompatibleTableError(
                f"stream {self.work.stream.stream}: its rows come from several databases: "
                f"{databases}",
                f"if one database was renamed, set {name_field('table')} to {tables[0]}",
            )

    def _require_unique_keys(self, first: FirstPass) -> None:
        if first.repeated:
            columns = ", ".join(pairing.name for pairing in self.pairings.keys)
            raise IncompatibleTableError(
                f"stream {self.work.stream.stream}: rows of {self.source.text} "
                f"with the key of another row (columns {columns}): {first.repeated:,}; the state "
                "has one row for each key",
                "set `table.id_columns` to columns that are unique in the source, as its primary "
                "key; this needs a new table",
            )

    def compare_again(self) -> Reading:
        """Compare the suspects again; decide about those that are equal, or proven to differ."""
        rows = self._open_state()
        states: dict[bytes, Row] = {}
        for batch in rows.read(has_parts=True):
            for row, texts in batch:
                if row.key in self.suspects:
                    states[row.key] = row
                    self.keys[row.key] = texts
        with self.database.open() as snapshot:
            wanted = (self.keys[key] for key in self.suspects if key in self.keys)
            found = snapshot.find_rows(self.source, self.pairings, wanted)
            sources = {row.key: row for batch in _strip(found) for row in batch}
            now = self._read(rows, snapshot)
        for key, suspect in [*self.suspects.items()]:
            again = suspect.compare_again(RowPair(sources.get(key), states.get(key)), now)
            self.suspects[key] = again
            if again.pair.is_equal:
                self._decide(key, "equal")
            elif is_proven(again, now):
                self._decide(key, again.pair.finding)
        return now

    def _decide(self, key: bytes, verdict: Verdict) -> None:
        suspect, known = self.suspects.pop(key), self.keys.pop(key, None)
        if suspect.pair != (None, None):
            self.verdicts[verdict] += 1
        if verdict == "different":
            names = [pairing.name for pairing in self.pairings.values]
            self.columns.update(names[index] for index in find_differing_parts(suspect.pair))
        examples = self.examples.setdefault(verdict, [])
        if verdict != "equal" and known is not None and len(examples) < SHOWN_KEYS:
            examples.append(key)
            self.keys[key] = known

    def wait(self, since: float, deadline: float) -> None:
        """Wait until the state has moved, at most until the deadline; pauses limit the passes."""
        pause = max(_SHORTEST_PAUSE, (deadline - since) / MOST_PASSES)
        name = require_state(self.work.stream).name
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            head = self.work.store.load(name).current_snapshot()
            if head is not None and head.snapshot_id != self.snapshot_id:
                return

    def finish(self, now: Reading, waiting: Iterable[str]) -> None:
        """Decide about all keys that are left."""
        is_waiting = bool(tuple(waiting))
        for key, suspect in [*self.suspects.items()]:
            self._decide(key, judge(suspect, now, waiting=is_waiting))

    def _count(self, batches: Iterator[list[Keyed]], what: str) -> Iterator[list[Keyed]]:
        rows, reported = 0, time.monotonic()
        for batch in batches:
            rows += len(batch)
            if time.monotonic() - reported >= _PROGRESS_SECONDS:
                reported = time.monotonic()
                self.report(f"read {count_noun(rows, 'row')} of {what}")
            yield batch
        self.report(f"read {what}: {count_noun(rows, 'row')}")


def _strip(batches: Iterable[list[Keyed]]) -> Iterator[list[Row]]:
    """Yield the digests only, so that the texts of keys are not kept in memory."""
    for batch in batches:
        yield [row for row, _ in batch]


def verify_source(
    work: Workspace, request: SourceCheckRequest, report: Progress, *, shows_keys: bool = False
) -> SourceCheck:
    """Compare a state table with its source table; nothing is written.

    `report` receives lines about the progress.

    Raises:
        IncompatibleTableError: the stream has no state table of a table of PostgreSQL.
        MissingTableError: the state table does not exist yet.
        TargetError: the source table does not exist.
        ConfigurationError: the connection cannot be used, or may not read the table.
        DatabaseUnavailableError: the database did not answer, or refused the login.
    """
    check = _begin(with_event_key(work), request, report)
    first, now = check.compare_all()
    started = time.monotonic()
    deadline = started + request.wait_seconds
    while check.suspects:
        if check.passes > 1:
            if time.monotonic() >= deadline:
                break
            report(_describe_wait(check, now, deadline))
            check.wait(started, deadline)
        now = check.compare_again()
    waiting = tuple(_list_waiting(check, now, request)) if check.suspects else ()
    check.finish(now, waiting)
    return _report(check, first, now, waiting, shows_keys=shows_keys)


def _begin(work: Workspace, request: SourceCheckRequest, report: Progress) -> _Check:
    """Find both tables and pair their columns."""
    stream, state = work.stream, require_state(work.stream)
    if stream.value.change_events is None:
        raise IncompatibleTableError(
            f"stream {stream.stream}: its records are not change events, so its state table names "
            "no source table",
            "only streams with `transform: flatten_debezium` can be compared with their source; "
            f"`frazil audit {stream.stream}` compares the state with its changes",
        )
    config = find_postgres_config(request.connection)
    table = TableView(work.store, state.name).table
    require_own_state(stream, table)
    database = SourceDatabase(request.connection, config)
    origin = find_source(table, stream.stream)
    with database.open() as snapshot:
        schema, name = _choose_table(request, origin, snapshot)
        source = snapshot.find_table(schema, name)
    pairings = _pair(stream, table, source)
    return _Check(work, database, source, pairings, report, request.table is not None)


def _choose_table(
    request: SourceCheckRequest, origin: tuple[str | None, ...] | None, snapshot: SourceSnapshot
) -> tuple[str, str]:
    """Return schema and name of the source table: as asked for, or as the rows say."""
    if request.table is not None:
        schema, dot, name = request.table.partition(".")
        if not (schema and dot and name and request.table.isprintable()):
            raise ConfigurationError(
                f"source table {request.table!r} is not SCHEMA.NAME", "for example public.customers"
            )
        return schema, name
    database, schema_, name_ = origin or (None, None, None)
    if not schema_ or not name_:
        raise ConfigurationError(
            f"stream {request.stream}: no row of the state names its source table",
            f"set {name_field('table')} to SCHEMA.NAME",
        )
    if database not in {None, snapshot.database}:
        raise ConfigurationError(
            f"stream {request.stream}: its rows come from database {database}, connection "
            f"{request.connection!r} leads to database {snapshot.database}",
            "correct the database (`schema`) of the connection; for a copy with another name, set "
            f"{name_field('table')} to {schema_}.{name_}",
        )
    return schema_, name_


def _pair(stream: Stream, table: Table, source: SourceTable) -> Pairings:
    columns = [parse_column(name, text) for name, text in stream.value.columns.items()]
    have = [each.name for each in table.schema().fields]
    return pair_columns(columns, stream.table.id_columns, have, source.columns)


def _describe_wait(check: _Check, now: Reading, deadline: float) -> str:
    position = "unknown" if now.position is None else format_lsn(now.position)
    seconds = max(0, round(deadline - time.monotonic()))
    return (
        f"{count_noun(len(check.suspects), 'key')} not equal yet; waiting up to {seconds} s: "
        f"source at LSN {format_lsn(now.lsn)}, state at {position}"
    )


def _list_waiting(check: _Check, now: Reading, request: SourceCheckRequest) -> Iterator[str]:
    """Yield why changes may not have reached the state yet."""
    work = check.work
    if request.wait_seconds < LEAST_STILL_SECONDS:
        least = f"{LEAST_STILL_SECONDS:.0f} s"
        yield f"a wait of less than {least} cannot show that no change is on its way"
    if is_ahead(now):
        yield "the state is ahead of this server: it is a standby that lags, or another server"
    tables = (work.stream.table.name, require_state(work.stream).name)
    status = read_state_status(work.stream, *(TableView(work.store, name) for name in tables))
    if status.problem or status.behind_since:
        yield status.text
    yield from _list_unread(work)
    with check.database.open() as snapshot:
        if missing := snapshot.find_missing_connector():
            yield missing


def _read_offsets(work: Workspace) -> NextOffsets:
    """Return the next offsets of the change table, also where it cannot be written."""
    history = for_reading(TableView(work.store, work.stream.table.name).history)
    return require_recovery_point(history, work.stream.stream).state.offsets


def _list_unread(work: Workspace) -> Iterator[str]:
    """Yield the topics with records that no batch has read, or why that is unknown."""
    try:
        state = _read_offsets(work)
        for facts in work.kafka.fetch_topics(work.stream.source.names):
            known = dict(enumerate(state.get(facts.topic, ())))
            ends = enumerate(each.end for each in facts.partitions)
            unread = sum(max(0, end - known.get(number, 0)) for number, end in ends)
            if unread:
                yield f"topic {facts.topic}: no batch has read {count_noun(unread, 'offset')} yet"
    except FrazilError as error:
        yield error.facts


def _report(
    check: _Check,
    first: FirstPass,
    now: Reading,
    waiting: tuple[str, ...],
    *,
    shows_keys: bool,
) -> SourceCheck:
    stream = check.work.stream
    found = {name: count for name, count in check.verdicts.items() if name != "equal"}
    counts = KeyCounts(
        **found,
        duplicate=first.duplicates,
        unchecked=first.unchecked,
        equal=first.equal + check.verdicts["equal"],
    )
    is_open = counts.behind or counts.unchecked
    shown = {
        kind: tuple(show_key(check.pairings.keys, check.keys[key]) for key in examples)
        for kind, examples in check.examples.items()
        if examples
    }
    return SourceCheck(
        stream=stream.stream,
        table=require_state(stream).name,
        source=f"{check.source.text} of connection {check.database.name}",
        verdict="different" if counts.is_wrong else "behind" if is_open else "equal",
        source_rows=first.source_rows,
        state_rows=first.state_rows + first.duplicates,
        counts=counts,
        passes=check.passes,
        lsn=format_lsn(now.lsn),
        position=None if now.position is None else format_lsn(now.position),
        sequence=stream.sequence,
        compared=tuple(pairing.name for pairing in check.pairings.all),
        not_compared=dict(check.pairings.skipped),
        columns=dict(check.columns),
        waiting=waiting,
        keys=shown if shows_keys else {},
    )
