"""`operate__<stream>`: the actions of the fleet's DAGs, for one stream."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Context
from airflow.sdk.bases.decorator import DecoratedOperator

from frazil.errors import ConfigurationError, FrazilError
from frazil_airflow.dag_loading import load_function
from frazil_airflow.params import choose_fields
from frazil_airflow.tasks import read_params

pytestmark = pytest.mark.airflow

WriteStream = Callable[..., Path]
Parse = Callable[[], DagBag]
Dags = dict[str, DAG]
FORM = {"action": "replay", "dry_run": True, "reason": None, "by": "jane"}


@pytest.fixture
def dags(write_stream: WriteStream, parse: Parse) -> Dags:
    write_stream("orders")
    path = write_stream("customers")
    upsert = "{name: shop.customers, mode: upsert, id_columns: [id]}"
    path.write_text(path.read_text().replace("{name: shop.customers}", upsert))
    return parse().dags


def function_of(dags: Dags, task: str) -> Callable[..., object]:
    """Return the function of a task of `operate__orders`."""
    return cast("DecoratedOperator", dags["operate__orders"].get_task(task)).python_callable


def actions_of(dags: Dags, stream: str) -> list[str]:
    """List the actions of the form."""
    return list(dags[f"operate__{stream}"].params.get_param("action").schema["enum"])


@pytest.mark.parametrize("stream", ["orders", "customers"])
def test_the_form_has_every_field_of_every_action(dags: Dags, stream: str) -> None:
    form = set(dags[f"operate__{stream}"].params)

    fields = {name for action in actions_of(dags, stream) for name in dags[action].params}

    assert form == fields - {"stream"} | {"action"}


def test_only_a_stream_with_a_state_table_is_merged(dags: Dags) -> None:
    appended, merged = (actions_of(dags, stream) for stream in ("orders", "customers"))

    assert {*merged} - {*appended} == {"merge"}
    with pytest.raises(FrazilError, match="and no state table"):
        function_of(dags, "begin")(stream="orders", params=FORM | {"action": "merge"}, run_id="r")


def test_every_action_has_the_functions_that_begin_and_finish_it(dags: Dags) -> None:
    actions = inspect.getclosurevars(function_of(dags, "begin")).globals["ACTIONS"]

    for action, names in actions.items():
        named = filter(None, names)
        given = [set(inspect.signature(load_function(action, n)).parameters) for n in named]
        assert given[0] == {"params", "run_id"}
        assert given[-1] <= {"planned", "params", "run_id"}


def test_a_field_of_another_action_is_refused_by_name(dags: Dags) -> None:
    with pytest.raises(ConfigurationError, match="action replay takes no keys"):
        function_of(dags, "begin")(stream="orders", params=FORM | {"keys": ["id=1"]}, run_id="r")


def test_only_what_is_filled_in_reaches_the_action() -> None:
    filled = {"approval_rows": 0, "offsets": [], "since": None, "accept_gap": False}

    assert choose_fields("orders", FORM | filled) == {
        "approval_rows": 0,
        "stream": "orders",
        "dry_run": True,
    }
    assert choose_fields("orders", FORM | {"reason": "why"})["by"] == "jane"


def test_another_stream_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="this DAG operates orders only"):
        choose_fields("orders", FORM | {"stream": "refunds"})
    with pytest.raises(ConfigurationError, match="operates orders only"):
        choose_fields("orders", FORM | {"stream": ["refunds"]})


def context_of(user: str | None, **params: object) -> Context:
    """Return what a task knows of a run that a user triggered."""
    run = SimpleNamespace(triggering_user_name=user)
    return Context(dag_run=run, params=params)  # type: ignore[typeddict-item]


def test_who_decides_is_the_user_who_triggered_the_run() -> None:
    assert read_params(context_of("jane", reason="why"))["by"] == "jane"
    assert read_params(context_of(None, reason="why"))["by"] == ""
    assert read_params(context_of("jane", offsets=[])) == {"offsets": []}


def test_a_decision_in_the_name_of_another_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="`by` names another person than jane"):
        read_params(context_of("jane", reason="why", by="john"))
    with pytest.raises(ConfigurationError, match="triggered this run"):
        read_params(context_of("jane", reason="why", by=["jane"]))


def test_a_site_may_leave_these_dags_out(
    write_stream: WriteStream, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_OPERATE_DAGS", "false")
    write_stream("orders")

    assert [name for name in parse().dags if name.startswith("operate")] == []
