"""Events that leave no trace in a table, noted in files until somebody records them.

A failure may be the catalog's: noting it needs nothing but a folder, `FRAZIL_HOME/timeline`. One
file per event; what is recorded is kept for two hours under another name, so that the same failure
of the next minute is not recorded again.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from frazil.connections import home_dir
from frazil.errors import FrazilError, SupersededError
from frazil.messages import Report
from frazil.workspace import Workspace

_KEPT_SECONDS = 7200


class UnexpectedError(FrazilError):
    """What is no error of ours, as the timeline tells it."""


def notes_folder() -> Path:
    """Locate the notes."""
    return home_dir() / "timeline"


class Event(Report):
    """Something that happened, with an id that a repetition shares."""

    event_id: str
    at: datetime
    stream: str
    table: str
    kind: str
    text: str
    run_id: str | None = None
    facts: dict[str, str | int] = {}


def note_event(event: Event) -> None:
    """Write an event down, once; a folder that cannot be written is no second failure."""
    folder = notes_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        paths = (folder / f"{event.event_id}.{state}" for state in ("recorded", "json"))
        if not any(path.exists() for path in paths):
            draft = folder / f"{event.event_id}.{os.getpid()}.draft"
            draft.write_text(event.model_dump_json())
            draft.replace(folder / f"{event.event_id}.json")


def note_failure(error: FrazilError, stream: str, table: str, run_id: str) -> None:
    """Note a typed failure; who lost to a faster run has not failed."""
    if not isinstance(error, SupersededError):
        note_event(describe_failure(error, stream, table, run_id, datetime.now(UTC)))


@contextlib.contextmanager
def noted_failures(work: Workspace) -> Iterator[None]:
    """Note a typed failure of what is done inside, and let it pass."""
    try:
        yield
    except FrazilError as error:
        note_failure(error, work.stream.stream, work.stream.table.name, work.run_id)
        raise


def read_notes() -> list[Event]:
    """Read what waits to be recorded."""
    events = []
    for path in sorted(notes_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            events.append(Event.model_validate_json(path.read_text()))
    return events


def close_notes(events: Iterable[Event]) -> None:
    """Mark notes as recorded, and forget old marks."""
    folder = notes_folder()
    for event in events:
        path = folder / f"{event.event_id}.json"
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".recorded"))
            os.utime(path.with_suffix(".recorded"))
    for path in folder.glob("*.recorded"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()


def describe_failure(
    error: FrazilError, stream: str, table: str, run_id: str, now: datetime
) -> Event:
    """Describe a failure; one of the same class within an hour is the same event.

    Of its facts only the first line is told: what follows may be a log.
    """
    hour = now.strftime("%Y-%m-%dT%H")
    parts = [stream, error.code, hour]
    return Event(
        event_id=hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32],
        at=now,
        stream=stream,
        table=table,
        kind="failure",
        text=f"{error.code}: {error.facts.partition(chr(10))[0][:LONGEST_TEXT]}",
        run_id=run_id,
        facts={"error": error.code, "next_step": error.next_step},
    )


LONGEST_TEXT = 500
