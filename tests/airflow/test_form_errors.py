"""The errors of a form name its fields, and only those that may be filled in."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from frazil.errors import ConfigurationError
from frazil.recovery.backfill_rules import validate_one_selection
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback_rules import validate_one_target

pytestmark = pytest.mark.airflow

Refuse = Callable[..., str]
TIME, BEFORE = "2026-01-31T08:00:00Z", "2025-01-31T08:00:00Z"


@pytest.fixture
def refuse(write_stream: Callable[..., Path], parse: Callable[[], DagBag]) -> Refuse:
    """Run the first task of a DAG as Airflow does, with a form that is refused."""
    write_stream("orders")
    dags = parse().dags

    def run(dag_id: str, form: Mapping[str, object]) -> str:
        dag = dags[dag_id]
        (task,) = dag.roots
        params = {**deepcopy(dag.params).dump(), **form}
        user = SimpleNamespace(triggering_user_name="jane")
        given = {"params": params, "run_id": "r", "dag": dag, "task": task, "dag_run": user}
        with pytest.raises(AirflowFailException) as caught:
            task.execute(cast("Context", given))
        return str(caught.value)

    return run


TARGETS = "exactly one of to_snapshot, to_time, to_offset, answer; given: "
REFUSED = [
    ("recover", {}, TARGETS + "none"),
    ("recover", {"to_snapshot": "1", "to_time": TIME}, TARGETS + "to_snapshot and to_time"),
    ("recover", {"answer": "skip", "accept_gap": True}, "accept_gap is for a rollback to a "),
    ("replay", {}, "needs either offsets or since and until; given: neither"),
    ("backfill", {"offsets": ["orders:0:1-3"], "since": TIME}, "takes offsets, or since and until"),
    ("operate__orders", {}, "needs either offsets or since and until; given: neither"),
    ("operate__orders", {"action": "waive"}, "Missing field: batch."),
    ("operate__orders", {"reason": "why"}, "action replay takes no reason."),
    ("operate__orders", {"keys": ["id=1"]}, "action replay takes no keys."),
    ("replay", {"reason": "why"}, "Unknown field: reason."),
    ("replay", {"by": "jane"}, "Unknown field: by."),
]


@pytest.mark.parametrize(("dag_id", "form", "words"), REFUSED)
def test_an_error_names_the_fields_of_the_form(
    refuse: Refuse, dag_id: str, form: dict[str, object], words: str
) -> None:
    own = {} if dag_id.startswith("operate") else {"stream": "orders"}

    text = refuse(dag_id, own | form)

    assert words in text
    assert not [word for word in text.split() if word.startswith("--")]
    assert ("by" in form) or "Unknown field: by" not in text


@pytest.mark.parametrize(
    ("dag_id", "form", "fields"),
    [
        ("waive", {"stream": "orders"}, "stream, reason, dry_run, batch"),
        ("operate__orders", {"action": "waive"}, "reason, dry_run, batch"),
        ("operate__orders", {"keys": ["id=1"]}, "offsets, since, until, dry_run"),
    ],
)
def test_the_next_step_lists_the_fields_that_a_user_may_fill_in(
    refuse: Refuse, dag_id: str, form: dict[str, object], fields: str
) -> None:
    assert refuse(dag_id, form).endswith(f"trigger the DAG again with these fields: {fields}")


def test_on_the_command_line_the_same_errors_name_options() -> None:
    with pytest.raises(
        ConfigurationError, match=r"one of --to-snapshot, .* --new-table; given: no"
    ):
        validate_one_target(RecoverRequest(stream="orders"))
    with pytest.raises(ConfigurationError, match="takes --offsets, or --since and --until"):
        validate_one_selection(("orders:0:1-3",), TIME, None)
