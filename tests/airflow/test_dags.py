"""Every DAG by its id, with its tasks, their order and their settings."""

import inspect
import runpy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Asset, TriggerRule, WeightRule
from airflow.sdk.bases.decorator import DecoratedOperator
from airflow.sdk.exceptions import ParamValidationError
from airflow.utils.types import DagRunType
from pydantic import JsonValue

from frazil.errors import ConfigurationError
from frazil.migration.messages import CompareRequest, MoveRequest
from frazil_airflow.dag_loading import load_streams_to_parse
from frazil_airflow.params import read_erasure, read_form

pytestmark = pytest.mark.airflow

WriteStream = Callable[..., Path]
Parse = Callable[[], DagBag]
Dags = dict[str, DAG]

DAGS = Path(__file__).parents[2] / "dags"
INGEST = ("plan", "stage", "check", "publish")
MAINTAIN = ("compact", "expire_snapshots", "remove_orphans", "expire_rows", "report")


@pytest.fixture
def dags(write_stream: WriteStream, parse: Parse) -> Dags:
    write_stream("orders")
    write_stream("refunds", schedule="@hourly")
    return parse().dags


def test_every_stream_has_its_three_dags_and_the_fleet_a_watch_and_a_review(dags: Dags) -> None:
    found = {dag_id: {task.task_id for task in dag.tasks} for dag_id, dag in dags.items()}

    assert {dag_id: tasks for dag_id, tasks in found.items() if "orders" not in dag_id} == {
        "ingest__refunds": set(INGEST),
        "operate__refunds": {"begin", "rewind", "finish"},
        "maintain__refunds": set(MAINTAIN),
        "replay_dead_letters": {"check_parameters", "redrive"},
        "recover": {"preview", "rewind"},
        "replay": {"preview", "replay"},
        "move_cluster": {"preview", "move"},
        "backfill": {"preview", "list_windows", "fill"},
        "erase": {"preview", "erase"},
        "accept_gap": {"accept"},
        "waive": {"waive"},
        "merge": {"preview", "merge"},
        "adopt": {"adopt"},
        "compare": {"compare", "judge"},
        "verify_source": {"verify", "judge"},
        "watch": {"watch_fleet", "watch_stream"},
        "readiness": {"judge_stream"},
        "drill": {"run_drill"},
        "review_schema": {"show", "decide"},
    }
    assert found["ingest__orders"] == set(INGEST)


def test_a_batch_is_planned_staged_checked_and_published_in_this_order(dags: Dags) -> None:
    dag = dags["ingest__orders"]

    upstream = {task: dag.get_task(task).get_flat_relative_ids(upstream=True) for task in INGEST}

    assert upstream == {task: set(INGEST[:n]) for n, task in enumerate(INGEST)}


def test_a_stream_may_have_one_task_for_all_steps(write_stream: WriteStream, parse: Parse) -> None:
    path = write_stream("orders", schedule="continuous")
    upsert = "{name: shop.orders, mode: upsert, id_columns: [id]}"
    text = path.read_text().replace("{name: shop.orders}", upsert)
    path.write_text(text.replace('"continuous"', "continuous, tasks: one"))

    dag = parse().dags["ingest__orders"]

    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert upstream == {"wait": set(), "ingest": {"wait"}, "merge": {"ingest"}}
    assert [task.task_id for task in dag.tasks if task.outlets] == ["ingest", "merge"]
    assert dag.get_task("ingest").priority_weight > 1  # before maintenance


def test_a_state_table_is_merged_behind_a_batch_and_without_new_records(
    write_stream: WriteStream, parse: Parse
) -> None:
    path = write_stream("orders")
    upsert = "{name: shop.orders, mode: upsert, id_columns: [id]}"
    path.write_text(path.read_text().replace("{name: shop.orders}", upsert))

    merge = parse().dags["ingest__orders"].get_task("merge")

    assert merge.upstream_task_ids == {"publish"}
    assert merge.trigger_rule == TriggerRule.NONE_FAILED
    uris = {task.task_id: [o.uri for o in task.outlets] for task in merge.dag.tasks}
    assert {task: found for task, found in uris.items() if found} == {
        "publish": ["iceberg://iceberg_default/shop.orders__changes"],
        "merge": ["iceberg://iceberg_default/shop.orders"],
    }


def test_a_state_table_that_is_merged_by_hand_is_merged_by_the_manual_dag_alone(
    write_stream: WriteStream, parse: Parse
) -> None:
    path = write_stream("orders")
    upsert = "{name: shop.orders, mode: upsert, id_columns: [id]}\nmerge: {schedule: manual}"
    path.write_text(path.read_text().replace("{name: shop.orders}", upsert))

    dags = parse().dags

    assert "merge" not in dags["ingest__orders"].task_ids
    assert dags["merge"].get_task("merge").upstream_task_ids == {"preview"}


def test_a_continuous_stream_waits_in_the_triggerer_and_then_goes_on(
    write_stream: WriteStream, parse: Parse
) -> None:
    write_stream("orders", schedule="continuous")

    dag = parse().dags["ingest__orders"]

    wait = dag.get_task("wait")
    assert (str(dag.schedule), dag.max_active_runs) == ("@continuous", 1)
    assert wait.start_from_trigger
    assert wait.start_trigger_args.trigger_kwargs == {"stream": "orders"}
    assert wait.downstream_task_ids == {"plan"}
    assert {task.task_id for task in dag.tasks} == {"wait", *INGEST}


def test_maintenance_goes_on_after_a_failed_task_and_the_run_stays_red(dags: Dags) -> None:
    dag = dags["maintain__orders"]

    chain = [dag.get_task(task).upstream_task_ids for task in MAINTAIN]
    rules = [dag.get_task(task).trigger_rule for task in MAINTAIN]

    assert chain == [
        set(),
        {"compact"},
        {"expire_snapshots"},
        {"remove_orphans"},
        set(MAINTAIN[:4]),
    ]
    assert rules == [
        TriggerRule.ALL_SUCCESS,
        TriggerRule.ALL_DONE,
        TriggerRule.ALL_DONE,
        TriggerRule.ALL_DONE,
        TriggerRule.ALL_SUCCESS,
    ]


def test_without_a_schedule_maintenance_comes_each_hour_in_the_streams_own_minute(
    write_stream: WriteStream, parse: Parse
) -> None:
    for name in ("orders", "refunds"):
        path = write_stream(name)
        path.write_text(path.read_text().partition("maintenance:")[0])

    dags = parse().dags

    schedules = [str(dags[f"maintain__{name}"].schedule) for name in ("orders", "refunds")]
    assert schedules == ["1 * * * *", "33 * * * *"]


def test_schedules_come_from_the_stream_file_and_never_overlap_or_catch_up(dags: Dags) -> None:
    schedules = {dag_id: str(dag.schedule) for dag_id, dag in dags.items()}

    assert schedules == {
        "ingest__orders": "*/5 * * * * 2",  # at the stream's own second
        "ingest__refunds": "@hourly",
        "maintain__orders": "41 3 * * *",
        "maintain__refunds": "41 3 * * *",
        "operate__orders": "None",
        "operate__refunds": "None",
        "replay_dead_letters": "None",
        "recover": "None",
        "replay": "None",
        "move_cluster": "None",
        "backfill": "None",
        "erase": "None",
        "accept_gap": "None",
        "waive": "None",
        "merge": "None",
        "adopt": "None",
        "compare": "None",
        "verify_source": "None",
        "watch": "* * * * *",
        "readiness": "@daily",
        "drill": "None",
        "review_schema": "None",
    }
    assert {dag.catchup for dag in dags.values()} == {False}
    scheduled = [dag for dag in dags.values() if dag.schedule is not None]
    assert {dag.max_active_runs for dag in scheduled} == {1}
    assert all(dag.dagrun_timeout for dag in scheduled)


def test_only_what_writes_on_a_schedule_waits_for_the_sites_setting(dags: Dags) -> None:
    waits = {dag_id for dag_id, dag in dags.items() if dag.is_paused_upon_creation is not False}

    assert {dag_id.partition("__")[0] for dag_id in waits} == {"ingest", "maintain"}


def test_tasks_wait_in_no_pool_that_a_site_would_have_to_create(dags: Dags) -> None:
    assert {task.pool for dag in dags.values() for task in dag.tasks} == {"default_pool"}


def test_a_site_may_give_each_table_a_pool(
    write_stream: WriteStream, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_TABLE_POOLS", "true")
    write_stream("orders")
    dags = parse().dags
    tasks = [*dags["ingest__orders"].tasks, *dags["maintain__orders"].tasks]

    assert {task.task_id: task.pool for task in tasks} == {
        "plan": "default_pool",
        "check": "default_pool",
        **dict.fromkeys(("stage", "publish", *MAINTAIN), "frazil_shop_orders"),
    }


def test_tasks_are_tried_again_after_ten_seconds_and_belong_to_the_streams_owner(
    dags: Dags,
) -> None:
    tasks = dags["ingest__orders"].tasks

    assert {(t.retries, t.retry_delay, t.max_retry_delay, t.owner) for t in tasks} == {
        (3, timedelta(seconds=10), timedelta(minutes=2), "shop@example.org")
    }


def test_the_watch_looks_once_more_ten_seconds_later(dags: Dags) -> None:
    tasks = dags["watch"].tasks

    assert {(task.retries, task.retry_delay) for task in tasks} == {(1, timedelta(seconds=10))}


def test_a_batch_that_is_nearly_done_goes_before_new_ones_and_before_maintenance(
    dags: Dags,
) -> None:
    tasks = [dags["ingest__orders"].get_task(task) for task in INGEST]
    tasks += dags["maintain__orders"].tasks

    assert {task.weight_rule for task in tasks} == {WeightRule.ABSOLUTE}
    assert [task.priority_weight for task in tasks] == [2, 3, 4, 5, 1, 1, 1, 1, 1]


def test_only_publish_announces_the_table(dags: Dags) -> None:
    dag = dags["ingest__orders"]

    outlets = {task.task_id: task.outlets for task in dag.tasks if task.outlets}

    uri = "iceberg://iceberg_default/shop.orders"
    extra: dict[str, JsonValue] = {"stream": "orders", "owner": "shop@example.org"}
    expected = Asset(name="shop.orders", uri=uri, group="frazil", extra=extra)
    assert outlets == {"publish": [expected]}


@pytest.mark.parametrize(
    "word", ["**What.**", "**When.**", "**Inputs.**", "retry", "**How to stop"]
)
def test_every_dag_says_what_when_with_which_inputs_what_a_retry_does_and_how_to_stop(
    dags: Dags, word: str
) -> None:
    assert [dag_id for dag_id, dag in dags.items() if word not in (dag.doc_md or "")] == []


def test_every_task_explains_itself(dags: Dags) -> None:
    silent = [task for dag in dags.values() for task in dag.tasks if not task.doc_md]

    assert silent == []


def test_dags_are_found_by_stream_and_by_owner(dags: Dags) -> None:
    assert dags["maintain__orders"].tags == {"frazil", "orders", "shop@example.org"}


def test_a_tasks_own_parse_reads_no_other_stream_file(
    write_stream: WriteStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stream("orders")
    write_stream("refunds").write_text("not: a stream")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "ingest__orders")

    assert [s.stream for s in load_streams_to_parse("ingest")] == ["orders"]
    assert load_streams_to_parse("maintain") == ()


def test_one_window_of_a_backfill_is_filled_at_a_time_over_all_runs(dags: Dags) -> None:
    assert dags["backfill"].get_task("fill").partial_kwargs["max_active_tis_per_dag"] == 1


WRITE_NOTHING = {"compare", "drill", "readiness", "verify_source"}
"""Forms of what changes no table; a drill has a table of its own."""


def list_forms(dags: Dags) -> dict[str, DAG]:
    """Return the DAGs that ask for something."""
    return {dag_id: dag for dag_id, dag in dags.items() if dag.params}


def test_a_form_is_typed_explained_and_dry_by_default(dags: Dags) -> None:
    forms = {dag_id: dag.params for dag_id, dag in list_forms(dags).items()}

    fields = [params.get_param(name) for params in forms.values() for name in params]
    assert all(field.schema["type"] and field.description for field in fields)
    free = [f for f in fields if f.schema["type"] != "boolean" and "enum" not in f.schema]
    told = [
        f.description for f in free if "`" not in f.description and not f.schema.get("examples")
    ]
    assert told == [], "a field that is filled in freely has an example"
    streams = [params.get_param("stream") for params in forms.values() if "stream" in params]
    assert {"orders" in stream.schema["examples"] for stream in streams} == {True}
    dry = {dag_id for dag_id, params in forms.items() if params.get("dry_run") is True}
    # A review of a schema writes what a person answers to its question, and nothing else.
    scheduled = {dag_id for dag_id in forms if dag_id.startswith("maintain__")}
    assert len(scheduled) == 2
    assert dry == forms.keys() - WRITE_NOTHING - {"review_schema"} - scheduled


def test_every_first_task_refuses_a_field_that_its_form_does_not_have(dags: Dags) -> None:
    forms = list_forms(dags)

    told = {}
    for dag_id, dag in forms.items():
        (first,) = dag.roots
        preview = cast("DecoratedOperator", first).python_callable
        given = {"params": {**dag.params.dump(), "stream": "orders", "dry_ruin": True}}
        asked = inspect.signature(preview).parameters
        context = {"stream": "orders", "run_id": "r"} | given
        with pytest.raises(ConfigurationError) as refused:
            preview(**{name: context[name] for name in asked})
        of_action = dag_id.startswith("operate__")
        words = "action replay takes no dry_ruin." if of_action else "Unknown field: dry_ruin."
        told[dag_id] = words in refused.value.facts

    assert told == dict.fromkeys(forms, True)


def test_a_form_for_dead_letters_that_is_filled_in_wrongly_is_refused(dags: Dags) -> None:
    params = dags["replay_dead_letters"].params

    params["stream"] = "orders"
    params["offsets"] = ["orders:0:5-9"]
    params["reasons"] = ["type_mismatch"]
    with pytest.raises(ParamValidationError):
        params["offsets"] = ["orders 5 to 9"]
    with pytest.raises(ParamValidationError):
        params["reasons"] = ["type_missmatch"]


@pytest.mark.parametrize("given", [None, ["orders:0:5-9", "orders:1:0-4"]])
def test_a_form_for_a_comparison_may_name_offsets(dags: Dags, given: list[str] | None) -> None:
    params = dags["compare"].params
    params["left"], params["right"], params["offsets"] = "orders", "legacy.orders", given

    request = read_form(CompareRequest, params.dump())

    assert request.offsets == tuple(given or ())
    with pytest.raises(ParamValidationError):
        params["offsets"] = ["orders 5 to 9"]


@pytest.mark.parametrize("dag_id", ["erase", "operate__orders"])
def test_a_form_for_an_erasure_takes_an_empty_text_as_a_value(dags: Dags, dag_id: str) -> None:
    params = dags[dag_id].params
    given = ["tenant=", "id=x", "note=a\nb"]
    params["keys"] = given

    request = read_erasure({"stream": "orders", "keys": params.dump()["keys"]})

    assert request.keys == tuple(given)
    for unclear in ("tenant", "=x", ""):
        with pytest.raises(ParamValidationError):
            params["keys"] = [unclear]


def test_a_form_for_a_move_takes_offsets_of_one_form_and_is_looked_at_first(dags: Dags) -> None:
    params = dags["move_cluster"].params

    params["stream"] = "orders"
    params["next"] = ["orders:0:4711"]
    request = read_form(MoveRequest, params.dump())
    with pytest.raises(ParamValidationError):
        params["next"] = ["orders 0 4711"]

    assert (request.next, request.old_connection, request.dry_run) == (
        ("orders:0:4711",),
        None,
        True,
    )
    assert dags["move_cluster"].get_task("move").upstream_task_ids == {"preview"}


def test_a_rollback_is_looked_at_then_approved_then_done(dags: Dags) -> None:
    dag = dags["recover"]

    tasks = ("preview", "rewind")
    upstream = {task: dag.get_task(task).get_flat_relative_ids(upstream=True) for task in tasks}

    assert upstream == {task: set(tasks[:n]) for n, task in enumerate(tasks)}


def test_a_dry_run_can_be_triggered_without_a_reason(dags: Dags) -> None:
    decided = {dag_id: dag for dag_id, dag in dags.items() if "reason" in dag.params}

    assert {"erase", "recover", "accept_gap", "waive", "adopt"} <= decided.keys()
    for dag in decided.values():
        param = dag.params.get_param("reason")
        # The form requires every field whose type does not include null.
        assert "null" in param.schema["type"]
        assert param.resolve() is None
        assert "by" not in dag.params  # the user who triggers the run decides
        assert dag.params["dry_run"] is True


def test_airflows_backfill_is_refused_and_the_ingest_dag_names_the_other(dags: Dags) -> None:
    started = {DagRunType.MANUAL, DagRunType.OPERATOR_TRIGGERED}
    of_producers = {DagRunType.ASSET_MATERIALIZATION}

    for name, dag in dags.items():
        scheduled = {DagRunType.SCHEDULED} if dag.timetable.can_be_scheduled else set()
        extra = of_producers if name.startswith("ingest__") else set()
        assert set(dag.allowed_run_types or ()) == started | scheduled | extra, name
    ingest = dags["ingest__orders"]
    assert "trigger the DAG\n`backfill`" in str(ingest.doc_md)
    assert "trigger the DAG backfill, not Airflow's Backfill" in str(ingest.description)


REVIEWED = {"impossible": [], "barred": "", "policy": "review"}


@pytest.mark.parametrize(
    ("facts", "offered"),
    [
        ({}, ["Accept", "Quarantine", "Stop"]),
        ({"barred": "no registry"}, ["Accept", "Stop"]),
        ({"impossible": ["a drop"]}, ["Stop"]),
        ({"policy": "fail"}, ["Accept", "Stop"]),
    ],
    ids=["all", "no quarantine", "not possible in place", "the policy refuses changes"],
)
def test_a_review_offers_only_answers_that_can_be_applied(
    facts: dict[str, object], offered: list[str]
) -> None:
    module = runpy.run_path(str(DAGS / "review_schema_dag.py"))

    assert module["list_options"](REVIEWED | facts) == offered
