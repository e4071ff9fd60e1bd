"""Local cache of topics and stream files, so that DAG files are parsed without Kafka and catalog.

The list of topics of a stream file with a pattern is one JSON file in `FRAZIL_HOME/topics`. All of
it comes from Kafka and the catalog, so it may be deleted; `frazil.workspace.refresh_topics` writes
it. `FRAZIL_HOME/stream_files.json` has the file of each stream that only one file defines.
"""

import contextlib
import json
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from frazil.environment import home_dir
from frazil.errors import ConfigurationError
from frazil.messages import Message, MessagePart, count_noun


class KnownTopic(MessagePart):
    """A topic that the pattern selects, as the list records it."""

    table: str | None = None
    """The table whose history records the topic's stream; None before its first batch."""
    in_kafka: bool = True


class TopicList(Message):
    """The topics of a stream file, as Kafka and the catalog had them at `refreshed_at`."""

    stream: str
    refreshed_at: datetime
    topics: dict[str, KnownTopic]

    @property
    def tables(self) -> dict[str, str | None]:
        """Return topic → the table whose history records its stream."""
        return {topic: known.table for topic, known in self.topics.items()}

    @property
    def text(self) -> str:
        """Describe the list in one line."""
        gone = [topic for topic, known in self.topics.items() if not known.in_kafka]
        more = f"; no longer in Kafka: {', '.join(gone)}" if gone else ""
        return f"{self.stream}: {count_noun(len(self.topics), 'topic')}{more}"


def require_topic_name(name: str) -> str:
    """Return a name that a topic of Kafka may have.

    Raises:
        ValueError: no topic has such a name.
    """
    if name in {".", ".."} or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        message = (
            "no topic has this name: names have letters, digits, `.`, `_` and `-`, and are not "
            "`.` or `..`"
        )
        raise ValueError(message)
    return name


def read_known_files() -> dict[str, str]:
    """Return stream → path of the file that was the only one to define it, when it was last so."""
    try:
        known = json.loads(_known_files_path().read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def remember_files(found: Mapping[str, Path]) -> None:
    """Remember the only file of each stream; a failure to write is ignored."""
    known = read_known_files()
    now = known | {stream: str(path) for stream, path in found.items()}
    if now == known:
        return
    path = _known_files_path()
    draft = path.with_suffix(f".{secrets.token_hex(8)}.draft")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(now, indent=0))
        draft.replace(path)


def _known_files_path() -> Path:
    return home_dir() / "stream_files.json"


def topic_list_path(stream: str) -> Path:
    """Return the file that holds the topics of a stream file."""
    return home_dir() / "topics" / f"{stream}.json"


def read_topics(stream: str) -> TopicList | None:
    """Read the topics of a stream file; None if there is no list that can be read."""
    try:
        return TopicList.model_validate_json(topic_list_path(stream).read_bytes())
    except (OSError, ValueError):
        return None


def write_topics(topics: TopicList) -> None:
    """Replace the list; a reader finds the old one or the new one.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    path = topic_list_path(topics.stream)
    draft = path.with_suffix(f".{secrets.token_hex(8)}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(topics.model_dump_json(indent=2) + "\n")
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"the list of topics {path} cannot be written: {error.strerror}",
            "set FRAZIL_HOME to a folder that this user may write to",
        ) from error
