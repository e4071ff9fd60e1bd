"""Answer what an earlier release makes of what this one wrote.

It runs as a program with that release's code on the path: one question as JSON in each line of
its input, one answer in each line of its output: what it did, or the error that it raised. Its
argument is how many seconds its clock is ahead, as the clock of a test is.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

from support.lake import Lake

from frazil.errors import FrazilError
from frazil.ingest import messages as ingest
from frazil.ingest.blocked_batches import read_blocked
from frazil.ledger.state import parse_state
from frazil.maintenance import messages as maintenance
from frazil.migration import messages as migration
from frazil.recovery import messages as recovery
from frazil.streams.models import Stream

MODULES = (ingest, maintenance, migration, recovery)


def go_on(folder: str, stream: dict[str, object], ends: list[int]) -> dict[str, object]:
    """Publish a batch up to these ends; return where it began."""
    lake = Lake(Path(folder), Stream.model_validate(stream))
    point = lake.point
    lake.ingest(*ends)
    return {"epoch": point.state.epoch, "offsets": point.state.offsets}


def read_block(folder: str, stream: dict[str, object]) -> object:
    """Return the stream's blocked batch as this release understands it."""
    lake = Lake(Path(folder), Stream.model_validate(stream))
    return read_blocked(lake.table.properties, lake.stream.stream).model_dump(mode="json")


def read_message(name: str, text: str) -> object:
    """Return a message between tasks as this release understands it."""
    kind = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    return json.loads(kind.parse(text).encode())


def read_state(text: str) -> int:
    return parse_state(text).epoch


def read_stream(document: dict[str, object]) -> str:
    return Stream.model_validate(document).stream


def resume_trigger(path: str, arguments: dict[str, object]) -> object:
    """Return a waiting trigger as Airflow would store it again."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**arguments).serialize()


QUESTIONS = (go_on, read_block, read_message, read_state, read_stream, resume_trigger)


def answer(name: str, given: dict[str, object]) -> dict[str, object]:
    """Return what a question's function did, or the error that it raised."""
    try:
        return {"did": next(each for each in QUESTIONS if each.__name__ == name)(**given)}
    except (FrazilError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    true_time, ahead = time.time, float(sys.argv[1])
    time.time = lambda: true_time() + ahead
    output, sys.stdout = sys.stdout, sys.stderr  # logs
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=output, flush=True)
