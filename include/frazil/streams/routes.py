"""One topic to many tables by a field of the value (features A10, issue 5).

A stream file with a route stands for several streams, each with a table, a ledger and DAGs of its
own; each reads the whole topic and keeps what is its own:

* `events__<value>` for each table of the route takes the records whose field has that value;
* `events`, named like the file, takes the rest to its dead letters: values without a route, and
  records that do not decode, which have none. Its own table stays empty and holds its ledger.

So every record has exactly one place, and what the others take counts as skipped.
"""

import re
from collections import Counter
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from frazil.ledger.keys import DEAD_LETTERS_SUFFIX
from frazil.streams.column_types import FieldError
from frazil.streams.sections import Section

SEPARATOR = "__"
_TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)+\Z")


def _parse_table_name(name: str) -> str:
    if not _TABLE_NAME.match(name):
        message = f"{name!r} is not `namespace.table` in lower case"
        raise ValueError(message)
    if name.endswith(DEAD_LETTERS_SUFFIX):
        message = f"names ending in {DEAD_LETTERS_SUFFIX} belong to dead letters"
        raise ValueError(message)
    return name


TableName = Annotated[str, AfterValidator(_parse_table_name)]


class Route(Section):
    """Which table a record belongs to."""

    field: str = Field(min_length=1, description="text column of the value that decides")
    tables: dict[str, TableName] = Field(
        min_length=1,
        description="value → `namespace.table`; each is filled by the stream `<stream>__<value>`",
    )
    takes: str | None = None
    """The value whose records this very stream takes; no option: loading sets it."""

    @model_validator(mode="after")
    def _each_value_has_its_own(self) -> "Route":
        tables, slugs = Counter(self.tables.values()), Counter(map(_slug, self.tables))
        for value, table in self.tables.items():
            if not _slug(value):
                raise FieldError(("tables", value), "no letter or digit to name a stream by")
            if slugs[_slug(value)] > 1:
                reason = f"another value gives its stream the same name, …{SEPARATOR}{_slug(value)}"
                raise FieldError(("tables", value), reason)
            if tables[table] > 1:
                raise FieldError(("tables", value), f"{table} is there twice")
        return self


def derived_name(stream: str, value: str) -> str:
    """Name the stream that takes the records with this value."""
    return stream + SEPARATOR + _slug(value)


def _slug(value: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")


def count_own_records(route: Route | None, read: int, elsewhere: int) -> int:
    """Count the records of which a ratio of bad ones is told.

    The stream of a table has nothing to do with the others' records; the stream of the rest
    judges all.
    """
    return read - elsewhere if route is not None and route.takes is not None else read
