"""The manual DAGs by their forms' REST API: dry runs, a second person, rollbacks, decisions."""

import re
import secrets

import pytest
from conftest import Lab, good_values
from faults.legacy import VALUES, Legacy, filled
from pyiceberg.catalog import load_catalog
from support.foreign_tables import ForeignTable

from e2e.conftest import Airflow
from frazil.errors import StackError
from frazil_demo.airflow_api import AirflowApi

pytestmark = pytest.mark.stack


def trigger(airflow: Airflow, dag: str, run_id: str, **conf: object) -> None:
    """Fill in a form."""
    body = {"logical_date": None, "dag_run_id": run_id, "conf": conf}
    airflow.api.request("POST", f"/dags/{dag}/dagRuns", body)


def finish(airflow: Airflow, dag: str, run_id: str) -> dict[str, str]:
    """Wait for a run's end; give the state of every task."""
    airflow.api.wait_for_run(dag, run_id, 240)
    return airflow.states(dag, run_id)


def approve(airflow: Airflow, run_id: str, by: AirflowApi) -> None:
    """Wait for the question, and let a user say yes."""
    asked = airflow.answer(("recover", run_id, "rewind"), by, chosen_options=["Approve"])
    assert "remove 100 rows" in asked["subject"]


def replay_by_its_own_dag(airflow: Airflow, lab: Lab, offsets: list[str]) -> None:
    """Replay by `operate__<stream>`; it refuses another stream."""
    dag, before = f"operate__{lab.stream}", lab.rows
    again = {"action": "replay", "offsets": offsets, "dry_run": False}
    trigger(airflow, dag, "again", **again)
    trigger(airflow, dag, "other", **again, stream="another")

    done = dict.fromkeys(("begin", "rewind", "finish"), "success")
    assert finish(airflow, dag, "again") == done
    assert finish(airflow, dag, "other")["begin"] == "failed"
    assert lab.rows == before


def roll_back_by_form(airflow: Airflow, lab: Lab) -> None:
    """Preview a rollback, then meet its approval, once by the wrong user."""
    snapshots = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(snapshots, list)
    form = {"stream": lab.stream, "to_snapshot": str(snapshots[1]["snapshot_id"])}
    meant = {**form, "dry_run": False, "reason": "bad release"}

    trigger(airflow, "recover", "dry", **form)
    skipped = {"preview": "success", "rewind": "skipped"}
    assert finish(airflow, "recover", "dry") == skipped
    assert lab.rows == 200

    trigger(airflow, "recover", "alone", **meant, approval_rows=50)
    approve(airflow, "alone", airflow.api)
    failed = {"preview": "success", "rewind": "failed"}
    assert finish(airflow, "recover", "alone") == failed
    assert lab.rows == 200

    trigger(airflow, "recover", "meant", **meant, approval_rows=50)
    approve(airflow, "meant", airflow.log_in("approver"))
    done = dict.fromkeys(("preview", "rewind"), "success")
    assert finish(airflow, "recover", "meant") == done
    assert lab.rows == 100
    assert "approved by approver" in lab.frazil("snapshots", lab.stream).out

    with pytest.raises(StackError, match="409"):
        trigger(airflow, "recover", "meant", **meant)
    with pytest.raises(StackError, match="400"):
        trigger(airflow, "recover", "no snapshot", **{**form, "to_snapshot": "the last one"})
    trigger(airflow, "recover", "unknown-key", **form, dry_ruin=True)
    assert finish(airflow, "recover", "unknown-key")["preview"] == "failed"


def resolve_by_form(airflow: Airflow, lab: Lab) -> None:
    """Read a batch again that another writer rolled back."""
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    head = table.current_snapshot()
    table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()  # type: ignore[union-attr, arg-type]
    assert lab.frazil("run", lab.stream).code == 1
    named = {"reason": "restored by mistake", "dry_run": False}
    trigger(airflow, "recover", "answered", stream=lab.stream, answer="reingest", **named)
    assert finish(airflow, "recover", "answered")["rewind"] == "success"
    assert lab.frazil("run", lab.stream).code == 0


def test_a_rollback_and_a_replay_by_form(airflow: Airflow, airflow_lab: Lab) -> None:
    lab = airflow_lab
    lab.create_topic()
    for _ in range(2):
        lab.produce(good_values(100))
        assert lab.frazil("run", lab.stream).code == 0
    for dag in ("recover", "replay", f"operate__{lab.stream}"):
        airflow.wait_for_dag(dag)

    roll_back_by_form(airflow, lab)

    assert lab.frazil("run", lab.stream).code == 0
    offsets = [f"{lab.topic}:0:10-60"]
    trigger(airflow, "replay", "again", stream=lab.stream, offsets=offsets, dry_run=False)
    assert finish(airflow, "replay", "again") == {"preview": "success", "replay": "success"}
    assert lab.rows == 200

    replay_by_its_own_dag(airflow, lab, offsets)

    lab.produce(good_values(20, start=200))
    assert lab.frazil("run", lab.stream).code == 0
    resolve_by_form(airflow, lab)
    assert lab.rows == 220
    assert lab.frazil("audit", lab.stream).code == 0


def test_a_backfill_by_form_fills_each_window_in_a_task_of_its_own(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    lab.create_topic()
    lab.produce(good_values(100))
    lab.write_stream(source={"topic": lab.topic, "start": "latest"})
    assert lab.frazil("plan", lab.stream).code == 0
    assert lab.frazil("run", lab.stream).code == 0
    form = {"stream": lab.stream, "window_records": 40, "order": "newest"}
    airflow.wait_for_dag("backfill")

    trigger(airflow, "backfill", "dry", **form)
    assert finish(airflow, "backfill", "dry")["preview"] == "success"
    with pytest.raises(StackError, match="400"):
        trigger(airflow, "backfill", "no order", **{**form, "order": "random"})
    trigger(airflow, "backfill", "meant", **form, dry_run=False)
    airflow.api.wait_for_run("backfill", "meant", 240)

    found = airflow.api.request("GET", "/dags/backfill/dagRuns/meant/taskInstances")
    filled = [each for each in found["task_instances"] if each["task_id"] == "fill"]
    names = {each["rendered_map_index"]: (each["state"], each["pool"]) for each in filled}
    assert names == {f"{n} of 3": ("success", "default_pool") for n in (1, 2, 3)}
    assert lab.rows == 100
    assert lab.frazil("audit", lab.stream).code == 0


def test_an_erasure_by_form_leaves_no_key_in_logs_and_answers(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    lab.create_topic()
    lab.produce(good_values(100))
    assert lab.frazil("run", lab.stream).code == 0
    form = {"stream": lab.stream, "keys": ["name=n77", "id=78"]}
    airflow.wait_for_dag("erase")

    trigger(airflow, "erase", "preview-only", **form)
    assert finish(airflow, "erase", "preview-only") == {"preview": "success", "erase": "skipped"}
    assert lab.rows == 100
    trigger(airflow, "erase", "meant", **form, dry_run=False, reason="request 12")
    assert finish(airflow, "erase", "meant") == {"preview": "success", "erase": "success"}

    assert lab.rows == 98
    for task in ("preview", "erase"):
        told = f"/dags/erase/dagRuns/meant/taskInstances/{task}"
        answers = [
            airflow.api.request("GET", f"{told}/{each}")
            for each in ("logs/1", "xcomEntries/return_value")
        ]
        assert "n77" not in str(answers)
        assert "rows and" in str(answers)
    assert lab.frazil("audit", lab.stream).code == 0


def test_decisions_and_a_comparison_by_form(airflow: Airflow, airflow_lab: Lab) -> None:
    lab = airflow_lab
    lab.create_topic()
    lab.produce(good_values(60))
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    legacy = Legacy(lab, ForeignTable(catalog, lab.table, values=VALUES, topic=lab.topic))
    filled(legacy)
    who = {"reason": "replaces the Kafka Connect sink"}
    for dag in ("accept_gap", "adopt", "compare", "waive"):
        airflow.wait_for_dag(dag)

    def ask(dag: str, **conf: object) -> set[str]:
        run_id = f"{dag}-{secrets.token_hex(4)}"
        trigger(airflow, dag, run_id, **conf)
        return set(finish(airflow, dag, run_id).values())

    def decide(dag: str, **conf: object) -> None:
        """See that the preview changes nothing, then do it."""
        before = legacy.table.metadata_location
        assert ask(dag, stream=lab.stream, **conf) == {"success"}
        assert legacy.table.metadata_location == before
        assert ask(dag, stream=lab.stream, **conf, **who, dry_run=False) == {"success"}
        assert legacy.table.metadata_location != before

    decide("adopt")
    lab.drain()
    lab.produce([b"no json"] * 20)
    blocked = lab.frazil("run", lab.stream, "--json")
    found = re.search(r"--batch (\w{32})", blocked.out)
    assert found is not None, blocked.out
    decide("waive", batch=found[1])
    lab.drain()
    lab.produce(good_values(20, start=100))
    lab.truncate(0, 45)
    decide("accept_gap")
    lab.drain()

    assert ask("accept_gap", stream=lab.stream) == {"failed"}
    assert ask("compare", left=lab.stream, right=lab.table, rows_only=True) == {"success"}
    assert ask("compare", left=lab.stream, right="no.such") == {"failed", "upstream_failed"}
    status, page = airflow.read_page(f"streams/{lab.stream}?partition=0&offset=3")
    assert status == 200
    for told in (
        "below the adoption of the table",
        "gap",
        "admin: " + who["reason"],
        f"{lab.topic}:0:45-50",
    ):
        assert told in page, page
    assert airflow.read_page("streams/nobody")[0] == 404
