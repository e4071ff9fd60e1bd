"""Report of a stream's dead letters: counts by reason, without their content."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import DeadLetterIndex, Flags, read_dead_letter_index
from frazil.ledger.history import UNCLAIMED, trace_steps
from frazil.messages import Report, count_noun
from frazil.workspace import Workspace

_SAMPLES = 5


class DeadLetterGroup(Report):
    """Dead letters of one reason; `resolved` ones were restored as rows by a redrive.

    `samples` are coordinates `topic:partition:offset`, of open ones if there are any.
    """

    reason: str
    open: int
    resolved: int
    first_seen_at: datetime
    last_seen_at: datetime
    samples: tuple[str, ...]


class DeadLetterReport(Report):
    """A stream's dead letters, without those of abandoned attempts."""

    stream: str
    table: str
    open: int
    resolved: int
    groups: tuple[DeadLetterGroup, ...]

    @property
    def text(self) -> str:
        """Describe the counts and the next step."""
        if not self.open:
            return f"No open dead letters in {self.stream}, {self.resolved:,} restored."
        return (
            f"{count_noun(self.open, 'open dead letter')}, {self.resolved:,} restored.\nNext: fix "
            f"the stream file, then `frazil replay-dead-letters {self.stream}` previews a replay"
        )


def report_dead_letters(work: Workspace, view: TableView | None = None) -> DeadLetterReport:
    """Group a stream's dead letters by reason, most open ones first.

    Raises:
        MissingTableError: the stream has not begun.
    """
    stream = work.stream
    history = (view or TableView(work.store, stream.table.name)).history
    steps = trace_steps(history, stream.stream)
    index = read_dead_letter_index(work.store.find(stream.dead_letters_table), stream.stream, steps)
    is_resolved = index.resolution.resolved_by_step != UNCLAIMED
    reasons = index.rows["reason"].filter(pa.array(index.resolution.is_open | is_resolved))
    groups = [_group(index, is_resolved, reason) for reason in pc.unique(reasons).to_pylist()]
    return DeadLetterReport(
        stream=stream.stream,
        table=stream.dead_letters_table,
        open=int(index.resolution.is_open.sum()),
        resolved=int(is_resolved.sum()),
        groups=tuple(sorted(groups, key=lambda group: (-group.open, group.reason))),
    )


def _group(index: DeadLetterIndex, is_resolved: Flags, reason: str) -> DeadLetterGroup:
    own = pc.equal(index.rows["reason"], reason).to_numpy()
    is_open, is_resolved = own & index.resolution.is_open, own & is_resolved
    seen = pc.min_max(index.rows["quarantined_at"].filter(pa.array(is_open | is_resolved))).as_py()
    positions = np.flatnonzero(is_open if is_open.any() else is_resolved)[:_SAMPLES]
    shown = index.rows.select(["topic", "partition", "offset"]).take(positions).to_pylist()
    return DeadLetterGroup(
        reason=reason,
        open=int(is_open.sum()),
        resolved=int(is_resolved.sum()),
        first_seen_at=seen["min"],
        last_seen_at=seen["max"],
        samples=tuple(f"{r['topic']}:{r['partition']}:{r['offset']}" for r in shown),
    )
