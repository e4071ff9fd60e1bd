"""Fixtures of the failure catalogue, and its report: one line for each case."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import Lab, Stack, good_values
from pyiceberg.catalog import load_catalog
from support.broker_lake import BrokerLake
from support.foreign_tables import ForeignTable
from support.lake import make_stream
from support.stack_lake import StackLake

from faults import tally
from faults.batches import Batches
from faults.legacy import VALUES, Legacy


@pytest.fixture(autouse=True)
def _tallied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hand what a test counted to the report."""
    tally.counts.clear()
    yield
    request.node.user_properties.append((tally.PROPERTY, dict(tally.counts)))


@pytest.fixture
def batches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Run a lab's batches in this process, where each step can be stopped and looked at."""
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(lab.folder))
    return Batches(lab)


@pytest.fixture
def stack_lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackLake:
    """Begin a stream in the running stack; PyIceberg stages, Spark maintains."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"f{secrets.token_hex(4)}"
    table = {"name": f"faults.{name}"}
    lake = StackLake(tmp_path, make_stream(name, source={"topic": "orders"}, table=table))
    lake.begin()
    return lake


@pytest.fixture
def broker_lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerLake:
    """Begin a stream with a topic of its own in the running stack; PyIceberg stages."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    name = f"b{secrets.token_hex(4)}"
    stream = make_stream(name, source={"topic": name}, table={"name": f"faults.{name}"})
    lake = BrokerLake(tmp_path, stream)
    content = stream.model_dump(mode="json", by_alias=True)
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    lake.create_topic(stack.bootstrap)
    lake.begin()
    return lake


@pytest.fixture
def legacy(lab: Lab) -> Legacy:
    """Produce 60 records into a topic; another writer's table is not there yet."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    foreign = ForeignTable(catalog, lab.table, values=VALUES, topic=lab.topic)
    lab.create_topic()
    lab.produce(good_values(60))
    return Legacy(lab, foreign)
