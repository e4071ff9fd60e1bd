"""What `frazil cost` answers: a stream's days, what is not in them, and another freshness."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from frazil.events import read_notes
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.usage import parse_usage
from frazil.messages import Report
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
from frazil.workspace import Workspace

NEVER_COUNTED = (
    "what a batch's publish does from its commit on",
    "Spark's own requests to Kafka, catalog and store",
    "runs that found nothing or failed, Airflow and Kafka themselves",
)


class CostReport(Report):
    """A stream's cost since an instant; `live` figures are those of its whole table."""

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
    work: Workspace, since: datetime, until: datetime, prices: Prices | None
) -> CostReport:
    """Read what a stream's batches cost from the summaries of its table's snapshots.

    Raises:
        MissingTableError: the stream has not begun.
        CatalogUnavailableError: the catalog did not answer.
    """
    stream, name = work.stream.stream, work.stream.table.name
    _, history = load_with_history(work.store, name)
    entries = list(_read_since(history, since))
    batches = [_describe_batch(entry) for entry in entries if _is_batch(entry, stream)]
    report = CostReport(
        stream=stream,
        table=name,
        since=since,
        until=until,
        currency=prices.currency if prices else None,
        days=tuple(
            sum_up_days(
                batches,
                [_describe(entry, stream) for entry in entries],
                list(read_maintenance(work, since)),
                prices,
            )
        ),
    )
    if not batches:
        return report
    fit = fit_fixed_cost(choose_points(batches))
    told = (*describe_unmeasured(batches), *NEVER_COUNTED)
    report = report.model_copy(update={"fit": fit, "not_counted": told})
    # Another freshness is another number of live batches; a replay or backfill is done once.
    live = [_describe_batch(e) for e in entries if _is_batch(e, stream) and _is_live(e)]
    if not live:
        return report
    rates = average_day(live, until - min(batch.at for batch in live))
    imagined = tuple(estimate_other_freshness(rates, fit, factor, prices) for factor in FACTORS)
    return report.model_copy(update={"what_if": imagined})


def read_maintenance(work: Workspace, since: datetime) -> Iterator[MaintenanceCost]:
    """Read from the timeline what maintenance of the stream's tables took."""
    name = work.stream.stream
    recorded = read_recorded(work.store, since, f"kind = 'maintenance' and stream = '{name}'")
    for event in join_events(recorded, read_notes()):
        if event.kind == "maintenance" and event.stream == name and event.at >= since:
            used = (int(event.facts.get(key, 0)) for key in ("cpu_ms", "spark_cpu_ms"))
            yield MaintenanceCost(event.at, sum(used))


def describe_factor(imagined: FreshnessEstimate, currency: str | None) -> str:
    """Write one imagined freshness in one line."""
    factor = f"{imagined.factor:g} times the batches"
    every = f" (one in {imagined.interval_seconds:.0f} s)" if imagined.interval_seconds else ""
    low, high = imagined.cpu_seconds_range
    text = (
        f"{factor}{every}: {imagined.cpu_seconds:.1f} CPU s a day ({low:.1f} to {high:.1f}), "
        f"{imagined.files_written:.0f} files, {imagined.requests:.0f} requests"
    )
    if imagined.money is None or imagined.money_range is None:
        return text
    least, most = imagined.money_range
    return f"{text}: {imagined.money:.4f} {currency} ({least:.4f} to {most:.4f})"


def choose_points(batches: Sequence[BatchCost]) -> list[tuple[int, float]]:
    """Give (records, CPU seconds) of what is wholly measured; else of Frazil's own part."""
    whole = [b for b in batches if b.cpu_ms is not None and b.spark_cpu_ms is not None]
    known = whole or [b for b in batches if b.cpu_ms is not None]
    return [(b.records, ((b.cpu_ms or 0) + (b.spark_cpu_ms or 0)) / 1000) for b in known]


def describe_unmeasured(batches: Sequence[BatchCost]) -> Iterator[str]:
    """Say how many batches do not know their CPU."""
    unknown = sum(batch.cpu_ms is None for batch in batches)
    without_spark = sum(batch.spark_cpu_ms is None for batch in batches) - unknown
    if unknown:
        yield f"{unknown} of {len(batches)} batches: an older version recorded no CPU time"
    if without_spark:
        yield (
            f"Spark's CPU time of {without_spark} of {len(batches)} batches: their server is not "
            "the embedded stack's, which alone can be asked"
        )


def _read_since(history: History, since: datetime) -> Iterator[LedgerEntry]:
    for entry in walk_ancestors(history):
        if _instant(entry) < since:
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
        at=_instant(entry),
        records=_number(entry, keys.ROWS_READ),
        cpu_ms=sum(used.cpu_ms for used in steps) if steps else None,
        spark_cpu_ms=sum(known) if known else None,
        requests=sum(used.kafka + used.catalog + used.files for used in steps),
        bytes_written=_number(entry, "added-files-size"),
        files_written=_number(entry, "added-data-files"),
    )


def _describe(entry: LedgerEntry, stream: str) -> TableSizes:
    return TableSizes(
        at=_instant(entry),
        is_batch=_is_batch(entry, stream),
        bytes_written=_number(entry, "added-files-size"),
        bytes_live=_number(entry, "total-files-size"),
        files_live=_number(entry, "total-data-files"),
    )


def _instant(entry: LedgerEntry) -> datetime:
    return datetime.fromtimestamp(entry.committed_at_ms / 1000, tz=UTC)


def _number(entry: LedgerEntry, key: str) -> int:
    return int(entry.summary.get(key, "0"))
