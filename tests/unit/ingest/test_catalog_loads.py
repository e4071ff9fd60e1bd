"""How often each step of a batch loads a table: once, and once more after a commit of its own."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from support.catalog_loads import Loads, count_loads
from support.http_server import Request, serve_http
from support.lake import Lake, make_stream
from support.scripted_catalog import ScriptedCatalog
from support.staged_offsets import Topic, stage_offsets

from frazil.iceberg import commits
from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan, StageRequest, StageResult
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ingest.staging import stage_batch
from frazil.kafka.cluster import KafkaLog
from frazil.ledger import keys
from frazil.ledger.offsets import OffsetRange
from frazil.recovery.range_overwrite import open_ledger, overwrite_ranges, plan_ranges
from frazil.spark.engine import Engine
from frazil.streams.models import Stream
from frazil.workspace import Workspace

TABLE, LETTERS, LEDGER = "demo.orders", dead_letters_name("demo.orders"), keys.LEDGER_TABLE
SUBJECT = "/subjects/orders-value/versions"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Count the loads of every catalog that a step opens."""
    return count_loads(monkeypatch, ScriptedCatalog)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Serve one Avro schema as a schema registry does, and count the requests by path."""
    requests: Counter[str] = Counter()
    schema = {"schema": json.dumps(SCHEMA), "schemaType": "AVRO"}
    version = {"subject": "orders-value", "version": 1, "id": 1, **schema}
    answers = {
        "/schemas/ids/1": schema,
        SUBJECT: [1],
        f"{SUBJECT}/1": version,
        f"{SUBJECT}/latest": version,
    }

    def answer(request: Request) -> tuple[int, bytes]:
        path = request.path.partition("?")[0]
        requests[path] += 1
        return 200, json.dumps(answers[path]).encode()

    with serve_http(answer) as address:
        connection = {"conn_type": "http", "host": f"http://{address}"}
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps(connection))
        yield requests


@dataclass
class PyIcebergEngine:
    """Stage a row, or a dead letter, for each offset: as Spark's job does, without Spark."""

    lake: Lake
    loads: Loads
    bad: int = 0
    has_files: bool = False
    """Leave the rows in a data file, as Spark's Python workers do on the fast path."""

    def run_job(self, job: str, request: StageRequest, result: type[StageResult]) -> StageResult:
        assert (job, result) == ("stage_batch", StageResult)
        before = Counter(self.loads.by_table)
        counted = stage_offsets(self.lake, request, self.bad)
        if self.has_files:
            counted = self.leave_files(request, counted)
        self.loads.by_table = before
        return counted

    def leave_files(self, request: StageRequest, counted: StageResult) -> StageResult:
        """Empty the branch again; its files stay."""
        table = self.lake.table
        snapshot = table.snapshot_by_id(table.metadata.refs[request.branch].snapshot_id)
        assert snapshot is not None
        assert snapshot.parent_snapshot_id is not None
        files = commits.read_added_files(table, snapshot.snapshot_id)
        back = commits.set_branch(request.branch, snapshot.parent_snapshot_id)
        commits.commit(self.lake.catalog, table, commits.require_uuid(table), [back])
        return counted.model_copy(update={"files": tuple(file.file_path for file in files)})


def from_file(tolerance: str = "none") -> Stream:
    return make_stream(errors={"tolerance": tolerance, "max_bad_ratio": 0.9})


def from_registry(tolerance: str = "none") -> Stream:
    return make_stream(
        value={"convert": "by_schema_id"}, errors={"tolerance": tolerance, "max_bad_ratio": 0.9}
    )


@dataclass
class Run:
    """One stream, whose four steps are each run by a process of its own."""

    lake: Lake
    stream: Stream
    topic: Topic
    engine: PyIcebergEngine

    def open(self) -> Workspace:
        work = Workspace(self.stream, self.lake.folder, "test")
        work.__dict__["kafka"] = cast("KafkaLog", self.topic)
        work.__dict__["engine"] = cast("Engine", self.engine)
        return work


@pytest.fixture
def run(
    lake: Lake,
    loads: Loads,
    registry: Counter[str],  # noqa: ARG001 - its connection
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Return a stream that has published one batch, and records for the next one."""
    stream, bad, *files = cast("tuple[Stream, int]", request.param)
    extra = {"extra": dict(lake.store.preset.properties)}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(extra))
    kafka = {"extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    topic = Topic()
    run = Run(lake, stream, topic, PyIcebergEngine(lake, loads, bad, bool(files)))
    plan = cast("BatchPlan", plan_next_batch(run.open()))
    staged = stage_batch(run.open(), plan)
    publish_staged(run.open(), plan, staged, check_batch(run.open(), plan, staged))
    topic.ends = (5, 4)
    loads.take()
    return run


def count_steps(run: Run) -> dict[str, dict[str, int]]:
    """Run the four steps and count what each loads."""
    loads, counted = run.engine.loads, {}
    plan = cast("BatchPlan", plan_next_batch(run.open()))
    counted["plan"] = loads.take()
    staged = stage_batch(run.open(), plan)
    counted["stage"] = loads.take()
    verdict = check_batch(run.open(), plan, staged)
    counted["check"] = loads.take()
    published = publish_staged(run.open(), plan, staged, verdict)
    counted["publish"] = loads.take()
    assert published.outcome == "PUBLISHED"
    return counted


BRANCH, WRITTEN = 1, 1
"""Stage loads the table to create a branch, and to check what Spark wrote there."""


@pytest.mark.parametrize("run", [(from_file(), 0)], indirect=True)
def test_a_quiet_table_is_loaded_once_and_again_after_each_commit_of_the_step(run: Run) -> None:
    assert count_steps(run) == {
        "plan": {TABLE: 1},
        "stage": {TABLE: BRANCH + WRITTEN},
        "check": {},
        "publish": {TABLE: 2, LEDGER: 1},
    }


@pytest.mark.parametrize("run", [(from_file(), 0, "files")], indirect=True)
def test_files_of_the_fast_path_cost_no_other_load(run: Run) -> None:
    assert count_steps(run)["stage"] == {TABLE: BRANCH + WRITTEN}


@pytest.mark.parametrize("run", [(from_registry(), 0)], indirect=True)
def test_columns_of_a_registry_cost_no_other_load(run: Run) -> None:
    assert count_steps(run) == {
        "plan": {TABLE: 1},
        "stage": {TABLE: BRANCH + WRITTEN},
        "check": {TABLE: 1},
        "publish": {TABLE: 2, LEDGER: 1},
    }


@pytest.mark.parametrize("run", [(from_file("quarantine"), 1)], indirect=True)
def test_dead_letters_cost_no_other_load_of_the_table(run: Run) -> None:
    assert count_steps(run) == {
        "plan": {TABLE: 1, LETTERS: 1},
        "stage": {TABLE: BRANCH + WRITTEN, LETTERS: 1},
        "check": {},
        "publish": {TABLE: 2, LETTERS: 1, LEDGER: 1},
    }


@pytest.mark.parametrize("run", [(from_file(), 0)], indirect=True)
def test_a_replay_loads_the_table_once_and_again_after_each_commit_of_its_own(run: Run) -> None:
    work, view, point = open_ledger(run.open())
    batch = plan_ranges(work, view, point, {"orders": {0: OffsetRange(0, 2)}}, "run")

    landed = overwrite_ranges(work, view, batch, point, keys.REPLAY, "")

    assert landed.entry.summary[keys.ROWS_DELETED] == "2"
    published = 2  # before the first attempt, and for the ledger's archive
    assert run.engine.loads.take() == {TABLE: BRANCH + WRITTEN + published, LEDGER: 1}


@pytest.mark.parametrize("run", [(from_registry(), 0)], indirect=True)
def test_a_plan_asks_the_registry_once(run: Run, registry: Counter[str]) -> None:
    registry.clear()

    plan_next_batch(run.open())

    assert registry == {f"{SUBJECT}/latest": 1}
