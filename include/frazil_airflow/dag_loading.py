"""Which streams a DAG file makes DAGs of, and how a broken stream file shows itself.

Airflow schedules nothing of a file that has an import error. So the files that define DAGs leave
broken stream files out, and `check_streams_dag.py`, which defines none, has the error instead.
"""

import contextlib
from pathlib import Path

from airflow.sdk import get_parsing_context

from frazil.connections import streams_dir
from frazil.errors import StreamFileError
from frazil.streams.loading import load_readable_streams, load_stream, load_streams_of
from frazil.streams.models import Stream

SEPARATOR = "__"


def load_streams_to_parse(kind: str) -> tuple[Stream, ...]:
    """Load the streams of the `<kind>__<stream>` DAGs that this parse must define.

    The scheduler's parse wants every sound stream. A task's own parse wants its DAG alone: with a
    hundred streams, reading the other ninety-nine files would cost each task most of a second.

    Raises:
        StreamFileError, UnknownStreamError: in a task, its stream's file is broken or gone.
    """
    dag_id = get_parsing_context().dag_id
    if dag_id is None:
        # Without a folder there is no DAG to define; `check_streams_dag.py` has that error too.
        return load_readable_streams(streams_dir())[0] if streams_dir().is_dir() else ()
    wanted, _, stream = dag_id.partition(SEPARATOR)
    return (load_stream(streams_dir(), stream),) if wanted == kind else ()


def list_stream_names() -> list[str]:
    """Name the streams by their files, also those whose file is broken, and those of routes.

    Only files that may have a route are loaded: DAGs of the whole fleet ask at each parse.
    """
    return sorted(name for path in streams_dir().glob("*.yaml") for name in _list_names(path))


def _list_names(path: Path) -> list[str]:
    with contextlib.suppress(OSError, StreamFileError):
        if b"route" in path.read_bytes():
            return [stream.stream for stream in load_streams_of(path)]
    return [path.stem]


def refuse_broken_streams() -> None:
    """Raise one error that lists every broken stream file.

    Raises:
        StreamFileError: with file, line and field of each; also if there is no folder at all.
    """
    _, errors = load_readable_streams(streams_dir())
    if errors:
        raise StreamFileError("\n".join(e.facts for e in errors), errors[0].next_step)
