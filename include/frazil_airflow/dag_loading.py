"""The DAG files of the installation, their streams, and the error of a broken stream file.

Airflow runs no DAG of a file with an import error. So the files that define DAGs skip broken stream
files, and `check_streams_dag.py`, which defines none, raises the error.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from airflow.sdk import get_parsing_context

from frazil.environment import shipped_path, streams_dir
from frazil.errors import StreamFileError
from frazil.streams.loading import (
    list_names_of,
    list_stream_files,
    load_readable_streams,
    load_stream,
)
from frazil.streams.models import Stream

SEPARATOR = "__"
CHECK_FILE = "check_streams_dag.py"
OPERATE_VARIABLE = "FRAZIL_OPERATE_DAGS"


def define_dags() -> None:
    """Run the installation's DAG files, from a file in a folder of Airflow's own.

    A task runs only the file of its DAG. `check_streams_dag.py` is left out: its error would be
    that of all DAGs.
    """
    folder = shipped_path("dags")
    kind = (get_parsing_context().dag_id or "").partition(SEPARATOR)[0]
    own = folder / f"{kind}_dag.py"
    for path in [own] if own.is_file() else sorted(folder.glob("*_dag.py")):
        if path.name != CHECK_FILE:
            _run_file(path)


def load_function(dag: str, name: str) -> Callable[..., object]:
    """Return a function, or that of a task, from the file of a DAG."""
    found = getattr(_run_file(shipped_path("dags") / f"{dag}_dag.py"), name)
    function: Callable[..., object] = getattr(found, "function", found)
    return function


def load_operated_streams() -> tuple[Stream, ...]:
    """Load the streams that have a DAG `operate__<stream>`; none if `FRAZIL_OPERATE_DAGS=false`."""
    is_off = os.environ.get(OPERATE_VARIABLE, "").lower() == "false"
    return () if is_off else load_streams_to_parse("operate")


def _run_file(path: Path) -> ModuleType:
    """Run a DAG file as a module of its own name; Airflow registers the DAGs that it defines."""
    spec = spec_from_file_location(f"frazil_dags.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_streams_to_parse(kind: str) -> tuple[Stream, ...]:
    """Load the streams of the `<kind>__<stream>` DAGs that this parse must define.

    The DAG processor needs every valid stream. A task needs only its own DAG: with a hundred
    streams, reading the other files would cost each task most of a second.

    Raises:
        StreamFileError, UnknownStreamError: in a task, its stream's file is broken or missing.
    """
    dag_id = get_parsing_context().dag_id
    if dag_id is None:
        # Without the folder no DAG is defined; `check_streams_dag.py` raises that error too.
        return load_readable_streams(streams_dir())[0] if streams_dir().is_dir() else ()
    wanted, _, stream = dag_id.partition(SEPARATOR)
    return (load_stream(streams_dir(), stream),) if wanted == kind else ()


def list_stream_names() -> list[str]:
    """Return the names of all streams, of broken files, of routes and of topic patterns too."""
    files = list_stream_files(streams_dir())
    return sorted({name for path in files for name in list_names_of(path)})


def validate_stream_files() -> None:
    """Raise one error that lists every broken stream file.

    Raises:
        StreamFileError: with file, line and field of each; also if the folder is missing.
    """
    _, errors = load_readable_streams(streams_dir())
    if errors:
        raise StreamFileError("\n".join(e.facts for e in errors), errors[0].next_step)
