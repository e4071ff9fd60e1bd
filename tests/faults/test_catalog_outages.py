"""The catalog goes away in the middle of a run (docs/faults.md, J1), and comes back."""

import json
from collections.abc import Iterator
from urllib.parse import urlparse

import pytest
import stamina
from conftest import good_values

from faults.batches import Batches, EventfulEngine
from faults.gates import Gate
from faults.rest_catalog import run_rest_catalog
from frazil.errors import CatalogUnavailableError
from frazil.iceberg.commit_retry import MAX_ATTEMPTS
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ingest.staging import stage_batch

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def catalog_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run one REST catalog for this file."""
    with run_rest_catalog(tmp_path_factory.mktemp("rest")) as properties:
        port = urlparse(properties["uri"]).port
        assert port is not None
        yield port


@pytest.fixture
def gate(catalog_port: int, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Let the lab's stream reach its catalog through a gate, with a first batch published."""
    gate = Gate(catalog_port)
    extra = {"catalog": "guarded", "type": "rest", "uri": f"http://127.0.0.1:{gate.port}"}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": extra}))
    batches.lab.create_topic()
    batches.lab.produce(good_values(8))
    batches.publish()
    batches.lab.produce(good_values(6))
    with stamina.set_testing(True, attempts=MAX_ATTEMPTS, cap=True):
        yield gate
    gate.shut()


def run_until(moment: str, batches: Batches, gate: Gate) -> None:
    """Run a batch step by step; the gate is shut at the moment."""
    work = batches.open()
    if moment == "at the plan":
        gate.shut()
    plan = plan_next_batch(work)
    assert isinstance(plan, BatchPlan)
    if moment == "at the stage":
        gate.shut()
    if moment == "while Spark reads":
        work.__dict__["engine"] = EventfulEngine(work.engine.remote, before=gate.shut)
    staged = stage_batch(work, plan)
    verdict = check_batch(work, plan, staged)
    gate.shut()
    publish_staged(work, plan, staged, verdict)


@pytest.mark.storm(2)
@pytest.mark.parametrize(
    "moment", ["at the plan", "at the stage", "while Spark reads", "at the commit"]
)
def test_j1_after_an_outage_of_the_catalog_the_next_run_reads_the_same_range(
    batches: Batches, gate: Gate, moment: str
) -> None:
    head, plan = batches.table.current_snapshot(), batches.plan()

    with pytest.raises(CatalogUnavailableError):
        run_until(moment, batches, gate)
    with pytest.raises(CatalogUnavailableError):
        plan_next_batch(batches.open())

    gate.open()
    assert batches.table.current_snapshot() == head
    assert batches.plan() == plan
    assert batches.publish().ranges == plan.ranges
    assert batches.faults() == ()
