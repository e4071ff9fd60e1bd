"""What is said of a stream's dead letters: counts by reason, never their content."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.iceberg.ledger_archive import load_with_history
from frazil.ingest.dead_letters import DeadLetterIndex, Flags, read_dead_letter_index
from frazil.ledger.history import UNCLAIMED, trace_steps
from frazil.messages import Report
from frazil.workspace import Workspace

_SAMPLES = 5


class DeadLetterGroup(Report):
    """The letters of one reason: `open` ones count, `resolved` ones a redrive made rows.

    `samples` are coordinates `topic:partition:offset`, of open letters where there are any.
    """

    reason: str
    open: int
    resolved: int
    first_seen_at: datetime
    last_seen_at: datetime
    samples: tuple[str, ...]


class DeadLetterReport(Report):
    """A stream's dead letters; those of abandoned attempts are not in it."""

    stream: str
    table: str
    open: int
    resolved: int
    groups: tuple[DeadLetterGroup, ...]

    @property
    def text(self) -> str:
        """Say it for people."""
        if not self.open:
            return f"no dead letter of {self.stream} counts; {self.resolved} were brought back"
        return (
            f"{self.open} dead letters count, {self.resolved} were brought back\nNext: mend the "
            f"stream file, then `frazil replay-dead-letters {self.stream}` shows what comes back"
        )


def report_dead_letters(work: Workspace) -> DeadLetterReport:
    """Group a stream's dead letters by reason, most open ones first.

    Raises:
        MissingTableError: the stream has not begun.
    """
    stream = work.stream
    _, history = load_with_history(work.store, stream.table.name)
    steps = trace_steps(history, stream.stream)
    index = read_dead_letter_index(work.store.find(stream.dead_letters_table), stream.stream, steps)
    is_back = index.resolution.resolved_by_step != UNCLAIMED
    concerned = index.rows["reason"].filter(pa.array(index.resolution.is_open | is_back))
    groups = [_group(index, is_back, reason) for reason in pc.unique(concerned).to_pylist()]
    return DeadLetterReport(
        stream=stream.stream,
        table=stream.dead_letters_table,
        open=int(index.resolution.is_open.sum()),
        resolved=int(is_back.sum()),
        groups=tuple(sorted(groups, key=lambda group: (-group.open, group.reason))),
    )


def _group(index: DeadLetterIndex, is_back: Flags, reason: str) -> DeadLetterGroup:
    own = pc.equal(index.rows["reason"], reason).to_numpy()
    is_open, is_resolved = own & index.resolution.is_open, own & is_back
    seen = pc.min_max(index.rows["quarantined_at"].filter(pa.array(is_open | is_resolved))).as_py()
    places = np.flatnonzero(is_open if is_open.any() else is_resolved)[:_SAMPLES]
    shown = index.rows.select(["topic", "partition", "offset"]).take(places).to_pylist()
    return DeadLetterGroup(
        reason=reason,
        open=int(is_open.sum()),
        resolved=int(is_resolved.sum()),
        first_seen_at=seen["min"],
        last_seen_at=seen["max"],
        samples=tuple(f"{r['topic']}:{r['partition']}:{r['offset']}" for r in shown),
    )
