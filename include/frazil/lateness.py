"""Late records: older than the newest of earlier batches by more than the watch warns of.

They are rows like all others (features.md, B19); the ledger says how many they were, and how late.
"""

from frazil import keys
from frazil.contracts import BatchPlan, Staged
from frazil.freshness_text import describe_seconds
from frazil.ledger import History, walk_ancestors
from frazil.streams import Stream


def find_newest(history: History, stream: str) -> int | None:
    """Find the newest timestamp, in ms, that the stream's batches on main have read."""
    state = keys.state_key(stream)
    for entry in walk_ancestors(history, beyond_metadata=False):
        if state in entry.summary and keys.NEWEST_TIMESTAMP_MS in entry.summary:
            return int(entry.summary[keys.NEWEST_TIMESTAMP_MS])
    return None


def choose_bound(stream: Stream, plan: BatchPlan) -> int | None:
    """Choose the timestamp, in ms, below which a record of this plan is late."""
    newest = plan.newest_timestamp_ms
    return None if newest is None else newest - stream.freshness.warn_seconds * 1000


def summarize_lateness(plan: BatchPlan, staged: Staged) -> dict[str, str]:
    """Write the newest timestamp read so far, and how many records came late, by how long at most.

    Two things make nobody late: a clock that runs ahead, so that what is newer than its own batch
    counts as that; and a backlog, whose partitions are not read to the same time. Only a batch that
    reads all moves the newest on.
    """
    known, most = plan.newest_timestamp_ms, staged.max_timestamp_ms
    told = {}
    if staged.rows_late and known is not None and staged.min_timestamp_ms is not None:
        late_by = known - staged.min_timestamp_ms
        told = {keys.ROWS_LATE: str(staged.rows_late), keys.LATE_BY_MS: str(late_by)}
    if plan.reads_all and most is not None:
        known = max(known or 0, min(most, staged.ended_at_ms or most))
    return told if known is None else told | {keys.NEWEST_TIMESTAMP_MS: str(known)}


def describe_late(rows: int | None, by_ms: int | None) -> str:
    """Say how many records came late, and by how long at most; empty where none did."""
    if rows is None or by_ms is None:
        return ""
    return f"{rows:,} by up to {describe_seconds(by_ms / 1000)}"
