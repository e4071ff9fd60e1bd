"""Which registered schemas ask for a change that the table has not made, and a person's answer."""

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil import keys


class SchemaAnswer(BaseModel):
    """What a person said to some changes; it leaves the table as it is.

    `stop`: the stream rests. `quarantine`: it goes on, and records whose schema asks for one of the
    changes become dead letters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stop", "quarantine"]
    changes: tuple[str, ...]
    by: str
    reason: str
    at: str


def read_answer(properties: Mapping[str, str], stream: str) -> SchemaAnswer | None:
    """Read the answer that is kept for a stream, whether it is in question still or not."""
    text = properties.get(keys.schema_answer_key(stream))
    return SchemaAnswer.model_validate_json(text) if text else None


def read_question(properties: Mapping[str, str], stream: str) -> tuple[int, ...]:
    """Read the ids of the schemas that asked, in the order in which they did.

    What they ask for stays in question until the table has it, whichever schema is the newest:
    records of theirs may wait in Kafka, or among the letters.
    """
    return tuple(json.loads(properties.get(keys.schema_question_key(stream), "[]")))
