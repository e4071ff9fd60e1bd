"""What a task asks of Airflow, where Airflow may not answer."""

import time

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagResult, ErrorResponse, GetDag, TriggerDagRun

from frazil.ingest.messages import BatchPlan
from frazil.streams.models import Stream
from frazil_airflow.dag_runs import find_awaited_pool, is_paused, trigger_catch_up

pytestmark = pytest.mark.airflow


class Supervisor:
    """Airflow's side of a task, which knows two DAGs and is gone for a third."""

    def send(self, msg: GetDag) -> DagResult | ErrorResponse:
        if msg.dag_id == "gone":
            raise ConnectionError
        if msg.dag_id == "unknown":
            return ErrorResponse(error=ErrorType.GENERIC_ERROR)
        nothing = dict.fromkeys(
            ("bundle_name", "bundle_version", "relative_fileloc", "owners", "next_dagrun")
        )
        paused = msg.dag_id == "paused"
        return DagResult(dag_id=msg.dag_id, is_paused=paused, tags=[], **nothing)


@pytest.mark.parametrize("dag_id", ["paused", "running", "unknown", "gone"])
def test_only_a_dag_that_airflow_calls_paused_is_paused(
    monkeypatch: pytest.MonkeyPatch, dag_id: str
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)

    assert is_paused(dag_id) == (dag_id == "paused")


def test_a_table_without_a_pool_of_its_own_waits_for_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream.model_validate(
        {
            "stream": "orders",
            "owner": "tests@example.org",
            "source": {"topic": "orders"},
            "value": {"columns": {"id": "long!"}},
            "table": {"name": "demo.orders"},
        }
    )
    assert (find_awaited_pool(stream), caplog.messages) == ("", [])

    monkeypatch.setenv("FRAZIL_TABLE_POOLS", "true")

    assert find_awaited_pool(stream) == ""
    assert "cannot read whether tasks of orders wait" in caplog.text


def plan_of(records: int, seconds_ago: float) -> BatchPlan:
    """Plan so many records, so long ago."""
    return BatchPlan(
        stream="orders",
        table="demo.orders",
        table_uuid="uuid-1",
        base_epoch=0,
        base_batch="b0",
        batch_id="b1",
        ranges={"orders": {0: (0, records)}},
        topic_ids={"orders": "topic-id-1"},
        cluster_id="cluster-1",
        next_offsets={"orders": (records,)},
        schema_id=0,
        spec_id=0,
        suite_hash="",
        stream_hash="",
        transform_version="t",
        ended_at_ms=int((time.time() - seconds_ago) * 1000),
    )


@pytest.mark.parametrize(
    ("records", "seconds_ago", "schedule", "follows"),
    [
        (100, 1, "* * * * *", True),
        (99, 1, "* * * * *", False),
        (99, 70, "* * * * *", True),
        (100, 70, "continuous", False),
    ],
    ids=["a full batch", "a small one", "one that took longer than may be", "continuous"],
)
def test_the_next_run_follows_where_more_waits_or_is_late(
    monkeypatch: pytest.MonkeyPatch,
    records: int,
    seconds_ago: float,
    schedule: str,
    follows: bool,  # noqa: FBT001
) -> None:
    told: list[TriggerDagRun] = []

    class Listener:
        def send(self, msg: TriggerDagRun) -> None:
            told.append(msg)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Listener(), raising=False)
    batch = {"max_records": 100, "schedule": schedule}
    stream = Stream.model_validate(
        {
            "stream": "orders",
            "owner": "me",
            "source": {"topic": "orders"},
            "value": {"columns": {"id": "long"}},
            "table": {"name": "demo.orders"},
            "batch": batch,
            "freshness": {"warn_seconds": 60, "fail_seconds": 600},
        }
    )

    trigger_catch_up(stream, plan_of(records, seconds_ago))

    runs = [(msg.dag_id, msg.run_id) for msg in told]
    assert runs == ([("ingest__orders", "catch_up__b1")] if follows else [])
