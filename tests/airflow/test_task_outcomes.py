"""How a task ends: JSON for the next one, a skip, another try, or red at once."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Never, cast

import pytest
import yaml
from airflow.sdk import DAG, Asset, Context, TriggerRule, XComArg
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from airflow.sdk.execution_time.context import OutletEventAccessors
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from requests.exceptions import JSONDecodeError
from support.lake import Lake, make_stream

from frazil import errors
from frazil.errors import FrazilError, UnexpectedError
from frazil.events import read_notes
from frazil.iceberg.catalog import NewTable
from frazil.ingest.messages import NothingToRead, Published, Verdict
from frazil.ledger import keys
from frazil.observability.freshness import FreshnessReport
from frazil.observability.timeline_table import read_recorded
from frazil.spark.engine import SparkEngine
from frazil.streams.loading import load_streams_of
from frazil_airflow.assets import table_asset
from frazil_airflow.outcomes import choose_outcome, require_fresh, require_passed
from frazil_airflow.tasks import (
    FrazilTask,
    TaskStoppedError,
    frazil_task,
    log_error_last,
    task_defaults,
)
from frazil_stack.drills.catalogue import DrillReport

pytestmark = pytest.mark.airflow
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

PUBLISHED = Published(
    stream="orders",
    table="shop.orders",
    batch_id="b1",
    outcome="PUBLISHED",
    snapshot_id=2**62 + 1,
    epoch=3,
    rows_written=7,
    rows_quarantined=1,
    rows_skipped=0,
    ranges={"orders": {0: (4, 12)}},
)


def make_task(function: Callable[[], object], **settings: object) -> FrazilTask:
    """Put one function into a DAG as a task."""
    with DAG("test", schedule=None, default_args=task_defaults("me")):
        made = frazil_task(function).override(**{"task_id": "step", **settings})()
    return find_operator(made)


def find_operator(made: XComArg) -> FrazilTask:
    """Find the task behind what a call of a task gives."""
    operators = [operator for operator, _ in made.iter_references()]
    return cast("FrazilTask", operators[0])


def run(task: FrazilTask, **form: str) -> tuple[str, OutletEventAccessors]:
    """Run a task as Airflow's runner does, without its supervisor; give its answer and events."""
    events = OutletEventAccessors()
    context = cast(
        "Context", {"outlet_events": events, "task": task, "params": form, "run_id": "manual__1"}
    )
    return cast("str", task.execute(context)), events


def test_a_failure_is_noted_for_the_stream_that_the_form_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))

    def look() -> Never:
        raise make(errors.TargetError)

    with pytest.raises(AirflowFailException):
        run(make_task(look), stream="orders")

    (event,) = read_notes()
    assert (event.stream, event.kind, event.run_id) == ("orders", "failure", "manual__1")


@pytest.mark.parametrize(
    ("kind", "is_recorded"),
    [
        (errors.TargetError, True),
        (errors.KafkaUnavailableError, True),
        (errors.CatalogUnavailableError, False),
        (errors.StorageError, False),
    ],
)
def test_a_failure_is_in_the_timeline_table_at_once_unless_that_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FrazilError], *, is_recorded: bool
) -> None:
    lake = Lake(tmp_path, make_stream())
    use_catalog(monkeypatch, tmp_path, f"sqlite:///{tmp_path}/catalog.db")

    def look() -> Never:
        raise make(kind)

    with pytest.raises((AirflowFailException, FrazilError)):
        run(make_task(look), stream="orders")
    recorded = read_recorded(lake.store, LONG_AGO)
    assert [event.kind for event in recorded] == ["failure"] * is_recorded
    assert bool(read_notes()) != is_recorded

    run(make_task(lambda: None), stream="orders")  # the next task of this worker
    assert [event.stream for event in read_recorded(lake.store, LONG_AGO)] == ["orders"]
    assert not read_notes()


def use_catalog(monkeypatch: pytest.MonkeyPatch, folder: Path, uri: str) -> None:
    """Let tasks find the stream file and the catalog of a folder."""
    document = make_stream().model_dump(mode="json", by_alias=True, exclude_unset=True)
    (folder / "orders.yaml").write_text(yaml.safe_dump(document))
    extra = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
    connection = {"conn_type": "iceberg", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("FRAZIL_STREAMS", str(folder))
    monkeypatch.setenv("FRAZIL_HOME", str(folder))


@pytest.mark.parametrize(
    "uri", ["sqlite:////nowhere/catalog.db", "nosuch://here", "sqlite:///{folder}/catalog.db"]
)
def test_a_note_that_cannot_be_recorded_changes_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    use_catalog(monkeypatch, tmp_path, uri.format(folder=tmp_path))
    other = NewTable(schema=Schema(NestedField(1, "x", StringType())))  # not Frazil's
    Lake(tmp_path, make_stream()).store.create(keys.TIMELINE_TABLE, other)

    def look() -> Never:
        raise make(errors.TargetError)

    with pytest.raises(AirflowFailException, match="what happened"):
        run(make_task(look), stream="orders")
    run(make_task(lambda: None), stream="orders")

    assert len(read_notes()) == 1


def make(error: type[FrazilError]) -> FrazilError:
    return error("what happened", "the next command")


KINDS: list[type[FrazilError]] = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FrazilError) and kind is not FrazilError
]


@pytest.mark.parametrize("error", [kind for kind in KINDS if kind is not errors.SupersededError])
def test_only_what_may_pass_by_itself_is_tried_again(error: type[FrazilError]) -> None:
    outcome = choose_outcome(make(error))

    assert (type(outcome) is error) == error.retryable
    assert isinstance(outcome, AirflowFailException) != error.retryable


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (ValueError("4711"), False),
        (KeyError("4711"), False),
        (TypeError("4711"), False),
        (ConnectionResetError("gone"), True),
        (RuntimeError("broker"), True),
        (JSONDecodeError("a proxy's page", "<html>", 0), True),
    ],
)
def test_an_error_of_the_program_is_not_tried_again(
    error: Exception,
    is_retried: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))

    def look() -> Never:
        raise error

    with pytest.raises(UnexpectedError if is_retried else AirflowFailException) as raised:
        run(make_task(look), stream="orders")

    assert str(error) not in str(raised.value)
    assert [event.kind for event in read_notes()] == ["failure"]


def test_unavailable_is_tried_again_and_a_gap_a_block_or_a_lost_stage_is_not() -> None:
    retryable = {kind.__name__ for kind in KINDS if kind.retryable}

    assert {"KafkaUnavailableError", "CatalogUnavailableError", "StorageError"} < retryable
    assert "CommitContentionError" in retryable
    assert not retryable & {
        "RetentionGapError",
        "BatchBlockedError",
        "QualityFailedError",
        "StageLostError",
        "StageStaleError",
        "ForeignRollbackError",
    }


def test_a_batch_that_another_run_overtook_is_skipped_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step() -> Never:
        raise make(errors.SupersededError)

    with pytest.raises(AirflowSkipException, match="what happened\nNext: the next command"):
        run(make_task(step))

    assert [r.levelname for r in caplog.records if "what happened" in r.getMessage()] == ["WARNING"]


def test_i1_a_red_task_shows_the_kind_of_error_the_facts_and_the_next_command() -> None:
    def step() -> Never:
        raise make(errors.RetentionGapError)

    with pytest.raises(AirflowFailException) as caught:
        run(make_task(step))

    assert str(caught.value) == "RetentionGap: what happened\nNext: the next command"


def test_the_error_text_is_the_last_thing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    log_error_last({"exception": make(errors.KafkaUnavailableError)})

    assert [record.getMessage() for record in caplog.records] == [
        "::endgroup::",
        "KafkaUnavailable: what happened\nNext: the next command",
    ]


def test_an_error_of_no_known_kind_is_noted_with_the_stream_of_its_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    with DAG("ingest__orders", schedule=None) as dag:
        pass
    context = {"exception": ZeroDivisionError("by zero"), "dag": dag, "params": {}, "run_id": "r1"}

    log_error_last(cast("Context", context))

    (event,) = read_notes()
    assert (event.stream, event.kind, event.run_id) == ("orders", "failure", "r1")
    assert event.text.startswith("Unexpected: ZeroDivisionError; ")
    assert "by zero" not in event.model_dump_json()  # a message may quote a value of a record


def test_in_the_dag_of_a_stream_the_form_names_no_other_whose_timeline_gets_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    with DAG("operate__orders", schedule=None) as dag:
        made = frazil_task(lambda: None).override(task_id="begin")()
    form = {"stream": "refunds", "by": "call 555-1234", "reason": "why"}
    run_of_jane = SimpleNamespace(triggering_user_name="jane")
    context = {"dag": dag, "params": form, "run_id": "r1", "dag_run": run_of_jane}

    with pytest.raises(AirflowFailException, match="`by` names another person than jane"):
        find_operator(made).execute(cast("Context", context))
    log_error_last(cast("Context", context | {"exception": ZeroDivisionError()}))

    noted = read_notes()
    assert [event.stream for event in noted] == ["orders", "orders"]
    assert "555-1234" not in "".join(event.model_dump_json() for event in noted)


def test_a_message_leaves_as_json_that_the_next_task_can_parse() -> None:
    verdict = Verdict(stream="orders", batch_id="b1", attempt="a1", outcome="passed")

    answer, _ = run(make_task(lambda: verdict))

    assert Verdict.parse(answer) == verdict


def watch(level: str, next_step: str | None, cause: str = "running") -> FreshnessReport:
    """Answer as a watch does whose stream is at this level."""
    ages = dict.fromkeys(
        ("stream_clock_seconds", "table_clock_seconds", "record_age_seconds", "lag_offsets"), 400
    )
    return FreshnessReport.model_validate(
        {
            "stream": "orders",
            "table": "shop.orders",
            "level": level,
            "cause": cause,
            **ages,
            "time_to_loss_seconds": None,
            "text": "orders: behind",
            "next_step": next_step,
        }
    )


def test_a_table_that_is_too_far_behind_fails_the_watch() -> None:
    with pytest.raises(AirflowFailException) as caught:
        run(make_task(lambda: require_fresh(watch("fail", "look"))))

    assert str(caught.value) == "orders: behind\nNext: look"


@pytest.mark.parametrize("cause", ["kafka_down", "catalog_down", "registry_down"])
def test_a_part_that_may_have_blinked_fails_the_watch_only_after_a_second_look(cause: str) -> None:
    with pytest.raises(errors.UnavailableError) as caught:
        run(make_task(lambda: require_fresh(watch("fail", "look", cause))))

    assert str(caught.value) == "orders: behind\nNext: look"


@pytest.mark.parametrize(("level", "logged"), [("warn", "WARNING"), ("ok", "INFO")])
def test_a_warning_ends_green_and_stands_in_the_log(
    caplog: pytest.LogCaptureFixture, level: str, logged: str
) -> None:
    caplog.set_level("INFO")

    answer, _ = run(make_task(lambda: require_fresh(watch(level, None))))

    assert FreshnessReport.model_validate_json(answer).level == level
    assert (logged, "orders: behind") in [(r.levelname, r.getMessage()) for r in caplog.records]


def test_nothing_to_read_skips_every_later_task() -> None:
    nothing = NothingToRead(stream="orders", table="shop.orders", epoch=3, next_offsets={})
    with DAG("test", schedule=None):
        first = frazil_task(lambda: nothing).override(task_id="plan")()
        second = frazil_task(lambda: None).override(task_id="stage")()
        third = frazil_task(lambda: None).override(task_id="publish")()
        rule = {"task_id": "merge", "trigger_rule": TriggerRule.NONE_FAILED}
        first >> second >> third >> frazil_task(lambda: None).override(**rule)()

    with pytest.raises(DownstreamTasksSkipped) as caught:
        run(find_operator(first))

    assert caught.value.tasks == ["publish", "stage"]


def test_a_step_that_is_cleared_after_its_plan_found_nothing_skips() -> None:
    def stage(planned: str) -> str:
        pytest.fail(f"called with {planned}")

    with DAG("test", schedule=None):
        made = frazil_task(stage)(None)

    with pytest.raises(AirflowSkipException, match="the preceding task returned no planned"):
        run(find_operator(made))


@pytest.fixture
def asset(write_stream: Callable[..., Path]) -> Asset:
    return table_asset(load_streams_of(write_stream("orders"))[0])


def test_a_published_batch_is_announced_with_its_snapshot_and_ranges(asset: Asset) -> None:
    task = make_task(lambda: PUBLISHED, outlets=[asset])

    _, events = run(task)

    assert task.outlets == [asset]
    assert events[asset].extra == {
        "stream": "orders",
        "table": "shop.orders",
        "snapshot_id": 2**62 + 1,
        "epoch": 3,
        "batch_id": "b1",
        "ranges": {"orders": {"0": [4, 12]}},
        "rows": 7,
        "read_as": "shop.orders VERSION AS OF 4611686018427387905",
    }


def test_a_batch_that_was_there_already_is_not_announced_again(asset: Asset) -> None:
    already = PUBLISHED.model_copy(update={"outcome": "ALREADY"})
    task = make_task(lambda: already, outlets=[asset])

    answer, _ = run(task)

    assert task.outlets == []
    assert Published.parse(answer) == already


def test_a_task_for_all_steps_announces_nothing_without_new_records(asset: Asset) -> None:
    nothing = NothingToRead(stream="orders", table="shop.orders", epoch=3, next_offsets={})
    task = make_task(lambda: nothing, outlets=[asset])

    with pytest.raises(DownstreamTasksSkipped):
        run(task)

    assert task.outlets == []


def test_a_stopped_task_takes_the_engines_process_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = f"import os,time; open({str(pid_file)!r},'w').write(str(os.getpid())); time.sleep(60)"
    engine = SparkEngine("sc://127.0.0.1:1")
    task = make_task(lambda: engine._run([sys.executable, "-c", program]))  # noqa: SLF001
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow's runner does
    killer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGTERM))

    killer.start()
    try:
        with pytest.raises(TaskStoppedError):
            run(task)
    finally:
        killer.cancel()
        signal.signal(signal.SIGTERM, before)

    assert subprocess.run(["kill", "-0", pid_file.read_text()], check=False).returncode != 0


def test_a_task_that_is_not_running_cannot_be_stopped_twice() -> None:
    task = make_task(lambda: 1)
    answer, _ = run(task)

    task.on_kill()

    assert run(task)[0] == answer


@pytest.mark.parametrize(
    ("told", "end"),
    [
        ({"skipped": "no jars"}, AirflowSkipException),
        ({"finding": "rows is 99"}, AirflowFailException),
    ],
    ids=["it cannot run here", "it found a loss"],
)
def test_a_drill_that_cannot_run_is_skipped_and_one_that_finds_a_loss_is_red(
    told: dict[str, str], end: type[Exception]
) -> None:
    report = DrillReport(drill="replay", injected="x", seen=(), passed=False, **told)  # type: ignore[arg-type]

    with pytest.raises(end, match=next(iter(told.values()))):
        require_passed(report)
