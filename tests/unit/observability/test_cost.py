"""The cost model: sums by day, the fixed part of a batch, and the price of another freshness."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from conftest import REPO
from hypothesis import given
from hypothesis import strategies as st
from support.dated_lake import Dated
from support.lake import Lake
from support.state_lake import Change, make_state_lake

from frazil.errors import ConfigurationError
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger.recovery_point import keys
from frazil.observability.cost import (
    BatchCost,
    Fit,
    MaintenanceCost,
    Prices,
    Rates,
    TableSizes,
    average_day,
    estimate_other_freshness,
    fit_fixed_cost,
    load_prices,
    price,
    sum_up_days,
)
from frazil.observability.cost_report import choose_points, describe_unmeasured, read_cost
from frazil.workspace import Workspace

MONDAY = datetime(2026, 1, 5, 23, 50, tzinfo=UTC)
SIZES = st.lists(st.integers(0, 10_000_000), min_size=10, max_size=60)
COSTS = st.lists(
    st.tuples(st.integers(0, 10_000_000), st.floats(0, 10_000)), min_size=0, max_size=60
)


def batch(minutes: int, **facts: int) -> BatchCost:
    return BatchCost(at=MONDAY + timedelta(minutes=minutes), **{"records": 10, **facts})  # type: ignore[arg-type]


def snapshot(minutes: int, live: int, *, is_batch: bool = True, written: int = 0) -> TableSizes:
    return TableSizes(MONDAY + timedelta(minutes=minutes), is_batch, written, live, live // 10)


def test_each_day_counts_its_own_batches_and_a_day_without_any_keeps_what_is_live() -> None:
    batches = [batch(0, cpu_ms=1500, bytes_written=40), batch(5, cpu_ms=500, spark_cpu_ms=3000)]
    upkeep = [MaintenanceCost(MONDAY, 400), MaintenanceCost(MONDAY + timedelta(days=3), 900)]
    snapshots = [snapshot(0, 40), snapshot(5, 70), snapshot(2 * 1440, 60, is_batch=False)]

    monday, tuesday, wednesday, thursday = sum_up_days(batches, snapshots, upkeep, None)

    assert (monday.day, monday.batches, monday.records) == (date(2026, 1, 5), 2, 20)
    assert (monday.measured, monday.spark_measured) == (2, 1)
    assert (monday.cpu_seconds, monday.spark_cpu_seconds, monday.bytes_live) == (2.0, 3.0, 70)
    assert (tuesday.batches, tuesday.commits, tuesday.bytes_live, tuesday.files_live) == (
        0,
        0,
        70,
        7,
    )
    assert (wednesday.batches, wednesday.commits, wednesday.bytes_live) == (0, 1, 60)
    assert (monday.maintenance_cpu_seconds, thursday.maintenance_cpu_seconds) == (0.4, 0.9)
    assert (thursday.commits, thursday.bytes_live) == (0, 60)


def test_merges_count_in_their_day_and_are_paid_for() -> None:
    used = {"cpu_ms": 500, "requests": 7, "bytes_written": 2 * 10**9, "files_written": 3}
    merges = [batch(n, **used) for n in (0, 1, 20)]
    prices = Prices(written_gb=1.0)

    monday, tuesday = sum_up_days([], [snapshot(0, 10)], [], prices, merges)

    assert (monday.merges, monday.merge_cpu_seconds, monday.merge_requests) == (2, 1.0, 14)
    assert (tuesday.merges, tuesday.merge_files_written) == (1, 3)
    assert monday.money is not None
    assert monday.money.written == 4.0


def test_the_newest_size_of_a_streams_other_tables_is_live_and_paid_for() -> None:
    state, deletes = [snapshot(1500, 300), snapshot(-5000, 100)], [snapshot(1505, 20)]
    changes, prices = [snapshot(0, 40), snapshot(1500, 60)], Prices(storage_gb_month=30 * 10**9)

    monday, tuesday, wednesday = sum_up_days([], changes, [], prices, (), [state, deletes, []])

    assert (monday.bytes_live, tuesday.bytes_live) == (40 + 100 + 20, 40 + 100 + 20)
    assert (wednesday.bytes_live, wednesday.files_live) == (60 + 300 + 20, 6 + 30 + 2)
    assert wednesday.commits == 1
    assert wednesday.money is not None
    assert wednesday.money.storage == 380


def test_what_others_wrote_is_told_apart_and_paid_for() -> None:
    snapshots = [snapshot(0, 10, written=10), snapshot(1, 10, is_batch=False, written=7)]

    (day,) = sum_up_days(
        [batch(0, bytes_written=10)], snapshots, [], Prices(written_gb=1_000_000_000)
    )

    assert (day.bytes_written, day.bytes_by_others) == (10, 7)
    assert day.money is not None
    assert day.money.written == pytest.approx(17)


def test_no_snapshot_no_day() -> None:
    assert sum_up_days([], [], [], Prices()) == []


@given(sizes=SIZES, fixed=st.floats(0.01, 100), each=st.floats(1e-7, 1e-3))
def test_batches_on_a_line_give_their_fixed_part(
    sizes: list[int], fixed: float, each: float
) -> None:
    sizes = [*sizes, 0, 10_000_000]

    fit = fit_fixed_cost([(size, fixed + each * size) for size in sizes])

    assert fit.reliable
    assert fit.fixed == pytest.approx(fixed, rel=1e-3, abs=1e-3 * fit.mean)


@given(points=COSTS)
def test_the_fixed_part_never_leaves_what_must_hold(points: list[tuple[int, float]]) -> None:
    fit = fit_fixed_cost(points)

    assert 0 <= fit.low <= fit.fixed <= fit.high <= fit.mean
    assert fit.reliable == (fit.why == "")


@given(points=COSTS, factor=st.floats(0.1, 10))
def test_more_batches_never_cost_less_and_never_more_than_in_proportion(
    points: list[tuple[int, float]], factor: float
) -> None:
    fit = fit_fixed_cost(points)
    now = 24 * fit.mean

    told = estimate_other_freshness(Rates(24, 1, 1, None), fit, factor, None)

    low, high = told.cpu_seconds_range
    slack = 1e-9 * (1 + now)
    assert min(now, now * factor) - slack <= low <= told.cpu_seconds + slack
    assert told.cpu_seconds - slack <= high <= max(now, now * factor) + slack


@pytest.mark.parametrize(
    ("points", "why"),
    [
        pytest.param([(i, 1.0) for i in range(9)], "9 batches measured, 10 needed", id="too few"),
        pytest.param([(500, 1.0)] * 40, "same number of records", id="all of one size"),
        pytest.param(
            [(1000 + i % 3, 1.0 + i % 7) for i in range(40)], "range is wide", id="scattered"
        ),
    ],
)
def test_a_fit_that_knows_little_says_so(points: list[tuple[int, float]], why: str) -> None:
    fit = fit_fixed_cost(points)

    assert not fit.reliable
    assert why in fit.why


def test_twice_the_freshness_costs_the_fixed_part_of_each_new_batch() -> None:
    rates = average_day([batch(0), batch(10), batch(20)], timedelta(hours=12))
    fit = Fit(runs=20, mean=5, fixed=2, low=1, high=3, reliable=True)

    twice = estimate_other_freshness(rates, fit, 2, Prices(cpu_core_hour=3600))

    assert (rates.batches, rates.interval_seconds) == (6, 600)
    assert (twice.batches, twice.interval_seconds) == (12, 300)
    assert (twice.cpu_seconds, twice.cpu_seconds_range) == (42, (36, 48))
    assert (twice.money, twice.money_range) == (42, (36, 48))


def test_only_wholly_measured_batches_are_fitted_and_the_others_are_told() -> None:
    batches = [batch(0), batch(1, cpu_ms=1000), batch(2, cpu_ms=1000, spark_cpu_ms=4000)]

    assert choose_points(batches) == [(10, 5.0)]
    assert choose_points(batches[:2]) == [(10, 1.0)]
    assert [line.split(":")[0] for line in describe_unmeasured(batches)] == [
        "CPU time of 1 of 3 batches",
        "Spark's CPU time of 1 of 3 batches",
    ]


def test_money_is_split_by_what_it_is_paid_for() -> None:
    prices = Prices(cpu_core_hour=2, storage_gb_month=30, written_gb=4, requests_million=5)

    money = price(
        prices,
        cpu_seconds=1800,
        bytes_live=2_000_000_000,
        bytes_written=500_000_000,
        requests=200_000,
    )

    assert (money.cpu, money.storage, money.written, money.requests) == (1, 2, 2, 1)
    assert money.total == 6


def test_the_example_of_the_page_is_read() -> None:
    assert load_prices(REPO / "docs" / "prices.yaml").currency == "EUR"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        pytest.param("cpu_core_hour: -1", "cpu_core_hour: ", id="below zero"),
        pytest.param("cpu_core_hour: .nan", "cpu_core_hour: ", id="no number"),
        pytest.param("written_gb: cheap\nstorage: 1", "written_gb: ", id="a word"),
        pytest.param("written_gb: cheap\nstorage: 1", "storage: ", id="an unknown name"),
        pytest.param("- 1", "file: ", id="a list"),
        pytest.param("a: [", "cannot be read", id="no YAML"),
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param("currency: 2026-02-30", "line 1: currency: not a valid", id="no date"),
        pytest.param("\na: !!int x", "line 2: a: not a valid int", id="a tag of another type"),
        pytest.param("a: !foo x", "cannot be read", id="an unknown tag"),
        pytest.param("[" * 5000 + "]" * 5000, "nested too deeply", id="deep"),
        pytest.param("cpu_core_hour: 010", "YAML reads 010 as the number 8", id="octal"),
        pytest.param("cpu_core_hour: 1:30", "YAML reads 1:30 as", id="sexagesimal"),
        pytest.param("written_gb: true", "written_gb: ", id="a boolean"),
        pytest.param("written_gb: 1\nwritten_gb: 2", "line 2: written_gb: duplicate", id="twice"),
        pytest.param("false", "file: ", id="a boolean alone"),
    ],
)
def test_a_wrong_price_is_named_by_field(tmp_path: Path, text: str | None, facts: str) -> None:
    path = tmp_path / "prices.yaml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigurationError) as refused:
        load_prices(path)

    assert facts in refused.value.facts
    assert "docs/prices.yaml" in refused.value.next_step


def test_state_table_and_delete_memory_are_live_too(tmp_path: Path) -> None:
    lake = make_state_lake(Dated, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 2, "two"), Change(2, "d", 3))
    lake.ingest_all()
    lake.merge()
    work = Workspace(lake.stream, tmp_path, "test")
    vars(work)["store"] = lake.store
    between = datetime.now(UTC)
    publish_marker(lake.store, lake.table, Marker(keys.CARRY, {}, lake.history.head, "later", {}))
    names = (lake.stream.table.name, lake.state_name, f"{lake.state_name}__deletes")
    sizes = [lake.store.load(name).inspect.files()["file_size_in_bytes"] for name in names]

    for since in (between - timedelta(minutes=5), between):
        report = read_cost(work, since, datetime.now(UTC), None)
        assert report.days[-1].bytes_live == sum(sum(each.to_pylist()) for each in sizes)
        assert report.days[-1].files_live == 3
    lake.close()


def test_a_backfill_is_in_its_day_and_not_in_another_freshness(lake: Lake, work: Workspace) -> None:
    lake.ingest(2, 2)
    lake.ingest(4, 4)
    for number in range(3):
        told = {keys.STREAM: "orders", keys.ROWS_READ: "9"}
        marker = Marker(keys.BACKFILL, {}, lake.history.head, f"run-{number}", told)
        publish_marker(lake.store, lake.table, marker)
    now = datetime.now(UTC)

    report = read_cost(work, now - timedelta(minutes=5), now, None)

    assert sum(day.batches for day in report.days) == 5
    assert sum(day.records for day in report.days) == 8 + 27
    assert [imagined.batches for imagined in report.what_if] == [96, 24], "two in an hour are 48"
