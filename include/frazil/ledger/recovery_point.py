"""The ledger read back from snapshots: ancestry and recovery point, as pure functions.

Protocol.md, "State lives in the table, nowhere else".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from frazil.errors import ForeignRollbackError, HistoryCutError, TableRecreatedError
from frazil.ledger import keys
from frazil.ledger.offsets import NextOffsets
from frazil.ledger.state import Hint, StreamState, parse_hint, parse_state


@dataclass(frozen=True)
class LedgerEntry:
    """One snapshot as the ledger sees it."""

    snapshot_id: int
    parent_id: int | None
    committed_at_ms: int
    summary: Mapping[str, str]
    is_first: bool = field(default=False, compare=False)
    """It began its table: it never had a parent that somebody could have erased."""


@dataclass(frozen=True)
class Archive:
    """What `frazil.ledger` holds of one table name: rows of this table and of earlier ones."""

    entries: Mapping[int, LedgerEntry]
    earlier_uuids: frozenset[str] = frozenset()
    earlier_streams: frozenset[str] = frozenset()


EMPTY_ARCHIVE = Archive({})


@dataclass(frozen=True)
class History:
    """A table's snapshots and properties at one moment, with the archive behind them."""

    table: str
    table_uuid: str
    head: int | None
    entries: Mapping[int, LedgerEntry]
    properties: Mapping[str, str]
    load_archive: Callable[[], Archive] = lambda: EMPTY_ARCHIVE

    def hint(self, stream: str) -> Hint | None:
        """Read the stream's hint."""
        text = self.properties.get(keys.hint_key(stream))
        return parse_hint(text, f"table {self.table}, stream {stream},") if text else None


@dataclass(frozen=True)
class RecoveryPoint:
    """The only owner of progress: the newest state on main's ancestry."""

    state: StreamState
    snapshot_id: int


def walk_ancestors(history: History, *, beyond_metadata: bool = True) -> Iterator[LedgerEntry]:
    """Yield main's ancestors, newest first, through the metadata and then the archive.

    The archive is loaded only where the metadata ends. A parent id that somebody erased is taken
    from the archive, where it was written while the parent was there; the table's first snapshot
    never had one, so that young tables read no archive.
    """
    current = history.head
    seen: set[int] = set()
    while current is not None and current not in seen:
        seen.add(current)
        entry = history.entries.get(current)
        is_cut = entry is None or (entry.parent_id is None and not entry.is_first)
        if is_cut and beyond_metadata:
            entry = history.load_archive().entries.get(current, entry)
        if entry is None:
            return
        yield entry
        current = entry.parent_id


def read_state(history: History, entry: LedgerEntry, stream: str) -> StreamState:
    """Read the state of a stream that a snapshot carries.

    Raises:
        UnknownStateError: table, snapshot and stream are named.
    """
    where = f"snapshot {entry.snapshot_id} of table {history.table}, stream {stream},"
    return parse_state(entry.summary[keys.state_key(stream)], where, stream)


def find_recovery_point(history: History, stream: str) -> RecoveryPoint | None:
    """Find the stream's recovery point; None means that the stream is new.

    Raises:
        ForeignRollbackError: the hint is ahead of the carrier.
        HistoryCutError: there is no carrier, but a hint or an archive row of the stream.
        TableRecreatedError: the archive knows the stream in a table of this name with another uuid.
    """
    key = keys.state_key(stream)
    hint = history.hint(stream)
    for entry in walk_ancestors(history):
        if key in entry.summary:
            state = read_state(history, entry, stream)
            if hint is not None and hint.epoch > state.epoch:
                raise ForeignRollbackError(
                    f"table {history.table}: main carries epoch {state.epoch} of stream {stream} "
                    f"(snapshot {entry.snapshot_id}), but epoch {hint.epoch} (snapshot "
                    f"{hint.snapshot_id}) was published: somebody rolled the table back",
                    f"`frazil recover {stream} --reingest` reads the rolled-back range again, "
                    "`--skip` leaves it out as a recorded gap; both only show it until you add "
                    "--by YOU --reason WHY --no-dry-run",
                )
            return RecoveryPoint(state, entry.snapshot_id)
    _require_recoverable_state(history, stream, hint)
    return None


def _require_recoverable_state(history: History, stream: str, hint: Hint | None) -> None:
    """Halt where a state once was: starting over would double or lose rows (C1, C6)."""
    archive = history.load_archive()
    key = keys.state_key(stream)
    if hint is not None or any(key in entry.summary for entry in archive.entries.values()):
        where = f"snapshot {hint.snapshot_id}, epoch {hint.epoch}" if hint else "the ledger archive"
        raise HistoryCutError(
            f"table {history.table}: main has no state of stream {stream}, but there was one "
            f"({where}); its snapshots were removed by others",
            f"`frazil snapshots {stream}` shows what the archive holds; then "
            f"`frazil recover {stream} --reingest --by YOU --reason WHY --no-dry-run`",
        )
    if stream in archive.earlier_streams:
        raise TableRecreatedError(
            f"table {history.table} has uuid {history.table_uuid}, but the ledger holds stream "
            f"{stream} in a table of this name with uuid {', '.join(archive.earlier_uuids)}: "
            "it was dropped and created again",
            f"`frazil recover {stream} --new-table --by YOU --reason WHY --no-dry-run` starts "
            "over from source.start, or restore the old table",
        )


def find_batch(
    history: History, batch_id: str, *, beyond_metadata: bool = True
) -> LedgerEntry | None:
    """Find the ancestor of main that published this batch."""
    for entry in walk_ancestors(history, beyond_metadata=beyond_metadata):
        if entry.summary.get(keys.BATCH_ID) == batch_id:
            return entry
    return None


def find_adopted(history: History, stream: str) -> NextOffsets:
    """Find the offsets below which a stream's rows came with its table; empty if none did.

    They say nothing of a cluster that the stream was moved to since.
    """
    for entry in walk_ancestors(history):
        is_own = entry.summary.get(keys.STREAM) == stream
        if is_own and entry.summary.get(keys.KIND) == keys.MOVE:
            return {}
        if is_own and entry.summary.get(keys.KIND) == keys.ADOPT:
            return read_state(history, entry, stream).offsets
    return {}


def list_streams(history: History) -> tuple[str, ...]:
    """List the streams that have a hint or a state on this table."""
    names = _names_after(keys.HINT_PREFIX, history.properties)
    for entry in walk_ancestors(history, beyond_metadata=False):
        names |= _names_after(keys.STATE_PREFIX, entry.summary)
    return tuple(sorted(names))


def _names_after(prefix: str, texts: Iterable[str]) -> set[str]:
    return {text.removeprefix(prefix) for text in texts if text.startswith(prefix)}


def find_recovery_points(history: History, *streams: str) -> dict[str, RecoveryPoint]:
    """Find the recovery point of the named streams and of every other one on the table.

    Raises:
        TableError: one of them halts; maintenance leaves such a table to a person.
    """
    names = sorted({*list_streams(history), *streams})
    found = {name: find_recovery_point(history, name) for name in names}
    return {name: point for name, point in found.items() if point is not None}


@dataclass(frozen=True)
class PublishedBatch:
    """A batch on main: by this call, or found there."""

    entry: LedgerEntry
    already_published: bool
