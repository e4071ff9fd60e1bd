"""Where a stream's records come from: a section of a stream file."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from frazil.columns import FieldError
from frazil.instants import parse_instant
from frazil.payloads import Section

TopicName = Annotated[str, Field(min_length=1, max_length=249)]


class StartAtTime(Section):
    """Begin at the first record at or after an instant."""

    timestamp: Annotated[str, BeforeValidator(parse_instant)] = Field(
        description="ISO 8601 instant with zone, as `2026-01-31T00:00:00Z`"
    )


class StartAtOffsets(Section):
    """Begin at exact offsets."""

    offsets: dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = Field(
        description="partition → first offset to read; the others begin at the earliest"
    )


def _kind_of_start(start: object) -> str:
    """Choose one form by its key, so that a mistake is not told once for each form."""
    if isinstance(start, Mapping):
        return "StartAtTime" if "timestamp" in start else "StartAtOffsets"
    return type(start).__name__ if isinstance(start, Section) else "literal[]"


Start = (
    Annotated[Literal["earliest", "latest"], Tag("literal[]")]
    | Annotated[StartAtTime, Tag("StartAtTime")]
    | Annotated[StartAtOffsets, Tag("StartAtOffsets")]
)


class Source(Section):
    """Where records come from."""

    connection: str = Field("kafka_default", description="Airflow connection of the Kafka cluster")
    topic: TopicName | None = Field(None, description="topic to read; this or `topics`")
    topics: tuple[TopicName, ...] = Field(
        (),
        description="several topics for one table, read together; one that is added later is "
        "read from its first offset",
    )
    start: Annotated[Start, Discriminator(_kind_of_start)] = Field(
        "earliest", description="where the first batch begins; later ones follow the ledger"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Kafka isolation level"
    )

    @model_validator(mode="after")
    def _topics_are_named_once(self) -> "Source":
        if (self.topic is None) == (not self.topics):
            raise FieldError(("topic",), "name one `topic`, or several under `topics`")
        if len(set(self.topics)) < len(self.topics):
            raise FieldError(("topics",), "a topic is there twice")
        if len(self.topics) > 1 and isinstance(self.start, StartAtOffsets):
            raise FieldError(("start", "offsets"), "offsets of one topic say nothing of another's")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Name all topics, in a fixed order."""
        return (self.topic,) if self.topic is not None else tuple(sorted(self.topics))
