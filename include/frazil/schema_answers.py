"""What became of a schema review that has not changed the table, kept beside it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil import keys


class SchemaAnswer(BaseModel):
    """A question about a schema, and what a person said to it.

    `asked`: nobody answered yet. `stop`: the stream rests. `quarantine`: it goes on, and records
    whose schema asks for one of the `changes` become dead letters. `schemas` are the registered
    schemas that asked: what they ask for stays in question until somebody accepts, whichever
    schema is the newest, since records of theirs may wait in Kafka or among the letters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["asked", "stop", "quarantine"]
    changes: tuple[str, ...]
    schemas: tuple[int, ...] = ()
    by: str = ""
    reason: str = ""
    at: str


def read_answer(properties: Mapping[str, str], stream: str) -> SchemaAnswer | None:
    """Read what is kept for a stream, whether it is in question still or not."""
    text = properties.get(keys.schema_answer_key(stream))
    return SchemaAnswer.model_validate_json(text) if text else None
