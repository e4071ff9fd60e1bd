"""What a person said to a schema change other than yes; it stands in the table's properties."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil import keys

CHOICES = ("accept", "quarantine", "stop")
"""What a person may answer."""


class SchemaAnswer(BaseModel):
    """The stream rests, or goes on with what fits, until somebody accepts or answers anew."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["stop", "quarantine"] = "stop"
    review: str
    by: str
    reason: str
    at: str


def read_answer(properties: Mapping[str, str], stream: str) -> SchemaAnswer | None:
    """Read the newest answer to a stream's reviews, whichever it was to."""
    text = properties.get(keys.schema_answer_key(stream))
    return SchemaAnswer.model_validate_json(text) if text else None
