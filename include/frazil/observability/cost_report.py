"""Report of `frazil cost`: days, what is not counted, and estimates for other batch intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from frazil.events import read_notes
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.usage import parse_usage
from frazil.messages import Report, count_noun
from frazil.observability.cost import (
    FACTORS,
    BatchCost,
    DayCost,
    Fit,
    FreshnessEstimate,
    MaintenanceCost,
    Prices,
    TableSizes,
    average_day,
    estimate_other_freshness,
    fit_fixed_cost,
    sum_up_days,
)
from frazil.observability.timeline import join_events
from frazil.observability.timeline_table import read_recorded
from frazil.streams.timestamps import from_epoch_ms
from frazil.workspace import Workspace

NEVER_COUNTED = (
    "the end of a batch's publish, from its commit on",
    "Spark's requests to Kafka, catalog and object store",
    "runs without a batch, and Airflow and Kafka themselves",
)


class CostReport(Report):
    """A stream's cost since an instant; `live` figures are of its whole table."""

    stream: str
    table: str
    since: datetime
    until: datetime
    currency: str | None = None
    days: tuple[DayCost, ...] = ()
    fit: Fit | None = None
    what_if: tuple[FreshnessEstimate, ...] = ()
    not_counted: tuple[str, ...] = NEVER_COUNTED


def read_cost(
    work: Workspace,
    since: datetime,
    until: datetime,
    prices: Prices | None,
    view: TableView | None = None,
) -> CostReport:
    """Read a stream's cost from the summaries of its table's snapshots, and estimate others.

    Raises:
        MissingTableError: the stream has not begun.
        CatalogUnavailableError: the catalog did not answer.
    """
    stream, name = work.stream.stream, work.stream.table.name
    history = (view or TableView(work.store, name)).history
    entries = list(_read_since(history, since))
    batches = [_describe_batch(entry) for entry in entries if _is_batch(entry, stream)]
    upkeep, others = list(read_maintenance(work, since)), _find_others(work)
    merges = [merge for other in others for merge in read_merges(other, since)]
    read = (entries, *(_read_known(other, since) for other in others))
    sizes, *held = ([_describe(entry, stream) for entry in each] for each in read)
    report = CostReport(
        stream=stream,
        table=name,
        since=since,
        until=until,
        currency=prices.currency if prices else None,
        days=tuple(sum_up_days(batches, sizes, upkeep, prices, merges, held)),
    )
    if not batches:
        return report
    fit, unmeasured = fit_fixed_cost(choose_points(batches)), describe_unmeasured(batches)
    update: dict[str, object] = {"fit": fit, "not_counted": (*unmeasured, *NEVER_COUNTED)}
    # Only ingest batches depend on the interval; a replay or backfill is done once.
    live = [_describe_batch(e) for e in entries if _is_batch(e, stream) and _is_live(e)]
    if live:
        rates = average_day(live, until - min(batch.at for batch in live))
        found = tuple(estimate_other_freshness(rates, fit, factor, prices) for factor in FACTORS)
        update["what_if"] = found
    return report.model_copy(update=update)


def read_maintenance(work: Workspace, since: datetime) -> Iterator[MaintenanceCost]:
    """Read the cost of the stream's maintenance from the timeline."""
    name = work.stream.stream
    recorded = read_recorded(work.store, since, f"kind = 'maintenance' and stream = '{name}'")
    for event in join_events(recorded, read_notes()):
        if event.kind == "maintenance" and event.stream == name and event.at >= since:
            used = (int(event.facts.get(key, 0)) for key in ("cpu_ms", "spark_cpu_ms"))
            yield MaintenanceCost(event.at, sum(used))


def _find_others(work: Workspace) -> list[History]:
    """Return the histories of the state table and its delete memory, as far as they exist."""
    state = work.stream.table.state
    names = () if state is None else (state.name, state.deletes_name)
    views = (TableView(work.store, name) for name in names)
    return [view.history for view in views if view.found is not None]


def _read_known(history: History, since: datetime) -> Iterator[LedgerEntry]:
    """Yield the snapshots since an instant, and the one before, whose sizes held until then."""
    for entry in walk_ancestors(history):
        yield entry
        if from_epoch_ms(entry.committed_at_ms) < since:
            return


def read_merges(history: History, since: datetime) -> Iterator[BatchCost]:
    """Read the cost of the merges from the snapshots of a state table; other tables have none."""
    for entry in _read_since(history, since):
        if entry.summary.get(keys.KIND) != keys.MERGE:
            continue
        # The rows came with the snapshot that Spark staged.
        staged = history.entries.get(int(entry.summary.get(keys.SOURCE_SNAPSHOT_ID, "0")), entry)
        yield replace(
            _describe_batch(entry),
            bytes_written=_number(staged, "added-files-size"),
            files_written=_number(staged, "added-data-files")
            + _number(staged, "added-delete-files"),
        )


def describe_factor(estimate: FreshnessEstimate, currency: str | None) -> str:
    """Describe one estimate in one line."""
    names = {2.0: "Twice as often", 0.5: "Half as often"}
    name = names.get(estimate.factor, f"{estimate.factor:g} times as often")
    every = f" (every {estimate.interval_seconds:.0f} s)" if estimate.interval_seconds else ""
    low, high = estimate.cpu_seconds_range
    text = (
        f"{name}{every}: {estimate.cpu_seconds:.1f} CPU s a day ({low:.1f} to {high:.1f}), "
        f"{count_noun(round(estimate.files_written), 'file')}, "
        f"{count_noun(round(estimate.requests), 'request')}"
    )
    if estimate.money is None or estimate.money_range is None:
        return text
    least, most = estimate.money_range
    return f"{text}: {estimate.money:.4f} {currency} ({least:.4f} to {most:.4f})"


DAY_COLUMNS = (
    *("day", "batches", "records", "CPU s (Spark)", "merges (CPU s)", "maintenance CPU s"),
    *("written (files)", "live (files)", "requests", "commits"),
)


def describe_day(day: DayCost) -> tuple[int | str, ...]:
    """Return the measured cost of a day as a row of `DAY_COLUMNS`, without money."""
    written = day.bytes_written + day.bytes_by_others + day.merge_bytes_written
    return (
        f"{day.day}",
        day.batches,
        day.records,
        f"{day.cpu_seconds + day.spark_cpu_seconds:.1f} ({day.spark_cpu_seconds:.1f})",
        f"{day.merges} ({day.merge_cpu_seconds:.1f})",
        f"{day.maintenance_cpu_seconds:.1f}",
        _in_mb(written, day.files_written + day.merge_files_written),
        _in_mb(day.bytes_live, day.files_live),
        day.requests + day.merge_requests,
        day.commits,
    )


def _in_mb(number: int, files: int) -> str:
    return f"{number / 1_000_000:.1f} MB ({files})"


def choose_points(batches: Sequence[BatchCost]) -> list[tuple[int, float]]:
    """Return (records, CPU seconds) of completely measured batches, else without Spark's part."""
    whole = [b for b in batches if b.cpu_ms is not None and b.spark_cpu_ms is not None]
    known = whole or [b for b in batches if b.cpu_ms is not None]
    return [(b.records, b.total_cpu_ms / 1000) for b in known]


def describe_unmeasured(batches: Sequence[BatchCost]) -> Iterator[str]:
    """Yield notes on batches without CPU times."""
    unknown = sum(batch.cpu_ms is None for batch in batches)
    without_spark = sum(batch.spark_cpu_ms is None for batch in batches) - unknown
    if unknown:
        yield (
            f"CPU time of {unknown} of {count_noun(len(batches), 'batch', 'batches')}: written by "
            "an older version that did not record it"
        )
    if without_spark:
        yield (
            f"Spark's CPU time of {without_spark} of "
            f"{count_noun(len(batches), 'batch', 'batches')}: known only for the embedded stack's "
            "Spark server"
        )


def _read_since(history: History, since: datetime) -> Iterator[LedgerEntry]:
    for entry in walk_ancestors(history):
        if from_epoch_ms(entry.committed_at_ms) < since:
            return
        yield entry


def _is_batch(entry: LedgerEntry, stream: str) -> bool:
    summary = entry.summary
    return summary.get(keys.STREAM) == stream and summary.get(keys.KIND) in keys.ROW_KINDS


def _is_live(entry: LedgerEntry) -> bool:
    return entry.summary.get(keys.KIND) == keys.INGEST


def _describe_batch(entry: LedgerEntry) -> BatchCost:
    steps = parse_usage(entry.summary).values()
    known = [used.spark_cpu_ms for used in steps if used.spark_cpu_ms is not None]
    return BatchCost(
        at=from_epoch_ms(entry.committed_at_ms),
        records=_number(entry, keys.ROWS_READ),
        cpu_ms=sum(used.cpu_ms for used in steps) if steps else None,
        spark_cpu_ms=sum(known) if known else None,
        requests=sum(used.kafka + used.catalog + used.files for used in steps),
        bytes_written=_number(entry, "added-files-size"),
        files_written=_number(entry, "added-data-files"),
    )


def _describe(entry: LedgerEntry, stream: str) -> TableSizes:
    return TableSizes(
        at=from_epoch_ms(entry.committed_at_ms),
        is_batch=_is_batch(entry, stream),
        bytes_written=_number(entry, "added-files-size"),
        bytes_live=_number(entry, "total-files-size"),
        files_live=_number(entry, "total-data-files"),
    )


def _number(entry: LedgerEntry, key: str) -> int:
    return int(entry.summary.get(key, "0"))
