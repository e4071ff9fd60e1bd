"""A table's history and the recovery point of a stream, as pure functions over snapshots.

See docs/protocol.md, "The recovery point".
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frazil.errors import (
    ForeignRollbackError,
    HistoryCutError,
    IncompatibleTableError,
    MissingTableError,
    TableRecreatedError,
    UnknownStateError,
)
from frazil.ledger import keys
from frazil.ledger.offsets import NextOffsets
from frazil.ledger.state import Hint, StreamState, parse_hint, parse_state


@dataclass(frozen=True)
class LedgerEntry:
    """One snapshot: ids, commit time in ms and summary."""

    snapshot_id: int
    parent_id: int | None
    committed_at_ms: int
    summary: Mapping[str, str]
    is_first: bool = field(default=False, compare=False)
    """Whether it is the table's first snapshot, which has no parent to look for in the archive."""


@dataclass(frozen=True)
class Archive:
    """The rows of `frazil.ledger` for one table name.

    `entries` are of the present table; a dropped table of the same name has another uuid.
    """

    entries: Mapping[int, LedgerEntry]
    earlier_uuids: frozenset[str] = frozenset()
    earlier_streams: frozenset[str] = frozenset()


EMPTY_ARCHIVE = Archive({})


@dataclass(frozen=True)
class WriteObstacle:
    """A state of the table in which Frazil cannot write it, and the command that changes that."""

    reason: str
    fix: str


def require_writable(table: str, obstacles: Sequence[WriteObstacle]) -> None:
    """Raise if a table has obstacles.

    Raises:
        IncompatibleTableError: with every reason, and how to remove it.
    """
    if obstacles:
        raise IncompatibleTableError(
            f"table {table} cannot be written: {'; '.join(each.reason for each in obstacles)}; "
            "nothing was written",
            "; ".join(each.fix for each in obstacles) + "; the next run then continues",
        )


@dataclass(frozen=True)
class History:
    """A table's snapshots and properties at one moment; the archive is loaded when needed."""

    table: str
    table_uuid: str
    head: int | None
    entries: Mapping[int, LedgerEntry]
    properties: Mapping[str, str]
    load_archive: Callable[[], Archive] = lambda: EMPTY_ARCHIVE
    obstacles: tuple[WriteObstacle, ...] = ()

    def hint(self, stream: str) -> Hint | None:
        """Return the stream's hint property; None if it has none."""
        text = self.properties.get(keys.hint_key(stream))
        return parse_hint(text, f"table {self.table}, stream {stream},") if text else None


def for_reading(history: History) -> History:
    """Return the history for a step that only reads, which needs no writable table."""
    return replace(history, obstacles=())


@dataclass(frozen=True)
class RecoveryPoint:
    """The newest state of a stream in main's ancestry, and the snapshot that holds it."""

    state: StreamState
    snapshot_id: int


def walk_ancestors(history: History, *, beyond_metadata: bool = True) -> Iterator[LedgerEntry]:
    """Yield main's ancestors, newest first, from the metadata and then from the archive.

    The archive is loaded only where the metadata ends: at a snapshot that is expired, or whose
    parent id was removed. The table's first snapshot has no parent, so tables with a complete
    history never load it.
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


def list_recorded_streams(history: History) -> Iterator[tuple[str, set[str], str]]:
    """Yield name, topics and snapshot of every state in the table's history, newest first."""
    for entry in walk_ancestors(history):
        for key, text in entry.summary.items():
            if key.startswith(keys.STATE_PREFIX):
                topics = set(parse_state(text).offsets)
                yield key.removeprefix(keys.STATE_PREFIX), topics, f"snapshot {entry.snapshot_id}"


def walk_ledger(history: History, stream: str) -> Iterator[LedgerEntry]:
    """Yield main's ancestors, then the archived snapshots from before a replacement of the table.

    A table that another tool replaced, or whose snapshots it removed, has only new ancestors; the
    `rewind` that resolved the halt names the archived snapshot at which the history continues.
    """
    seen: set[int] = set()
    head = history.head
    while head is not None and head not in seen:
        oldest = None
        for entry in walk_ancestors(replace(history, head=head)):
            if entry.snapshot_id in seen:
                return
            seen.add(entry.snapshot_id)
            if keys.state_key(stream) in entry.summary:
                oldest = entry
            yield entry
        head = _find_resumed(history, stream, oldest, seen) if oldest else None


def _find_resumed(
    history: History, stream: str, oldest: LedgerEntry, seen: Collection[int]
) -> int | None:
    """Return the archived snapshot that main's oldest state resumed from; None for none.

    Earlier releases recorded none: then it is the newest one before with the same offsets.
    """
    if oldest.summary.get(keys.KIND) != keys.REWIND:
        return None
    if keys.RESUMED in oldest.summary:
        return int(oldest.summary[keys.RESUMED])
    offsets = read_state(history, oldest, stream).offsets
    found = [
        entry
        for entry in history.load_archive().entries.values()
        if keys.state_key(stream) in entry.summary
        and entry.snapshot_id not in seen
        and entry.committed_at_ms <= oldest.committed_at_ms
        and read_state(history, entry, stream).offsets == offsets
    ]
    newest = max(found, key=lambda entry: entry.committed_at_ms, default=None)
    return newest.snapshot_id if newest else None


def read_state(history: History, entry: LedgerEntry, stream: str) -> StreamState:
    """Read a stream's state from the summary of a snapshot.

    Raises:
        UnknownStateError: this release cannot read the state.
    """
    where = f"snapshot {entry.snapshot_id} of table {history.table}, stream {stream},"
    return parse_state(entry.summary[keys.state_key(stream)], where, stream)


def find_recovery_point(history: History, stream: str) -> RecoveryPoint | None:
    """Find the stream's recovery point; None if the stream is new.

    Raises:
        IncompatibleTableError: another engine changed the table so that it cannot be written.
        ForeignRollbackError: the hint's epoch is above that of the newest state on main, or main
            lacks the change of rows that the hint names.
        HistoryCutError: main has no state, but there is a hint or an archived state.
        TableRecreatedError: the archive has the stream in a table of this name with another uuid.
    """
    require_writable(history.table, history.obstacles)
    key = keys.state_key(stream)
    hint = history.hint(stream)
    seen: set[int] = set()
    for entry in walk_ancestors(history):
        seen.add(entry.snapshot_id)
        if key in entry.summary:
            point = RecoveryPoint(read_state(history, entry, stream), entry.snapshot_id)
            if hint is not None:
                _require_no_rollback(history, stream, (point, hint), seen)
            return point
    _require_recoverable_state(history, stream, hint)
    return None


def _require_no_rollback(
    history: History, stream: str, known: tuple[RecoveryPoint, Hint], seen: Collection[int]
) -> None:
    """Check that main has what the hint names; `seen` are main's snapshots down to its state."""
    point, hint = known
    is_behind = hint.epoch > point.state.epoch
    if not is_behind and (
        hint.epoch < point.state.epoch or hint.change is None or hint.change.snapshot_id in seen
    ):
        return
    name = f"{hint.change.kind} snapshot" if hint.change else "snapshot"
    facts = (
        f"epoch {hint.epoch} (snapshot {hint.snapshot_id}) was published"
        if is_behind
        else f"{name} {hint.newest_id} is not on main"
    )
    changes = describe_lost_changes(history, stream)
    raise ForeignRollbackError(
        f"table {history.table}: main is at epoch {point.state.epoch} of stream {stream} "
        f"(snapshot {point.snapshot_id}), but {facts}: another tool rolled the table back"
        + (f"; {changes}" if changes else ""),
        _list_resolutions(history, stream, hint, is_behind=is_behind),
    )


def _list_resolutions(history: History, stream: str, hint: Hint, *, is_behind: bool) -> str:
    """Describe the commands that resolve a rollback by another tool."""
    ways = []
    if hint.newest_id in history.entries:
        ways.append(
            f"`frazil recover {stream} --to-snapshot {hint.newest_id}` restores the rolled-back "
            "snapshots"
        )
    if is_behind:
        ways.append(f"`frazil recover {stream} --reingest` reads the rolled-back range again")
        ways.append("`--skip` records it as a gap")
    else:
        ways.append(f"`frazil recover {stream} --reingest` continues with main as it is")
    count = "all are previews" if len(ways) > 1 else "it is a preview"
    return f"{', '.join(ways)}; {count} until you add --by YOU --reason WHY --no-dry-run"


def list_lost_changes(history: History, stream: str) -> tuple[LedgerEntry, ...]:
    """List the changes of rows below the hinted snapshot that main does not have, newest first."""
    hint = history.hint(stream)
    if hint is None:
        return ()
    on_main = {entry.snapshot_id for entry in walk_ancestors(history)}
    lost = []
    for entry in walk_ancestors(replace(history, head=hint.newest_id)):
        if entry.snapshot_id in on_main:
            break
        if entry.summary.get(keys.KIND) in keys.CHANGE_KINDS and (
            entry.summary.get(keys.STREAM) == stream or entry.summary[keys.KIND] == keys.ERASE
        ):
            lost.append(entry)
    return tuple(lost)


_REPEAT = {
    keys.ERASE: "the erased rows are visible again: erase the keys again",
    keys.EXPIRE_ROWS: "the expired rows are visible again until the next row expiry",
    keys.TRIM: "the trimmed changes are there again until the next row expiry",
    keys.REPLAY: "the replayed ranges have their old rows: replay them again",
    keys.BACKFILL: "the backfilled rows are missing: backfill the windows again",
    keys.REDRIVE: "the restored dead letters are open again: restore them again",
}


def describe_lost_changes(history: History, stream: str) -> str:
    """Describe the changes of rows that main lacks, and what each means; empty if there is none."""
    found: dict[str, list[str]] = {}
    for entry in list_lost_changes(history, stream):
        found.setdefault(entry.summary[keys.KIND], []).append(str(entry.snapshot_id))
    return "; ".join(
        f"{kind} {', '.join(ids)} {'was' if len(ids) == 1 else 'were'} rolled back, so "
        f"{_REPEAT[kind]}"
        for kind, ids in sorted(found.items())
    )


def find_newest_state(history: History, stream: str) -> RecoveryPoint | None:
    """Return the newest state on main's ancestry, also where the stream is halted."""
    key = keys.state_key(stream)
    for entry in walk_ancestors(history):
        if key in entry.summary:
            return RecoveryPoint(read_state(history, entry, stream), entry.snapshot_id)
    return None


def find_hinted_state(history: History, stream: str) -> StreamState | None:
    """Return the newest published state by the hint, if it is known and readable."""
    hint = history.hint(stream)
    if hint is None:
        return None
    entry = history.entries.get(hint.snapshot_id) or history.load_archive().entries.get(
        hint.snapshot_id
    )
    text = entry.summary.get(keys.state_key(stream)) if entry else None
    try:
        return parse_state(text) if text else None
    except UnknownStateError:
        return None  # an unreadable state may be the reason for the rollback


def _require_recoverable_state(history: History, stream: str, hint: Hint | None) -> None:
    """Check that the stream never had a state: starting over would double or lose rows."""
    archive = history.load_archive()
    key = keys.state_key(stream)
    if hint is not None or any(key in entry.summary for entry in archive.entries.values()):
        where = f"snapshot {hint.snapshot_id}, epoch {hint.epoch}" if hint else "the ledger archive"
        is_kept = hint is not None and hint.newest_id in history.entries
        done = "replaced the table" if is_kept else "removed its snapshots or replaced the table"
        restore = (
            f"`frazil recover {stream} --to-snapshot {hint.newest_id}` restores the table as it "
            "was; "
            if hint is not None and is_kept
            else ""
        )
        raise HistoryCutError(
            f"table {history.table}: main has no state of stream {stream}, but there was one "
            f"({where}); another tool {done}",
            f"{restore}`frazil recover {stream} --reingest` compares main's rows with the ledger "
            "and reads again what is missing; it is a preview until you add --by YOU --reason WHY "
            "--no-dry-run",
        )
    if stream in archive.earlier_streams:
        raise TableRecreatedError(
            f"table {history.table} has uuid {history.table_uuid}, but the ledger has stream "
            f"{stream} in a table of this name with uuid {', '.join(archive.earlier_uuids)}: "
            "the table was dropped and created again",
            f"`frazil recover {stream} --new-table --by YOU --reason WHY --no-dry-run` starts "
            "over from source.start; otherwise restore the old table",
        )


def find_batch(
    history: History, batch_id: str, *, beyond_metadata: bool = True
) -> LedgerEntry | None:
    """Find the ancestor of main with this batch id; None if there is none."""
    for entry in walk_ancestors(history, beyond_metadata=beyond_metadata):
        if entry.summary.get(keys.BATCH_ID) == batch_id:
            return entry
    return None


def find_adopted(history: History, stream: str) -> NextOffsets:
    """Find the offsets at which a stream's table was adopted; rows below them are older.

    Empty if the table was not adopted, or the stream was moved to another cluster since.
    """
    for entry in walk_ledger(history, stream):
        is_own = entry.summary.get(keys.STREAM) == stream
        if is_own and entry.summary.get(keys.KIND) == keys.MOVE:
            return {}
        if is_own and entry.summary.get(keys.KIND) == keys.ADOPT:
            return read_state(history, entry, stream).offsets
    return {}


def list_streams(history: History) -> tuple[str, ...]:
    """List the streams that have a hint or a state in the table's metadata."""
    names = _names_after(keys.HINT_PREFIX, history.properties)
    for entry in walk_ancestors(history, beyond_metadata=False):
        names |= _names_after(keys.STATE_PREFIX, entry.summary)
    return tuple(sorted(names))


def _names_after(prefix: str, texts: Iterable[str]) -> set[str]:
    return {text.removeprefix(prefix) for text in texts if text.startswith(prefix)}


def require_recovery_point(history: History, stream: str) -> RecoveryPoint:
    """Return the recovery point of a stream that has begun.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted.
    """
    point = find_recovery_point(history, stream)
    if point is None:
        raise MissingTableError(
            f"stream {stream} has not begun: table {history.table} has no state of it",
            f"`frazil run {stream}` begins at source.start",
        )
    return point


def find_recovery_points(history: History, *streams: str) -> dict[str, RecoveryPoint]:
    """Find the recovery points of all streams of the table, including the named ones.

    Raises:
        TableError: one of the streams is halted.
    """
    names = sorted({*list_streams(history), *streams})
    found = {name: find_recovery_point(history, name) for name in names}
    return {name: point for name, point in found.items() if point is not None}


@dataclass(frozen=True)
class PublishedBatch:
    """A batch on main; `already_published` if an earlier call committed it."""

    entry: LedgerEntry
    already_published: bool
