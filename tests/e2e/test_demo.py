"""What `make demo` does once the stack is up: flights in, a table out; again: nothing new."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import REPO, Lab, Stack
from faults.auditor import audit_table

from e2e.conftest import Airflow
from frazil_demo.events import MALFORMED_EVERY

pytestmark = pytest.mark.stack

FLIGHTS = 3000
LETTERS = FLIGHTS // MALFORMED_EVERY


@pytest.fixture
def flights(airflow: Airflow) -> Iterator[Lab]:
    """Lend the shipped stream to the running Airflow; its file goes with the test."""
    shipped = REPO / "include" / "streams"
    suite = airflow.streams / "expectations" / "flights.json"
    shutil.copy(shipped / "expectations" / "flights.json", suite)
    shutil.copy(shipped / "flights.yaml", airflow.streams / "flights.yaml")
    yield Lab(Stack.read(airflow.home), airflow.streams, "flights")
    (airflow.streams / "flights.yaml").unlink()
    suite.unlink()


def run_demo(flights: Lab) -> str:
    """Run the demo with its first flights; give what it says."""
    command = [sys.executable, "-m", "frazil_demo", "--flights", str(FLIGHTS)]
    done = subprocess.run(
        command, env=flights.environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.core
def test_the_demo_loads_the_flights_and_a_second_one_adds_nothing(
    airflow: Airflow, flights: Lab
) -> None:
    told = f"{FLIGHTS:,} rows in demo.flights, {LETTERS} dead letters"

    first = run_demo(flights)
    epochs = flights.frazil("status", "flights", "--json").json
    second = run_demo(flights)

    assert f"{FLIGHTS + LETTERS:,} records sent; {LETTERS} of all records are malformed" in first
    assert f"all {FLIGHTS + LETTERS:,} records are there" in second
    assert "no new records; the table is at epoch" in second
    assert all(told in said for said in (first, second)), first
    assert f"Airflow: {airflow.url} user admin password " in second
    assert isinstance(epochs, list)
    assert f"the table is at epoch {epochs[0]['epoch']}" in second
    properties = flights.stack.catalog_properties
    report = audit_table(properties, "lake", "demo.flights", flights.stack.bootstrap, "flights")
    assert report.findings == ()


def test_an_impossible_number_of_flights_is_refused() -> None:
    command = [sys.executable, "-m", "frazil_demo", "--flights", "0"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)

    assert (done.returncode, "--flights" in done.stderr) == (2, True), done.stderr
