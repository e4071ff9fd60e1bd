"""Local notes of events that no snapshot records, such as failures and maintenance runs.

An event is one JSON file in `FRAZIL_HOME/timeline`, so that it can be noted while the catalog is
down; the task that noted it, a later one of this machine or `frazil timeline --record` copies it
into the timeline table. A recorded note is renamed and kept for two hours, so that a repetition of
the same event is not recorded again.
"""

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from frazil.environment import home_dir
from frazil.errors import FrazilError, SupersededError
from frazil.messages import Report
from frazil.workspace import Workspace

LONGEST_TEXT = 500
_KEPT_SECONDS = 7200
_WATCHED = "watch.json"
WATCH_SECONDS = 600
"""The watch runs each minute; after this time it counts as stopped."""


def notes_folder() -> Path:
    """Return the folder of the notes."""
    return home_dir() / "timeline"


class Event(Report):
    """Something that happened; a repetition has the same `event_id`."""

    event_id: str
    at: datetime
    stream: str
    table: str
    kind: str
    text: str
    run_id: str | None = None
    facts: dict[str, str | int] = {}


class WatchNote(Report):
    """When the watch last ran on this machine, and the streams whose DAG it found paused."""

    at: datetime
    paused: frozenset[str] = frozenset()

    @property
    def age_seconds(self) -> float:
        """Return the time since then, in seconds."""
        return (datetime.now(UTC) - self.at).total_seconds()


def note_watch(paused: Iterable[str]) -> None:
    """Note that the watch checked the streams; a failure to write is ignored."""
    note = WatchNote(at=datetime.now(UTC), paused=frozenset(paused))
    with contextlib.suppress(OSError):
        home_dir().mkdir(parents=True, exist_ok=True)
        draft = home_dir() / f"{_WATCHED}.{secrets.token_hex(8)}.draft"
        draft.write_text(note.model_dump_json())
        draft.replace(home_dir() / _WATCHED)


def read_watch() -> WatchNote | None:
    """Read the note of the last watch; None if there is none that can be read."""
    try:
        return WatchNote.model_validate_json((home_dir() / _WATCHED).read_bytes())
    except (OSError, ValueError):
        return None


def find_paused() -> frozenset[str]:
    """Return the streams whose DAG is paused, if the watch ran in the last minutes."""
    note = read_watch()
    return note.paused if note and note.age_seconds <= WATCH_SECONDS else frozenset()


def note_event(event: Event) -> None:
    """Write an event to a file unless it is there; a failure to write is ignored."""
    folder = notes_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        paths = (folder / f"{event.event_id}.{state}" for state in ("recorded", "json"))
        if not any(path.exists() for path in paths):
            draft = folder / f"{event.event_id}.{secrets.token_hex(8)}.draft"
            draft.write_text(event.model_dump_json())
            draft.replace(folder / f"{event.event_id}.json")


def note_failure(error: FrazilError, stream: str, table: str, run_id: str) -> None:
    """Note a failure; `SupersededError` is none, because a faster run did the work."""
    if not isinstance(error, SupersededError):
        note_event(describe_failure(error, stream, table, run_id, datetime.now(UTC)))


@contextlib.contextmanager
def noted_failures(work: Workspace) -> Iterator[None]:
    """Note every `FrazilError` that the block raises, and raise it again."""
    try:
        yield
    except FrazilError as error:
        note_failure(error, work.stream.stream, work.stream.table.name, work.run_id)
        raise


def read_notes() -> list[Event]:
    """Read the events that are not recorded yet."""
    events = []
    for path in sorted(notes_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            events.append(Event.model_validate_json(path.read_text()))
    return events


def has_notes(stream: str) -> bool:
    """Return whether an event of the stream is not recorded yet."""
    return any(event.stream == stream for event in read_notes())


def close_notes(events: Iterable[Event]) -> None:
    """Mark notes as recorded and delete recorded notes older than two hours."""
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
    """Return the event of a failure; failures with the same code within an hour are one event.

    Only the first line of its facts is included: the rest may be a log.
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
