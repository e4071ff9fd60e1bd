"""The list of topics of a stream file with a pattern: one JSON file in `FRAZIL_HOME/topics`.

DAG files are parsed with it, without Kafka and without a catalog. It holds nothing that is not in
both, so it may be deleted; `frazil.workspace.refresh_topics` writes it.
"""

import os
from datetime import datetime
from pathlib import Path

from frazil.environment import home_dir
from frazil.errors import ConfigurationError
from frazil.messages import Message, MessagePart, count_noun


class KnownTopic(MessagePart):
    """What is known of a topic that the pattern selects."""

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
    draft = path.with_suffix(f".{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(topics.model_dump_json(indent=2) + "\n")
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"the list of topics {path} cannot be written: {error.strerror}",
            "set FRAZIL_HOME to a folder that this user may write to",
        ) from error
