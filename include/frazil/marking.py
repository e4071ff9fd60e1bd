"""Letters that are back say so in `resolved_by`: a convenience, the ledger alone decides."""

import pyarrow as pa
import pyarrow.compute as pc

from frazil import keys
from frazil.audit_ledger import trace_steps
from frazil.audit_rows import NOBODY
from frazil.coordinates import plain_runs
from frazil.errors import JobFailedError
from frazil.failpoints import reach_failpoint
from frazil.letters import read_book
from frazil.offsets import Runs
from frazil.publishing import load_with_history
from frazil.redrive_messages import MarkRequest, MarkResult
from frazil.redrive_plan import group_letters
from frazil.workspace import Workspace

MARK_ATTEMPTS = 3
"""A batch that publishes its letters meanwhile may win against the rewrite of the files."""


def mark_resolved(work: Workspace) -> int:
    """Mark the letters that a redrive brought back and that do not say so; give their count.

    What a killed run left unmarked the next one marks; what a rollback made wrong, too.

    Raises:
        JobFailedError, UnavailableError: rows and ledger are right; run again to mark.
    """
    stream = work.stream
    letters = work.store.find(stream.dead_letters_table)
    _, history = load_with_history(work.store, stream.table.name)
    steps = trace_steps(history, stream.stream)
    book = read_book(letters, stream.stream, steps)
    marks: dict[str, dict[str, Runs]] = {}
    count = 0
    for place in sorted({*book.lots.takers.tolist()} - {NOBODY}):
        redrive_id = steps[place].entry.summary[keys.BATCH_ID]
        taken = book.rows.filter(pa.array(book.lots.takers == place))
        is_marked = pc.fill_null(pc.equal(taken["resolved_by"], redrive_id), False)  # noqa: FBT003
        unmarked = taken.filter(pc.invert(is_marked))
        if len(unmarked):
            by_attempt = group_letters(unmarked).items()
            marks[redrive_id] = {attempt: plain_runs(held) for attempt, held in by_attempt}
            count += len(unmarked)
    if marks:
        reach_failpoint("redrive.before-mark")
        _run_mark_job(work, marks)
        reach_failpoint("redrive.after-mark")
    return count


def _run_mark_job(work: Workspace, marks: dict[str, dict[str, Runs]]) -> None:
    request = MarkRequest(
        catalog=work.store.preset.name,
        table=work.stream.dead_letters_table,
        marks=marks,
        session_conf=work.store.preset.spark_conf(),
    )
    for _ in range(MARK_ATTEMPTS - 1):
        try:
            work.engine.run_job("mark_letters", request, MarkResult)
        except JobFailedError:
            continue
        return
    work.engine.run_job("mark_letters", request, MarkResult)
