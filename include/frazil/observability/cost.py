"""Cost of a stream by day, and an estimate for another batch interval, from measured batches.

A batch has a fixed cost that does not depend on its records. It is the intercept of a least-squares
line of cost against records; n more batches a day add n times the fixed cost. The estimate has a
range of two standard errors, limited to between zero and the mean cost of a batch.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frazil.errors import ConfigurationError, StreamFileError
from frazil.messages import Report, count_noun, read_reason
from frazil.streams.timestamps import Number
from frazil.streams.yaml_files import read_yaml

MIN_RUNS = 10
"""The fewest measured batches for a fit."""
WIDEST = 0.25
"""The widest range of a reliable fit, up or down, as a share of a batch's mean cost."""
FACTORS = (2.0, 0.5)
"""Estimates are made for twice and for half as many batches."""
DAY = timedelta(days=1)
SECONDS_PER_HOUR = 3600
DAYS_PER_MONTH = 30
GB = 1_000_000_000
MILLION = 1_000_000


@dataclass(frozen=True)
class BatchCost:
    """Cost of one published batch, or of one merge into a state table.

    CPU is in ms, None where it was not recorded.
    """

    at: datetime
    records: int
    cpu_ms: int | None = None
    spark_cpu_ms: int | None = None
    requests: int = 0
    bytes_written: int = 0
    files_written: int = 0

    @property
    def total_cpu_ms(self) -> int:
        """Return the known CPU time, that of Spark included."""
        return (self.cpu_ms or 0) + (self.spark_cpu_ms or 0)


@dataclass(frozen=True)
class TableSizes:
    """Sizes in the summary of a snapshot of any kind."""

    at: datetime
    is_batch: bool
    bytes_written: int
    bytes_live: int
    files_live: int


@dataclass(frozen=True)
class MaintenanceCost:
    """CPU time of one maintenance step in ms, including Spark's where it is known."""

    at: datetime
    cpu_ms: int


class _Dated(Protocol):
    @property
    def at(self) -> datetime:
        """Return when it was."""
        ...


AnyDated = TypeVar("AnyDated", bound=_Dated)


class Money(Report):
    """Money by resource."""

    cpu: float
    storage: float
    written: float
    requests: float
    total: float


class DayCost(Report):
    """One day in UTC; `measured` batches have CPU times, `spark_measured` also those of Spark."""

    day: date
    batches: int
    records: int
    measured: int
    spark_measured: int
    cpu_seconds: float
    spark_cpu_seconds: float
    maintenance_cpu_seconds: float
    bytes_written: int
    files_written: int
    requests: int
    commits: int
    bytes_by_others: int
    bytes_live: int
    files_live: int
    merges: int
    merge_cpu_seconds: float
    merge_bytes_written: int
    merge_files_written: int
    merge_requests: int
    money: Money | None = None


class Fit(Report):
    """The fixed cost of a batch, with its range."""

    runs: int
    mean: float
    fixed: float
    low: float
    high: float
    reliable: bool
    why: str = ""


class FreshnessEstimate(Report):
    """A day with the same records in `factor` times as many batches; ranges are (low, high)."""

    factor: float
    batches: float
    interval_seconds: float | None
    cpu_seconds: float
    cpu_seconds_range: tuple[float, float]
    files_written: float
    requests: float
    money: float | None = None
    money_range: tuple[float, float] | None = None


class Prices(BaseModel):
    """Prices without tax, zero by default.

    A GB is 10⁹ bytes, a month has 30 days, a request is a call to Kafka or the catalog, or a file
    opened or written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    currency: str = Field("", max_length=12)
    cpu_core_hour: Number = Field(0, ge=0)
    storage_gb_month: Number = Field(0, ge=0)
    written_gb: Number = Field(0, ge=0)
    requests_million: Number = Field(0, ge=0)


def sum_up_days(
    batches: Sequence[BatchCost],
    snapshots: Sequence[TableSizes],
    maintained: Sequence[MaintenanceCost],
    prices: Prices | None,
    merges: Sequence[BatchCost] = (),
    others: Sequence[Sequence[TableSizes]] = (),
) -> list[DayCost]:
    """Sum up each day from the first snapshot to the last, including days without a batch.

    `others` are the sizes of the stream's other tables.
    """
    if not snapshots:
        return []
    own, seen, kept = _group(batches), _group(snapshots), _group(maintained)
    merged, first = _group(merges), min(seen)
    days = [first + timedelta(n) for n in range((max([*seen, *kept, *merged]) - first).days + 1)]
    tables = (_list_newest(sizes, days) for sizes in (snapshots, *filter(None, others)))
    live = zip(*tables, strict=True)
    found = [
        _sum_up(own[day], seen[day], sizes, merged[day], day, sum(m.cpu_ms for m in kept[day]))
        for day, sizes in zip(days, live, strict=True)
    ]
    if prices is not None:
        return [day.model_copy(update={"money": price_day(day, prices)}) for day in found]
    return found


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _at(figure: _Dated) -> datetime:
    return figure.at


def _group(figures: Iterable[AnyDated]) -> defaultdict[date, list[AnyDated]]:
    """Group figures by their day."""
    found = defaultdict[date, list[AnyDated]](list)
    for each in figures:
        found[_day(each.at)].append(each)
    return found


def _list_newest(sizes: Sequence[TableSizes], days: Sequence[date]) -> Iterator[TableSizes]:
    """Yield a table's newest sizes at the end of each day, or the first ones that are known."""
    by_day = _group(sizes)
    earlier = [each for day in by_day if day < days[0] for each in by_day[day]]
    newest = max(earlier, key=_at) if earlier else min(sizes, key=_at)
    for day in days:
        newest = max(by_day[day], key=_at, default=newest)
        yield newest


def _sum_up(
    own: Sequence[BatchCost],
    seen: Sequence[TableSizes],
    live: Sequence[TableSizes],
    merged: Sequence[BatchCost],
    day: date,
    maintenance_cpu_ms: int,
) -> DayCost:
    return DayCost(
        day=day,
        batches=len(own),
        records=sum(b.records for b in own),
        measured=sum(b.cpu_ms is not None for b in own),
        spark_measured=sum(b.spark_cpu_ms is not None for b in own),
        cpu_seconds=sum(b.cpu_ms or 0 for b in own) / 1000,
        spark_cpu_seconds=sum(b.spark_cpu_ms or 0 for b in own) / 1000,
        maintenance_cpu_seconds=maintenance_cpu_ms / 1000,
        bytes_written=sum(b.bytes_written for b in own),
        files_written=sum(b.files_written for b in own),
        requests=sum(b.requests for b in own),
        commits=len(seen),
        bytes_by_others=sum(s.bytes_written for s in seen if not s.is_batch),
        bytes_live=sum(s.bytes_live for s in live),
        files_live=sum(s.files_live for s in live),
        merges=len(merged),
        merge_cpu_seconds=sum(m.total_cpu_ms for m in merged) / 1000,
        merge_bytes_written=sum(m.bytes_written for m in merged),
        merge_files_written=sum(m.files_written for m in merged),
        merge_requests=sum(m.requests for m in merged),
    )


def price_day(day: DayCost, prices: Prices) -> Money:
    """Return the price of a day; each file that Spark wrote counts as one request."""
    of_batches = day.cpu_seconds + day.spark_cpu_seconds
    return price(
        prices,
        cpu_seconds=of_batches + day.maintenance_cpu_seconds + day.merge_cpu_seconds,
        bytes_live=day.bytes_live,
        bytes_written=day.bytes_written + day.bytes_by_others + day.merge_bytes_written,
        requests=day.requests + day.files_written + day.merge_requests + day.merge_files_written,
    )


def fit_fixed_cost(points: Sequence[tuple[int, float]]) -> Fit:
    """Fit the fixed cost of a batch to (records, cost) of each batch."""
    mean = statistics.fmean(cost for _, cost in points) if points else 0.0
    unknown = Fit(runs=len(points), mean=mean, fixed=mean, low=0, high=mean, reliable=False)
    if len(points) < MIN_RUNS:
        why = f"{count_noun(len(points), 'batch', 'batches')} measured, {MIN_RUNS} needed"
        return unknown.model_copy(update={"why": why})
    records = [float(number) for number, _ in points]
    if min(records) == max(records):
        why = "all batches have the same number of records, so the fixed cost is unknown"
        return unknown.model_copy(update={"why": why})
    line = statistics.linear_regression(records, [cost for _, cost in points])
    error = _standard_error(points, line.slope, line.intercept)
    fixed, low, high = (
        min(max(value, 0.0), mean)
        for value in (line.intercept, line.intercept - 2 * error, line.intercept + 2 * error)
    )
    reliable = max(high - fixed, fixed - low) <= WIDEST * mean
    why = "" if reliable else "batch sizes vary too little or costs too much: the range is wide"
    return Fit(
        runs=len(points), mean=mean, fixed=fixed, low=low, high=high, reliable=reliable, why=why
    )


def _standard_error(points: Sequence[tuple[int, float]], slope: float, intercept: float) -> float:
    """Return the standard error of the intercept of a least-squares line."""
    mean = statistics.fmean(records for records, _ in points)
    spread = math.fsum((records - mean) ** 2 for records, _ in points)
    residual = math.fsum((cost - intercept - slope * records) ** 2 for records, cost in points)
    variance = residual / (len(points) - 2)
    return math.sqrt(variance * (1 / len(points) + mean**2 / spread))


@dataclass(frozen=True)
class Rates:
    """An average day of a window, and the median interval between batches."""

    batches: float
    files_written: float
    requests: float
    interval_seconds: float | None


def average_day(batches: Sequence[BatchCost], window: timedelta) -> Rates:
    """Return the average day of a window; a window below an hour counts as an hour."""
    days = max(window, timedelta(hours=1)) / DAY
    instants = sorted(batch.at for batch in batches)
    gaps = [(b - a).total_seconds() for a, b in pairwise(instants)]
    return Rates(
        batches=len(batches) / days,
        files_written=sum(b.files_written for b in batches) / days,
        requests=sum(b.requests for b in batches) / days,
        interval_seconds=statistics.median(gaps) if gaps else None,
    )


def estimate_other_freshness(
    rates: Rates, fit: Fit, factor: float, prices: Prices | None
) -> FreshnessEstimate:
    """Estimate a day with `factor` times as many batches; `fit` is in CPU seconds."""
    cpu, low, high = (
        rates.batches * (fit.mean + (factor - 1) * fixed)
        for fixed in (fit.fixed, fit.low, fit.high)
    )
    low, high = min(low, high), max(low, high)
    estimate = FreshnessEstimate(
        factor=factor,
        batches=rates.batches * factor,
        interval_seconds=rates.interval_seconds and rates.interval_seconds / factor,
        cpu_seconds=cpu,
        cpu_seconds_range=(low, high),
        files_written=rates.files_written * factor,
        requests=rates.requests * factor,
    )
    if prices is None:
        return estimate
    requests = estimate.requests + estimate.files_written
    least, expected, most = (
        price(prices, cpu_seconds=seconds, requests=requests).total for seconds in (low, cpu, high)
    )
    return estimate.model_copy(update={"money": expected, "money_range": (least, most)})


def load_prices(path: Path) -> Prices:
    """Read a price file.

    Raises:
        ConfigurationError: the file is missing or not YAML, or names its invalid fields.
    """
    try:
        _, content = read_yaml(path)
    except StreamFileError as error:  # what the reader itself refuses, by `path:line: field`
        lines = (line.removeprefix(f"{path}:") for line in error.facts.splitlines())
        raise _price_error(path, "; ".join(f"line {line}" for line in lines)) from error
    except RecursionError:
        raise _price_error(path, "nested too deeply") from None
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise _price_error(path, f"cannot be read: {reason}") from error
    try:
        return Prices.model_validate({} if content is None else content)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, e['loc'])) or 'file'}: {read_reason(e)}" for e in error.errors()
        )
        raise _price_error(path, "; ".join(problems)) from error


def _price_error(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"prices {path}: {reason}",
        f"write {', '.join(sorted(set(Prices.model_fields)))}, as numbers of 0 or more; "
        "docs/prices.yaml is an example",
    )


def price(
    prices: Prices,
    *,
    cpu_seconds: float = 0,
    bytes_live: float = 0,
    bytes_written: float = 0,
    requests: float = 0,
) -> Money:
    """Return the price of a day's resources; `bytes_live` are stored for the whole day."""
    cpu = cpu_seconds / SECONDS_PER_HOUR * prices.cpu_core_hour
    storage = bytes_live / GB * prices.storage_gb_month / DAYS_PER_MONTH
    written = bytes_written / GB * prices.written_gb
    request_cost = requests / MILLION * prices.requests_million
    return Money(
        cpu=cpu,
        storage=storage,
        written=written,
        requests=request_cost,
        total=cpu + storage + written + request_cost,
    )
