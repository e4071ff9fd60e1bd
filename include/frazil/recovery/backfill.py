"""BACKFILL: read records below a stream's beginning, in windows, beside the live stream.

`plan_backfill` chooses windows; `fill_window` stages, checks and publishes one of them with the
functions of a replay. The ledger records what is filled, so any run continues where one ended.
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
from frazil.messages import count_noun
from frazil.recovery.backfill_rules import (
    choose_windows,
    count_missing,
    cut_windows,
    describe_beginnings,
    find_beginnings,
    list_missing,
    require_below_beginning,
    require_not_filled,
    validate_one_selection,
)
from frazil.recovery.messages import BackfillPlan, BackfillRequest, Filled, Window
from frazil.recovery.range_overwrite import (
    open_ledger,
    overwrite_ranges,
    plan_ranges,
    require_retained_ranges,
)
from frazil.recovery.replay_rules import require_not_adopted, require_one_incarnation
from frazil.streams.timestamps import read_span
from frazil.workspace import Workspace

_FAILED_STEP = (
    "nothing of this window was written; fix the suite, the error budget or the records, then "
    "start the backfill again: it continues with what is missing"
)


def plan_backfill(work: Workspace, request: BackfillRequest) -> BackfillPlan:
    """Choose the windows that are still to be filled; nothing is written.

    Raises:
        ConfigurationError: the request is ambiguous.
        TargetError: a range reaches into the live stream, or below the adoption of the table.
        SchemaChangeError: a pending schema change must be applied first.
        NotReplayableError: Kafka no longer has the requested offsets.
        TableError, SourceError, UnavailableError: table or Kafka cannot be read.
    """
    validate_one_selection(request.offsets, request.since, request.until)
    work, view, point = open_ledger(work, settled=True)
    stream = work.stream.stream
    begins = find_beginnings(steps := trace_steps(view.history, stream))
    ranges = _choose_ranges(work, request, begins)
    require_below_beginning(stream, ranges, begins)
    require_not_adopted(stream, ranges, find_adopted(view.history, stream))
    require_one_incarnation(stream, ranges, steps)
    require_retained_ranges(work, ranges, point, compacted=True)
    missing = list_missing(ranges, list_spans(steps))
    size, limit = request.window_records or work.stream.batch.max_records, request.max_records
    newest = request.order == "newest"
    windows = choose_windows(cut_windows(missing, size, limit=limit, newest_first=newest))
    total, planned = count_missing(missing), sum(map(count_offsets, windows))
    filled, left = count_offsets(ranges) - total, total - planned
    summary = (
        f"{describe_ranges(ranges)}: {count_noun(planned, 'offset')} in "
        f"{count_noun(len(windows), 'window')} of at most {size:,}"
    )
    counts = f"{summary if windows else 'nothing to fill'}{_describe_rest(filled, left)}"
    return BackfillPlan(
        stream=stream,
        table=work.stream.table.name,
        dry_run=request.dry_run,
        windows=_number_windows(stream, windows),
        filled=filled,
        left=left,
        text=f"{counts}; {_describe_live_stream(begins, steps)}",
    )


def _describe_live_stream(begins: dict[Partition, int], steps: tuple[Step, ...]) -> str:
    return f"the live stream begins at {describe_beginnings(begins)}{_warn_of_erasures(steps)}"


def _describe_rest(filled: int, left: int) -> str:
    present = f", {filled:,} already in the table" if filled else ""
    return present + (f", {left:,} left for another run" if left else "")


def _number_windows(stream: str, windows: Sequence[Ranges]) -> tuple[Window, ...]:
    return tuple(
        Window(stream=stream, number=number, count=len(windows), ranges=plain_ranges(window))
        for number, window in enumerate(windows, 1)
    )


def _warn_of_erasures(steps: tuple[Step, ...]) -> str:
    """Warn that older records may have keys that were erased."""
    if any(step.kind == keys.ERASE for step in steps):
        return "; keys were erased from this table: erase them again afterwards"
    return ""


def _choose_ranges(
    work: Workspace, request: BackfillRequest, begins: dict[Partition, int]
) -> Ranges:
    """Return the requested offsets, or those of the requested time that Kafka has."""
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
    """Stage, check and publish a window; a repetition finds it in the ledger.

    Raises:
        StageStaleError: another backfill filled part of it.
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked.
        StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """
    work, view, point = open_ledger(work)
    ranges = unpack_ranges(window.ranges)
    steps = trace_steps(view.history, window.stream)
    require_below_beginning(window.stream, ranges, find_beginnings(steps))
    result = Filled(
        stream=window.stream,
        table=work.stream.table.name,
        number=window.number,
        count=window.count,
        outcome="ALREADY",
        snapshot_id=None,
        ranges=window.ranges,
    )
    if not list_missing(ranges, list_spans(steps)):
        return result
    require_not_filled(window.stream, ranges, steps)
    # The kind instead of the run in its id: a window has the same id in every run.
    batch = plan_ranges(work, view, point, ranges, keys.BACKFILL)
    landed = overwrite_ranges(work, view, batch, point, keys.BACKFILL, _FAILED_STEP)
    summary = landed.entry.summary
    return result.model_copy(
        update={
            "outcome": "ALREADY" if landed.already_published else "FILLED",
            "snapshot_id": landed.entry.snapshot_id,
            "rows_written": int(summary[keys.ROWS_WRITTEN]),
            "rows_quarantined": int(summary[keys.ROWS_QUARANTINED]),
            "rows_skipped": int(summary[keys.ROWS_SKIPPED]),
        }
    )
