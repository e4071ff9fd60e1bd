"""The answers to a halt, each a named person's: read again, leave out, or start over.

Protocol.md, recovery point. Without an author they only show what they would record.
"""

from dataclasses import replace

from frazil.errors import (
    ConfigurationError,
    ForeignRollbackError,
    HistoryCutError,
    NothingToDecideError,
    TableError,
    TableRecreatedError,
    UnknownStateError,
)
from frazil.ingest.bootstrap import initial_state
from frazil.ingest.publishing import Choice, record_decision
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.recovery_point import History, find_recovery_point, read_state, walk_ancestors
from frazil.ledger.state import StreamState, parse_state
from frazil.recovery.retention_check import require_source_topic
from frazil.recovery.rollback_rules import list_reread_ranges
from frazil.workspace import Workspace


def reingest(work: Workspace, author: Author | None) -> Decision:
    """Answer a rollback by others: read the rolled-back range again from what main carries.

    Raises:
        NothingToDecideError: nobody rolled the table back.
    """
    stream = work.stream.stream

    def decide(history: History) -> Choice:
        _require_no_recovery_point(history, stream, halts=TableError)
        state = _state_on_main(history, stream) or _archived_state(history, stream)
        if state is None:
            raise ConfigurationError(
                f"stream {stream}: main carries no state to read again from",
                f"`frazil recover {stream} --new-table` starts over from source.start",
            )
        hint = history.hint(stream)
        hinted = _hinted_state(history, stream)
        for topic in list_reread_ranges(state.offsets, hinted.offsets) if hinted else ():
            require_source_topic(work, topic)
        epoch = max(state.epoch, hint.epoch if hint else 0) + 1
        return Choice(state, state.moved(epoch, "", state.offsets))

    return record_decision(work, keys.REWIND, author, decide)


def skip(work: Workspace, author: Author | None) -> Decision:
    """Answer a rollback by others: leave out what was rolled back, as a recorded gap.

    Reading goes on behind the newest state that was published; what that snapshot said is in the
    metadata or in the archive.

    Raises:
        NothingToDecideError: nobody rolled the table back.
        HistoryCutError: nobody knows what the newest snapshot had read, or on another cluster.
    """
    stream = work.stream.stream

    def decide(history: History) -> Choice:
        _require_no_recovery_point(history, stream, halts=ForeignRollbackError)
        before, after = _state_on_main(history, stream), _hinted_state(history, stream)
        if before is None or after is None:
            raise HistoryCutError(
                f"stream {stream}: neither the metadata of {history.table} nor the archive knows "
                "what the rolled-back snapshots had read",
                f"`frazil recover {stream} --reingest` reads the rolled-back range again",
            )
        if before.cluster_id != after.cluster_id:
            raise HistoryCutError(
                f"stream {stream}: main reads cluster {before.cluster_id}, the rolled-back "
                f"snapshots cluster {after.cluster_id}: no offsets say what lies between",
                f"`frazil recover {stream} --reingest`, then `frazil move-cluster {stream}`",
            )
        lost = list_reread_ranges(before.offsets, after.offsets)
        return Choice(before, replace(after, epoch=after.epoch + 1, batch=""), lost)

    return record_decision(work, keys.GAP, author, decide)


def _hinted_state(history: History, stream: str) -> StreamState | None:
    """Read the newest state that was published, where it is still known and can be read."""
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
        return None  # what somebody rolled back for this very reason


def start_over(work: Workspace, author: Author | None) -> Decision:
    """Begin again in a table that somebody dropped and created, from `source.start`.

    Raises:
        NothingToDecideError: the stream has begun in this table.
    """
    stream = work.stream

    def decide(history: History) -> Choice:
        # Only here: after any other halt the table still has rows, which would double.
        _require_no_recovery_point(history, stream.stream, halts=TableRecreatedError)
        topics = work.kafka.fetch_topics(stream.source.names, stream.source.isolation)
        state = initial_state(stream, topics, work.kafka)
        hint = history.hint(stream.stream)
        return Choice(None, state.moved(hint.epoch + 1 if hint else 0, "", state.offsets))

    return record_decision(work, keys.BOOTSTRAP, author, decide)


def _require_no_recovery_point(history: History, stream: str, halts: type[TableError]) -> None:
    """Refuse to recover what has a recovery point; only these halts may pass."""
    try:
        point = find_recovery_point(history, stream)
    except halts:
        return
    if point is not None:
        raise NothingToDecideError(
            f"stream {stream} has a recovery point in table {history.table}: epoch "
            f"{point.state.epoch}, snapshot {point.snapshot_id}",
            f"`frazil status {stream}` shows it; there is nothing to recover from",
        )


def _state_on_main(history: History, stream: str) -> StreamState | None:
    """Read the newest state on main."""
    key = keys.state_key(stream)
    carriers = (entry for entry in walk_ancestors(history) if key in entry.summary)
    found = next(carriers, None)
    return read_state(history, found, stream) if found else None


def _archived_state(history: History, stream: str) -> StreamState | None:
    """Read the newest state in the archive, where main has lost it.

    Raises:
        HistoryCutError: a later batch was published than the archive knows.
    """
    key = keys.state_key(stream)
    archived = [e for e in history.load_archive().entries.values() if key in e.summary]
    if not archived:
        return None
    newest = max(archived, key=lambda entry: entry.committed_at_ms)
    state = read_state(history, newest, stream)
    hint = history.hint(stream)
    if hint is not None and hint.epoch > state.epoch:
        raise HistoryCutError(
            f"stream {stream}: main of {history.table} has lost its history and the archive "
            f"knows epoch {state.epoch}, but epoch {hint.epoch} was published: its rows may be in "
            "the table, and reading them again would double them",
            "restore the table's metadata of before the foreign expiry, or give the stream a new "
            "name and table",
        )
    return state
