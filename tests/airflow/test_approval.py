"""A rollback waits for a second person only where it takes much."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG, BaseOperator, Context, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.connections import lookup
from frazil.errors import TargetError
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil.recovery.rollback import choose_approval_rows
from frazil_airflow.approval import RollBack
from frazil_airflow.connections import find_airflow_connection

pytestmark = pytest.mark.airflow

REPO = Path(__file__).parents[2]
SOURCES = [*(REPO / "dags").glob("*.py"), *(REPO / "include" / "frazil_airflow").rglob("*.py")]


def plan_of(**facts: object) -> RecoveryPlan:
    """Plan to go back to snapshot 1; a hundred rows may go without a word."""
    request = RecoverRequest(stream="orders", to_snapshot=1)
    plain = {"target_id": 1, "rows_removed": 100, "text": "main goes back", "head": 2, **facts}
    limit = {"request": request, "approval_rows": 100}
    given = {"stream": "orders", "table": "shop.orders", **limit, **plain}
    return RecoveryPlan.model_validate(given)


MEANT = RecoverRequest(stream="orders", to_snapshot=1, by="jane", reason="why", dry_run=False)
PLANNED = plan_of(rows_removed=101).model_dump_json()


@pytest.mark.parametrize(
    ("plan", "is_asked"),
    [
        (plan_of(), False),
        (plan_of(rows_removed=101), True),
        (plan_of(rows_removed=None), True),
        (plan_of(rows_removed_earlier=1), True),
        (plan_of(rows_removed=-1, rows_removed_earlier=200), False),
        (plan_of(rows_removed_earlier=None), True),
        (plan_of(foreign_snapshots=1), True),
        (plan_of(lost={"orders": {"orders": {0: (1, 2)}}}), True),
        (plan_of(target_id=None, rows_removed=None), False),
        (plan_of(target_id=None, request=RecoverRequest(stream="orders", answer="skip")), True),
    ],
    ids=[
        "as many rows as may go",
        "one row more",
        "nobody knows how many rows",
        "one row more, with those of earlier rollbacks",
        "rows that come back, after others that went",
        "nobody knows how many rows went before",
        "changes by others that nothing brings back",
        "records that Kafka no longer holds",
        "an answer to a halt",
        "an answer that leaves records out",
    ],
)
def test_a_second_person_is_asked(plan: RecoveryPlan, is_asked: bool) -> None:  # noqa: FBT001
    assert plan.needs_approval is is_asked


def test_the_question_tells_what_earlier_rollbacks_removed() -> None:
    task, dry = approval_task(), plan_of(rows_removed_earlier=1)
    task.plan = lambda _: dry.model_copy(update={"request": MEANT})

    with pytest.raises(KeyError):  # there is no Airflow that could ask
        task.execute(Context())

    assert "remove 100 rows, after 1 row by rollbacks of the last 24 hours" in task.subject


def test_an_action_that_is_no_rollback_passes_by() -> None:
    with DAG("d", start_date=datetime(2026, 1, 31), schedule=None):  # noqa: DTZ001
        task = RollBack(task_id="rewind", plan=lambda _: None)

    assert task.execute(Context()) is None


def test_the_approval_task_asks_airflow_for_connections_and_ends_with_our_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    resolvers: list[object] = []
    monkeypatch.setattr(lookup, "_resolvers", resolvers)

    def plan(_: Context) -> RecoveryPlan:
        assert resolvers == [find_airflow_connection]
        raise TargetError("no such snapshot", "frazil snapshots orders")

    with DAG("d", start_date=datetime(2026, 1, 31), schedule=None):  # noqa: DTZ001
        task = RollBack(task_id="rewind", plan=plan)

    with pytest.raises(AirflowFailException, match="no such snapshot"):
        task.execute(Context(params={"stream": "orders"}, run_id="r"))  # type: ignore[typeddict-item]


def test_a_dry_run_whose_rollback_is_cleared_asks_for_no_approval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))

    with pytest.raises(AirflowFailException, match="this plan is a dry run"):
        approval_task().execute(Context(params={}, run_id="r"))  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("asked", "limit"), [(None, 30), (1_000_000, 30), (2, 2)], ids=["as it is", "laxer", "stricter"]
)
def test_who_asks_may_be_stricter_than_the_site_and_never_laxer(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, limit: int
) -> None:
    monkeypatch.setenv("FRAZIL_APPROVAL_ROWS", "30")

    assert choose_approval_rows(RecoverRequest(stream="orders", approval_rows=asked)) == limit


def answer_of(choice: str, *names: str) -> dict[str, object]:
    """Build the event by which Airflow reports an answer to the task."""
    user = {"id": names[0], "name": names[-1]} if names else None
    given = {"responded_by_user": user, "responded_at": datetime(2026, 1, 31, tzinfo=UTC)}
    return {"chosen_options": [choice], "params_input": {}, "timedout": False, **given}


def approval_task() -> RollBack:
    with DAG("d", start_date=datetime(2026, 1, 31), schedule=None):  # noqa: DTZ001
        return RollBack(task_id="rewind", plan=lambda _: plan_of(rows_removed=101))


def context_of(triggered_by: str | None) -> Context:
    return Context(dag_run=SimpleNamespace(triggering_user_name=triggered_by))  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("names", "asked_by", "words"),
    [
        (["jane"], "jane", "triggered by jane and approved by jane"),
        (["7", "jane"], "jane", "approved by jane"),
        (["jane", "Jane Doe"], "jane", "approved by Jane Doe"),
        ([], "jane", "approved by an unknown user"),
        (["joe"], None, "an unknown user and approved by joe"),
    ],
    ids=["one person", "one name", "one id", "no user", "triggered by no user"],
)
def test_only_a_second_person_s_answer_lets_a_big_rollback_go_on(
    names: list[str], asked_by: str | None, words: str
) -> None:
    event = answer_of("Approve", *names)
    with pytest.raises(AirflowFailException, match=words):
        approval_task().execute_complete(context_of(asked_by), event, PLANNED)


def test_a_rejection_names_who_rejected_and_rolls_nothing_back() -> None:
    with pytest.raises(AirflowSkipException, match=r"Rejected by joe\. Nothing was written"):
        approval_task().execute_complete(context_of("jane"), answer_of("Reject", "joe"), PLANNED)


def find_sources(task: BaseOperator | MappedOperator) -> list[object]:
    """List the tasks whose results a task is given; of a mapped one, the tasks before it."""
    if isinstance(task, MappedOperator):
        return [*task.upstream_list]
    return [source for source, _ in XComArg.iter_xcom_references(task)]


def test_no_task_is_given_what_a_person_answered(
    write_stream: Callable[..., Path], parse: Callable[[], DagBag]
) -> None:
    write_stream("orders")
    dags = parse().dags

    asking = [t for dag in dags.values() for t in dag.tasks if isinstance(t, HITLOperator)]
    given = [
        (task.task_id, source.task_id)
        for dag in dags.values()
        for task in dag.tasks
        for source in find_sources(task)
        if isinstance(source, HITLOperator)
    ]

    assert {f"{task.dag_id}.{task.task_id}" for task in asking} == {
        "recover.rewind",
        "operate__orders.rewind",
        "review_schema.decide",
    }
    assert given == []
    assert not any("xcom_pull" in path.read_text() for path in SOURCES)


def test_a_question_without_an_answer_in_time_is_no_rejection_and_is_not_asked_again() -> None:
    task = approval_task()

    with pytest.raises(AirflowFailException, match="Neither approved nor rejected"):
        task.execute_complete(Context(), {"error": "late", "error_type": "timeout"})
