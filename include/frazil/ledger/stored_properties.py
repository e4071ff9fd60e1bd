"""Read the values that Frazil keeps in table properties; each error states the next step.

A person, another engine or a length limit of the catalog may have truncated a value, and a newer
release may have written a format that this one cannot read.
"""

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from frazil.errors import UnknownStateError
from frazil.ledger import keys
from frazil.messages import Report, read_reason

Value = TypeVar("Value")

ANY_TABLE = "TABLE"
"""Stands for the name of the table in a statement where the caller does not know it."""

_NEWER = {"extra_forbidden", "literal_error"}
"""Pydantic's types of errors for unknown fields, and for an unknown version."""


def read_property(
    properties: Mapping[str, str],
    key: str,
    parse: Callable[[str], Value],
    without: str,
    table: str = ANY_TABLE,
) -> Value | None:
    """Parse a table property; None if the table has none.

    Args:
        properties: those of the table.
        key: the name of the property.
        parse: parses the text; raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` if
            it cannot.
        without: the effect of unsetting the property, for the error.
        table: the name of the table, for the error.

    Raises:
        UnknownStateError: this release cannot read the property.
    """
    text = properties.get(key)
    if not text:
        return None
    try:
        return parse(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        unset = f"`ALTER TABLE {table} UNSET TBLPROPERTIES ('{key}')`; {without}"
        newer = "run the newer release that wrote it; if it was edited by hand, "
        raise UnknownStateError(
            f"table {table}: property {key} cannot be read ({_describe(error)}); "
            "nothing was written",
            f"{newer if _is_newer(error) else ''}{unset}",
        ) from error


def _describe(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        return f"{where}: {read_reason(fault)}" if where else read_reason(fault)
    return f"{type(error).__name__}: {error}"


def _is_newer(error: Exception) -> bool:
    return isinstance(error, ValidationError) and any(
        fault["type"] in _NEWER for fault in error.errors()
    )


def parse_texts(text: str) -> list[str]:
    """Parse a JSON list of texts.

    Raises:
        ValueError: the text is none.
    """
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        message = "not a list of texts"
        raise ValueError(message)
    return found


def parse_numbers(text: str) -> list[int]:
    """Parse a JSON list of whole numbers.

    Raises:
        ValueError: the text is none.
    """
    found = json.loads(text)
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        message = "not a list of whole numbers"
        raise ValueError(message)
    return found


class SchemaChangeRecord(Report):
    """A decision on changes of a table's columns, as its property records it."""

    stream: str
    by: str
    reason: str
    at: AwareDatetime
    schema_id: int = Field(alias="schema-id")
    answer: str | None = None
    changes: tuple[str, ...]


def read_schema_changes(
    properties: Mapping[str, str], table: str = ANY_TABLE
) -> list[tuple[int, SchemaChangeRecord]]:
    """Return the recorded decisions with their numbers, in order.

    Raises:
        UnknownStateError: a record cannot be read; the error names `table`.
    """
    prefix, parse = keys.SCHEMA_CHANGE_PREFIX, SchemaChangeRecord.model_validate_json
    without = "`frazil timeline` no longer has that decision"
    found = [
        (int(key.removeprefix(prefix)), read_property(properties, key, parse, without, table))
        for key in properties
        if key.startswith(prefix) and key.removeprefix(prefix).isdecimal()
    ]
    known = [(number, record) for number, record in found if record is not None]
    return sorted(known, key=lambda each: each[0])
