"""BACKFILL: read what lies below a stream's beginning, in windows, beside the live stream.

`plan_backfill` chooses windows, `fill_window` stages, checks and publishes one of them by the same
functions as a replay. What is filled stands in the ledger, so any run goes on where one ended.
"""

from collections.abc import Sequence

from frazil.ledger import keys
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import Step, list_spans, trace_steps
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    count_offsets,
    describe_ranges,
    parse_offset_ranges,
    plain_ranges,
    unpack_ranges,
)
from frazil.ledger.recovery_point import find_adopted
from frazil.recovery.backfill_rules import (
    choose_windows,
    count_free,
    cut_windows,
    describe_beginnings,
    find_beginnings,
    list_free,
    require_below_beginning,
    require_not_filled,
    validate_one_selection,
)
from frazil.recovery.messages import BackfillPlan, BackfillRequest, Filled, Window
from frazil.recovery.range_overwrite import (
    freeze_ranges,
    open_ledger,
    overwrite_ranges,
    require_retained_ranges,
)
from frazil.recovery.replay_rules import require_not_adopted, require_one_incarnation
from frazil.schemas.inferred_columns import with_columns
from frazil.schemas.review import open_with_settled_schema
from frazil.streams.timestamps import read_span
from frazil.workspace import Workspace

_FAILED_STEP = (
    "nothing of this window was written; mend the suite, the budget or the records, then start the "
    "backfill again: it goes on with what is missing"
)


def plan_backfill(work: Workspace, request: BackfillRequest) -> BackfillPlan:
    """Choose the windows that are still to be filled; nothing is written.

    Raises:
        ConfigurationError: the request is unclear.
        TargetError: a range reaches into the live stream, or below where the table was adopted.
        SchemaChangeError: a person or the next run changes the table first.
        NotReplayableError: Kafka no longer holds what was asked for by offsets.
        TableError, SourceError, UnavailableError: nothing was looked at.
    """
    validate_one_selection(request.offsets, request.since, request.until)
    work = open_with_settled_schema(work)
    history, point = open_ledger(work, "backfill")
    stream = work.stream.stream
    steps = trace_steps(history, stream)
    begins = find_beginnings(steps)
    ranges = _choose_ranges(work, request, begins)
    require_below_beginning(stream, ranges, begins)
    require_not_adopted(stream, ranges, find_adopted(history, stream))
    require_one_incarnation(stream, ranges, steps)
    require_retained_ranges(work, ranges, point, compacted=True)
    free = list_free(ranges, list_spans(steps))
    size = request.window_records or work.stream.batch.max_records
    newest = request.order == "newest"
    windows = choose_windows(
        cut_windows(free, size, limit=request.max_records, newest_first=newest)
    )
    total, taken = count_free(free), sum(map(count_offsets, windows))
    filled, left = count_offsets(ranges) - total, total - taken
    told = f"{describe_ranges(ranges)}: {taken} offsets in {len(windows)} windows of at most {size}"
    told = _tell(told if windows else "nothing to fill", filled, left)
    return BackfillPlan(
        stream=stream,
        table=work.stream.table.name,
        dry_run=request.dry_run,
        windows=_number_windows(stream, windows),
        filled=filled,
        left=left,
        text=f"{told}; the live stream begins at {describe_beginnings(begins)}{_warn(steps)}",
    )


def _tell(told: str, filled: int, left: int) -> str:
    told += f", {filled} are in the table already" if filled else ""
    return told + (f", {left} are left for another run" if left else "")


def _number_windows(stream: str, windows: Sequence[Ranges]) -> tuple[Window, ...]:
    return tuple(
        Window(stream=stream, number=number, count=len(windows), ranges=plain_ranges(window))
        for number, window in enumerate(windows, 1)
    )


def _warn(steps: tuple[Step, ...]) -> str:
    """Say that older records may be of people who were erased."""
    if any(step.kind == keys.ERASE for step in steps):
        return "; keys were erased from this table: erase them again afterwards"
    return ""


def _choose_ranges(
    work: Workspace, request: BackfillRequest, begins: dict[Partition, int]
) -> Ranges:
    """Read the offsets that are asked for, or look up which of them Kafka keeps."""
    if request.offsets:
        return parse_offset_ranges(request.offsets)
    isolation = work.stream.source.isolation
    since_ms, until_ms = read_span(request.since, request.until)
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for topic in work.stream.source.names:
        kept = work.kafka.fetch_topic(topic, isolation).partitions
        since = until = None
        if since_ms is not None:
            since = work.kafka.fetch_offsets_at(topic, len(kept), since_ms, isolation)
        if until_ms is not None:
            until = work.kafka.fetch_offsets_at(topic, len(kept), until_ms, isolation)
        for number, offsets in enumerate(kept):
            start = max(offsets.earliest, since[number] if since else 0)
            below = begins.get((topic, number), 0)
            end = min(below, until[number]) if until else below
            if start < end:
                ranges.setdefault(topic, {})[number] = OffsetRange(start, end)
    return ranges


def fill_window(work: Workspace, window: Window) -> Filled:
    """Stage, check and publish a window; any repetition finds it in the ledger.

    Raises:
        StageStaleError: another backfill filled a part of it.
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked.
        StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """
    work = with_columns(work)
    history, point = open_ledger(work, "backfill")
    ranges = unpack_ranges(window.ranges)
    steps = trace_steps(history, window.stream)
    require_below_beginning(window.stream, ranges, find_beginnings(steps))
    answer = Filled(
        stream=window.stream,
        table=work.stream.table.name,
        number=window.number,
        count=window.count,
        outcome="ALREADY",
        snapshot_id=None,
        ranges=window.ranges,
    )
    if not list_free(ranges, list_spans(steps)):
        return answer
    require_not_filled(window.stream, ranges, steps)
    # No run in its id: whoever fills a window, it is the same.
    batch = freeze_ranges(work, history, point, ranges, keys.BACKFILL)
    landed = overwrite_ranges(work, batch, point, keys.BACKFILL, _FAILED_STEP)
    summary = landed.entry.summary
    return answer.model_copy(
        update={
            "outcome": "ALREADY" if landed.already_published else "FILLED",
            "snapshot_id": landed.entry.snapshot_id,
            "rows_written": int(summary[keys.ROWS_WRITTEN]),
            "rows_quarantined": int(summary[keys.ROWS_QUARANTINED]),
            "rows_skipped": int(summary[keys.ROWS_SKIPPED]),
        }
    )
