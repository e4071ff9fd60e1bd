"""Base classes of JSON values: messages between processes, their parts, and reports.

Also the names by which a person gives the fields of a request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails

LaterCount = Annotated[int, Field(exclude_if=lambda count: count == 0)]
"""A count that messages of earlier releases do not have."""


_IN_FORM: ContextVar[bool] = ContextVar("_IN_FORM", default=False)


@contextmanager
def errors_of_forms() -> Iterator[None]:
    """Make errors name fields of a form, instead of options of the command line."""
    before = _IN_FORM.set(True)
    try:
        yield
    finally:
        _IN_FORM.reset(before)


def name_field(field: str, option: str = "") -> str:
    """Return what a person fills in: `to_time` in a form, `--to-time` on the command line.

    `option` is the option's name where it is another than the field's.
    """
    return field if _IN_FORM.get() else f"--{(option or field).replace('_', '-')}"


class Report(BaseModel):
    """A frozen value that is printed or stored as JSON; unknown fields are ignored when read."""

    model_config = ConfigDict(frozen=True)


class MessagePart(BaseModel):
    """A frozen value inside a message or a table property; unknown fields are refused.

    An alias is the name of a field in JSON, where it must stay: it is printed, or was stored by an
    earlier release.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True
    )


class Message(MessagePart):
    """A frozen, versioned value that crosses a process border as JSON."""

    v: Literal[1] = 1

    def encode(self) -> str:
        """Return the message as JSON."""
        return self.model_dump_json()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read JSON that `encode` wrote; unknown fields are refused."""
        return cls.model_validate_json(text)

    @property
    def ends_run(self) -> bool:
        """Return whether the tasks after this message have nothing to do."""
        return False


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, as `1 row` or `1,234 rows`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def read_reason(fault: ErrorDetails) -> str:
    """Return why a value was refused, without words of Python."""
    return fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
