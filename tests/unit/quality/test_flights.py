"""The demo's suite holds on the real flights, in any batch, and needs one pass only."""

from random import Random

import pyarrow as pa
import pytest
from support.flight_rows import SUITE_FILE, read_all_flights, read_columns, read_first_events

from frazil.quality.compiler import compile_suite
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.suite_files import check_suite_fits, load_suite

pytestmark = pytest.mark.slow  # Great Expectations is imported and run


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return read_all_flights()


def list_failures(rows: pa.Table) -> list[str]:
    results = run_great_expectations(load_suite(SUITE_FILE).expectations, rows)
    return [result.line for result in results if not result.success]


def test_the_suite_fits_the_stream_and_is_answered_in_one_pass() -> None:
    suite, columns = load_suite(SUITE_FILE), read_columns()

    check_suite_fits(suite, columns)

    assert len(compile_suite(suite, columns).one_pass) == len(suite.expectations) == 10


def test_the_suite_holds_on_all_flights(flights: pa.Table) -> None:
    assert len(flights) == 336_776
    assert list_failures(flights) == []


def test_the_rows_tested_are_those_that_the_demo_sends(flights: pa.Table) -> None:
    assert read_first_events(500) == flights.slice(0, 500)


@pytest.mark.parametrize("seed", range(6))
def test_the_suite_holds_on_any_batch(flights: pa.Table, seed: int) -> None:
    rng = Random(seed)
    length = rng.choice((1, 10, 1000))

    batch = flights.slice(rng.randrange(len(flights)), length)

    assert list_failures(batch) == []


@pytest.mark.parametrize(
    ("column", "value"), [("carrier", "XX"), ("dest", "LAXX"), ("distance", 0.0), ("origin", "")]
)
def test_one_wrong_value_is_noticed(flights: pa.Table, column: str, value: object) -> None:
    wrong = flights.slice(0, 1)
    place = wrong.column_names.index(column)

    wrong = wrong.set_column(place, column, pa.array([value], wrong.schema.field(column).type))

    assert [line for line in list_failures(wrong) if f"({column})" in line]
