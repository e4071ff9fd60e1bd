"""What flattens values travels to Spark's workers, which have no code of this project."""

import subprocess
import sys
from pathlib import Path

from pyspark import cloudpickle
from support.change_events import event
from support.flat_events import make_spec

from frazil_spark.decode.change_events import flatten_event

LOAD = """
import pickle, sys
sys.modules["frazil_spark"] = None  # which cannot be imported
flatten, *given = pickle.load(sys.stdin.buffer)
print(flatten(*given).payload.decode())
"""


def test_the_code_of_workers_travels_with_its_task(tmp_path: Path) -> None:
    task = (flatten_event, make_spec({"x": "date"}), *event("c", '{"x": "2026-01-01"}'))
    sent = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    command = [sys.executable, "-c", LOAD]

    done = subprocess.run(command, input=sent, cwd=tmp_path, capture_output=True, check=False)

    assert done.stdout.startswith(b'{"x":"2026-01-01"'), done.stderr
