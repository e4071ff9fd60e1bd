"""What a person said to a schema review without changing the table, kept beside it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil import keys


class SchemaAnswer(BaseModel):
    """An answer that holds for one review.

    `stop`: the stream rests. `quarantine`: it goes on, and records whose schema asks for what the
    review is about become dead letters. `schemas` are the registered schemas that asked for it:
    what they ask for stays in question until somebody accepts, whichever schema is the newest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stop", "quarantine"] = "stop"
    review: str
    by: str
    reason: str
    at: str
    schemas: tuple[int, ...] = ()


def read_answer(properties: Mapping[str, str], stream: str) -> SchemaAnswer | None:
    """Read the answer that is kept for a stream, whether its review is still open or not."""
    text = properties.get(keys.schema_answer_key(stream))
    return SchemaAnswer.model_validate_json(text) if text else None
