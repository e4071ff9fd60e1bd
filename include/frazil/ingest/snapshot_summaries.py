"""Snapshot summaries: the facts of a batch that its snapshot carries, written at publish."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from frazil import __version__
from frazil.ingest.messages import BatchPlan, Staged, Verdict
from frazil.ledger import keys
from frazil.ledger.keys import pack
from frazil.ledger.offsets import encode_ranges
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.ledger.state import StreamState, encode_state
from frazil.ledger.usage import encode_usage
from frazil.streams.models import Stream
from frazil.streams.timestamps import describe_seconds


def summarize_batch(
    plan: BatchPlan, staged: Staged, verdict: Verdict, run_id: str
) -> dict[str, str]:
    """Return the full summary of an ingest snapshot (docs/formats.md)."""
    used = {"plan": plan.used, "stage": staged.used, "check": verdict.used}
    clock = {"planning": plan.began_at_ms, "planned": plan.ended_at_ms}
    return (
        summarize_staged(keys.INGEST, staged, verdict, run_id, clock)
        | summarize_lateness(plan, staged)
        | {
            keys.state_key(plan.stream): encode_state(plan.state_after),
            keys.RANGES: pack(encode_ranges(plan.offset_ranges)),
            keys.USAGE: encode_usage(used),
        }
    )


def summarize_staged(
    kind: str,
    staged: Staged,
    verdict: Verdict,
    run_id: str,
    clock: Mapping[str, int | None] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the part of the summary that every staged and checked snapshot has.

    `clock` holds earlier times by name, in milliseconds since 1970; None for unknown ones.
    """
    summary = {
        keys.KIND: kind,
        keys.STREAM: staged.stream,
        keys.BATCH_ID: staged.batch_id,
        keys.ROWS_READ: str(staged.rows_read),
        keys.ROWS_WRITTEN: str(staged.rows_written),
        keys.ROWS_QUARANTINED: str(staged.rows_quarantined),
        keys.ROWS_SKIPPED: str(staged.rows_skipped),
        keys.COUNTS: summarize_partitions(staged),
        keys.QUALITY: summarize_verdict(verdict),
        keys.ATTEMPT: staged.attempt,
        keys.RUN_ID: run_id,
        keys.VERSION: __version__,
    }
    if staged.min_timestamp_ms is not None and staged.max_timestamp_ms is not None:
        summary[keys.MIN_TIMESTAMP_MS] = str(staged.min_timestamp_ms)
        summary[keys.MAX_TIMESTAMP_MS] = str(staged.max_timestamp_ms)
    clock = {**clock, "staged": staged.ended_at_ms, "checked": verdict.at_ms}
    if known := {name: at for name, at in clock.items() if at is not None}:
        summary[keys.CLOCK] = json.dumps(known, separators=(",", ":"))
    if staged.skipped:
        summary[keys.SKIPPED] = json.dumps(staged.skipped)
    if staged.schema_ids:
        summary[keys.SCHEMA_IDS] = json.dumps(staged.schema_ids)
    if staged.unnamed_fields:
        summary[keys.UNNAMED_FIELDS] = json.dumps(staged.unnamed_fields)
    if staged.snapshot_id is not None:
        summary[keys.SOURCE_SNAPSHOT_ID] = str(staged.snapshot_id)
    return summary


def summarize_ranges(
    kind: str, plan: BatchPlan, staged: Staged, verdict: Verdict, run_id: str
) -> dict[str, str]:
    """Return the summary of a replay or backfill: a batch's without state, as no offset moves."""
    summary = summarize_batch(plan, staged, verdict, run_id) | {keys.KIND: kind}
    of_state = (keys.state_key(plan.stream), keys.NEWEST_TIMESTAMP_MS)
    return {key: value for key, value in summary.items() if key not in of_state}


def summarize_partitions(staged: Staged) -> str:
    """Return read and good rows by partition as `{topic: {partition: [read, good]}}`, packed."""
    counts: dict[str, dict[str, list[int]]] = {}
    for part in staged.partitions:
        counts.setdefault(part.topic, {})[str(part.partition)] = [part.rows_read, part.rows_good]
    return pack(json.dumps(counts, separators=(",", ":")))


def summarize_verdict(verdict: Verdict) -> str:
    """Return the verdict as JSON: suite, counts, failed expectations by name, waiver."""
    if verdict.outcome == "empty":
        return "empty"
    failed = [result for result in verdict.results if not result.success]
    content: dict[str, object] = {
        "outcome": verdict.outcome,
        "suite": verdict.suite,
        "suite-hash": verdict.suite_hash,
        "passed": len(verdict.results) - len(failed),
        "failed": len(failed),
    }
    if failed:
        content["failures"] = [f"{f.type}({f.column})" if f.column else f.type for f in failed]
    if verdict.waived:
        content["waived"] = verdict.waived
    return json.dumps(content, separators=(",", ":"))


def summarize_marker(
    kind: str, states: Mapping[str, StreamState], run_id: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the summary of an empty snapshot, as of a bootstrap, gap or rollback."""
    return {
        keys.KIND: kind,
        **{keys.state_key(stream): encode_state(state) for stream, state in states.items()},
        keys.RUN_ID: run_id,
        keys.VERSION: __version__,
        **extra,
    }


def find_newest(history: History, stream: str) -> int | None:
    """Return the newest timestamp, in ms, that the stream's batches on main have read."""
    state = keys.state_key(stream)
    for entry in walk_ancestors(history, beyond_metadata=False):
        if state in entry.summary and keys.NEWEST_TIMESTAMP_MS in entry.summary:
            return int(entry.summary[keys.NEWEST_TIMESTAMP_MS])
    return None


def find_late_bound(stream: Stream, plan: BatchPlan) -> int | None:
    """Return the timestamp, in ms, below which a record of this plan is late."""
    newest = plan.newest_timestamp_ms
    return None if newest is None else newest - stream.freshness.warn_seconds * 1000


def summarize_lateness(plan: BatchPlan, staged: Staged) -> dict[str, str]:
    """Return the newest timestamp so far, the number of late records, and the longest delay.

    A producer's clock that is ahead must not make other records late, so a timestamp counts as at
    most the time of its batch. While there is a backlog, partitions are read up to different
    times, so only a batch that reads everything advances the newest timestamp.
    """
    newest, batch_newest = plan.newest_timestamp_ms, staged.max_timestamp_ms
    summary = {}
    if staged.rows_late and newest is not None and staged.min_timestamp_ms is not None:
        late_by = newest - staged.min_timestamp_ms
        summary = {keys.ROWS_LATE: str(staged.rows_late), keys.LATE_BY_MS: str(late_by)}
    if plan.reads_all and batch_newest is not None:
        newest = max(newest or 0, min(batch_newest, staged.ended_at_ms or batch_newest))
    return summary if newest is None else summary | {keys.NEWEST_TIMESTAMP_MS: str(newest)}


def describe_late(rows: int | None, by_ms: int | None) -> str:
    """Describe how many records were late and the longest delay; empty if none was."""
    if rows is None or by_ms is None:
        return ""
    return f"{rows:,}, up to {describe_seconds(by_ms / 1000)}"
