"""Resolutions of a halted stream by a named person: reingest, skip, or start over.

See protocol.md, recovery point. Without an author they are previews.
"""

from dataclasses import replace

from frazil.errors import (
    ConfigurationError,
    ForeignRollbackError,
    HistoryCutError,
    NothingToDecideError,
    TableError,
    TableRecreatedError,
)
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import initial_state, require_same_mode
from frazil.ingest.publishing import Choice, record_decision
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.recovery_point import (
    History,
    describe_lost_changes,
    find_hinted_state,
    find_newest_state,
    find_recovery_point,
    require_writable,
)
from frazil.ledger.state import StreamState
from frazil.recovery.lost_rows import describe_resumption, find_resumption
from frazil.recovery.retention_check import require_source_topic
from frazil.recovery.rollback_rules import list_reread_ranges
from frazil.workspace import Workspace


def reingest(work: Workspace, author: Author | None) -> Decision:
    """After a rollback or replacement by another writer, read again what main lacks.

    Reading continues at main's state, or where main has none at an archived state below which no
    row is missing.

    Raises:
        NothingToDecideError: the stream is not halted.
        ConfigurationError: main and the archive have no state of the stream.
    """
    stream = work.stream.stream

    def decide(view: TableView) -> Choice:
        history = view.history
        _require_no_recovery_point(history, stream, halts=TableError)
        newest = find_newest_state(history, stream)
        if newest is None:
            return _resume(work, view, is_preview=author is None)
        hinted = find_hinted_state(history, stream)
        for topic in list_reread_ranges(newest.state.offsets, hinted.offsets) if hinted else ():
            require_source_topic(work, topic)
        changes = describe_lost_changes(history, stream)
        text = f"{changes}; " if changes else ""
        return Choice(newest.state, _raise_epoch(history, stream, newest.state), text=text)

    return record_decision(work, keys.REWIND, author, decide)


def _resume(work: Workspace, view: TableView, *, is_preview: bool) -> Choice:
    """Continue where the archived ledger and main's rows agree, as main has no state.

    Snapshots of the replaced table that no archive has yet are archived before they expire.
    """
    stream, history = work.stream.stream, view.history
    found = find_resumption(work, view)
    if found is None:
        raise ConfigurationError(
            f"stream {stream}: main and the archive have no state from which ingest could continue",
            f"`frazil recover {stream} --new-table` starts over from source.start",
        )
    if not is_preview:
        archive_all_entries(work.store, replace(history, head=found.resumed_id))
    return Choice(
        found.state,
        _raise_epoch(history, stream, found.state),
        summary={keys.RESUMED: str(found.resumed_id)},
        text=describe_resumption(stream, found),
    )


def _raise_epoch(history: History, stream: str, state: StreamState) -> StreamState:
    """Return the state with an epoch above all published ones."""
    hint = history.hint(stream)
    return state.moved(max(state.epoch, hint.epoch if hint else 0) + 1, "", state.offsets)


def skip(work: Workspace, author: Author | None) -> Decision:
    """After a rollback by another writer, leave out the rolled-back range as a recorded gap.

    Reading continues after the newest published state, found in the metadata or in the archive.

    Raises:
        NothingToDecideError: the stream is not halted by a rollback.
        HistoryCutError: the newest published state is unknown, or of another cluster.
    """
    stream = work.stream.stream

    def decide(view: TableView) -> Choice:
        history = view.history
        _require_no_recovery_point(history, stream, halts=ForeignRollbackError)
        newest, after = find_newest_state(history, stream), find_hinted_state(history, stream)
        if newest is None or after is None:
            raise HistoryCutError(
                f"stream {stream}: neither the metadata of {history.table} nor the archive has the "
                "offsets of the rolled-back snapshots",
                f"`frazil recover {stream} --reingest` reads the rolled-back range again",
            )
        before = newest.state
        if before.cluster_id != after.cluster_id:
            raise HistoryCutError(
                f"stream {stream}: main's state is of cluster {before.cluster_id}, the rolled-back "
                f"snapshots are of cluster {after.cluster_id}: the gap cannot be given in offsets",
                f"`frazil recover {stream} --reingest`, then `frazil move-cluster {stream}`",
            )
        lost = list_reread_ranges(before.offsets, after.offsets)
        return Choice(before, replace(after, epoch=after.epoch + 1, batch=""), lost)

    return record_decision(work, keys.GAP, author, decide)


def start_over(work: Workspace, author: Author | None) -> Decision:
    """Begin again at `source.start`, after the table was dropped or created again.

    Raises:
        NothingToDecideError: the stream has a recovery point in this table.
    """
    stream = work.stream

    def decide(view: TableView) -> Choice:
        history = view.history
        require_same_mode(work, view)
        # Only for a new table: after any other halt the rows are still there and would double.
        _require_no_recovery_point(history, stream.stream, halts=TableRecreatedError)
        topics = work.kafka.fetch_topics(stream.source.names, stream.source.isolation)
        state = initial_state(stream, topics, work.kafka)
        hint = history.hint(stream.stream)
        return Choice(None, state.moved(hint.epoch + 1 if hint else 0, "", state.offsets))

    return record_decision(work, keys.BOOTSTRAP, author, decide)


def _require_no_recovery_point(history: History, stream: str, halts: type[TableError]) -> None:
    """Require that the stream is halted by one of these errors; others are raised."""
    require_writable(history.table, history.obstacles)
    try:
        point = find_recovery_point(history, stream)
    except halts:
        return
    if point is not None:
        raise NothingToDecideError(
            f"stream {stream} has a recovery point in table {history.table}: epoch "
            f"{point.state.epoch}, snapshot {point.snapshot_id}",
            f"`frazil status {stream}` shows it; the stream is not halted",
        )
