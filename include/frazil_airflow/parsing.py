"""Which streams a DAG file makes DAGs of, and how a broken stream file shows itself.

Airflow schedules nothing of a file that has an import error. So the files that define DAGs leave
broken stream files out, and `check_streams_dag.py`, which defines none, has the error instead.
"""

from functools import cache

from airflow.sdk import get_parsing_context
from croniter import CroniterError, croniter  # type: ignore[import-untyped]

from frazil.connections import streams_dir
from frazil.errors import StreamFileError
from frazil.stream_files import load_readable_streams, load_stream, load_streams
from frazil.streams import Stream

SEPARATOR = "__"
_UNCRON = frozenset({"@once"})


def load_streams_to_parse(kind: str) -> tuple[Stream, ...]:
    """Load the streams of the `<kind>__<stream>` DAGs that this parse must define.

    The scheduler's parse wants every sound stream. A task's own parse wants its DAG alone: with a
    hundred streams, reading the other ninety-nine files would cost each task most of a second.

    Raises:
        StreamFileError, UnknownStreamError: in a task, its stream's file is broken or gone.
    """
    dag_id = get_parsing_context().dag_id
    if dag_id is None:
        return load_sound_streams()[0]
    wanted, _, stream = dag_id.partition(SEPARATOR)
    return (load_stream(streams_dir(), stream),) if wanted == kind else ()


def load_sound_streams() -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load the streams that can become DAGs, and the errors of those that cannot."""
    readable, errors = load_readable_streams(streams_dir())
    problems = {stream.stream: find_bad_schedule(stream) for stream in readable}
    sound = tuple(stream for stream in readable if problems[stream.stream] is None)
    return sound, (*errors, *(problem for problem in problems.values() if problem is not None))


def find_bad_schedule(stream: Stream) -> StreamFileError | None:
    """Find a schedule that Airflow could not run, or that has no next date at all."""
    schedules = {
        "batch.schedule": stream.batch.schedule,
        "maintenance.schedule": stream.maintenance.schedule,
    }
    for field, schedule in schedules.items():
        problem = explain_bad_schedule(schedule)
        if problem is not None:
            return StreamFileError(
                f"{streams_dir() / stream.stream}.yaml: {field}: {schedule!r}: {problem}",
                "write five cron fields, for example `*/5 * * * *`",
            )
    return None


@cache
def explain_bad_schedule(schedule: str) -> str | None:
    """Say what is wrong with a cron line; streams share a few of them, so each is judged once."""
    try:
        if schedule not in _UNCRON:
            croniter(schedule).get_next()
    except CroniterError as error:
        return str(error)
    return None


def list_stream_names() -> list[str]:
    """Name the streams by their files, also those whose file is broken."""
    return sorted(path.stem for path in streams_dir().glob("*.yaml"))


def refuse_broken_streams() -> None:
    """Raise one error that lists every broken stream file.

    Raises:
        StreamFileError: with file, line and field of each; also if there is no folder at all.
    """
    sound, errors = load_sound_streams()
    if errors:
        raise StreamFileError("\n".join(e.facts for e in errors), errors[0].next_step)
    if not sound:
        load_streams(streams_dir())
