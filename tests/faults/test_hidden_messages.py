"""I-6: an exception of another program that quotes a record or a secret: no place shows its words.

Each is raised as the program raises it; what people read is searched for the planted words.
"""

import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Never

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException
from confluent_kafka import KafkaError, KafkaException
from pydantic import TypeAdapter
from pyiceberg.expressions import literal
from pyiceberg.types import LongType

from frazil.errors import FrazilError, hide_message
from frazil.events import read_notes
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import raise_on_conflict
from frazil.observability.parallel_reads import read_all
from frazil.spark.engine import JobExit, write_output
from frazil.spark.job_errors import encode_job_error, parse_job_error
from frazil_airflow.tasks import frazil_task, log_error_last
from frazil_cli.main import fail_unexpectedly
from frazil_cli.output import _explain_failure

pytestmark = pytest.mark.airflow

PLANTED = "planted-4711"


def cast_by_pyiceberg() -> Never:
    literal(PLANTED).to(LongType())
    raise AssertionError


def cast_by_pyarrow() -> Never:
    pa.array([PLANTED]).cast(pa.int64())
    raise AssertionError


def convert_by_pandas() -> Never:
    pa.array([PLANTED]).to_pandas().astype("int64")
    raise AssertionError


def refuse_by_kafka() -> Never:
    raise KafkaException(KafkaError(KafkaError._FAIL, f"sasl.password={PLANTED}"))  # noqa: SLF001


def validate_by_pydantic() -> Never:
    TypeAdapter(int).validate_python(PLANTED)
    raise AssertionError


def answer_by_spark() -> Never:
    raise RuntimeError(f"Job aborted: java.lang.NumberFormatException: {PLANTED}\n\tat a.B.c(B:1)")


def look_up() -> Never:
    raise KeyError(PLANTED)


RAISING = [
    cast_by_pyiceberg,
    cast_by_pyarrow,
    convert_by_pandas,
    refuse_by_kafka,
    validate_by_pydantic,
    answer_by_spark,
    look_up,
]
every_program = pytest.mark.parametrize("fail", RAISING, ids=lambda f: f.__name__)


def catch(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any program
        fail()
    return caught.value


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    monkeypatch.delenv("FRAZIL_DEBUG", raising=False)


@every_program
def test_the_planted_words_are_in_the_exception(fail: Callable[[], object]) -> None:
    assert PLANTED in str(catch(fail))


@every_program
def test_i6_no_log_of_a_task_and_no_timeline_shows_them(
    fail: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with DAG("ingest__orders", schedule=None) as dag:
        made = frazil_task(fail)()
    (task,) = (operator for operator, _ in made.iter_references())
    context: Context = {"dag": dag, "params": {}, "run_id": "r1", "task": task}  # type: ignore[typeddict-item]

    error = catch(lambda: task.execute(context))
    log_error_last({**context, "exception": error})

    shown = "".join(traceback.format_exception(error))
    said = "\n".join([shown, *(record.getMessage() for record in caplog.records)])
    (event,) = read_notes()
    assert PLANTED not in said + event.model_dump_json()
    assert isinstance(error, AirflowException | FrazilError)
    assert type(catch(fail)).__name__ in event.text
    assert " at include/frazil_airflow/tasks.py:" in said


@every_program
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_i6_no_command_shows_them(
    fail: Callable[[], object],
    as_json: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["frazil", "status", *["--json"] * as_json])
    with pytest.raises(SystemExit):
        fail_unexpectedly(catch(fail))
    found = read_all({"orders": fail}, 10)["orders"]
    assert isinstance(found, Exception)
    listed = _explain_failure("orders", found)

    printed = capsys.readouterr()
    assert PLANTED not in printed.out + printed.err + str(listed)
    assert type(catch(fail)).__name__ in printed.out + printed.err
    assert "FRAZIL_DEBUG=1" in listed.next_step


@every_program
def test_i6_no_error_of_a_commit_or_of_the_catalog_shows_them(fail: Callable[[], object]) -> None:
    def use_catalog() -> None:
        with translated_errors("reading demo.orders"):
            fail()

    for error in (catch(use_catalog), catch(lambda: raise_on_conflict(fail))):
        assert PLANTED not in str(hide_message(error))


@every_program
def test_i6_no_error_or_output_of_a_spark_job_shows_them(
    fail: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    error = catch(fail)
    lines = "".join(traceback.format_exception(error))

    found = parse_job_error("stage_batch", encode_job_error(error), "orders")
    _, tail = write_output(JobExit(1, f"{lines}\nCaused by: {type(error).__name__}: {error}\n", 0))

    assert PLANTED not in f"{found}{tail}{capsys.readouterr().err}"
    assert type(error).__name__ in f"{found}"


def test_who_asks_for_messages_gets_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRAZIL_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["frazil", "status"])

    with pytest.raises(SystemExit):
        fail_unexpectedly(catch(look_up))

    assert PLANTED in capsys.readouterr().err
