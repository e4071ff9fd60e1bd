"""Routes: one topic to several tables by a field of the value.

A stream file with a route defines several streams, each with its own table, ledger and DAGs. Each
of them reads the whole topic:

* `events__<value>`, one for each table of the route, writes the records with that value;
* `events`, named like the file, writes all other records to its dead letters: those with a value
  that has no route, and those that cannot be decoded. Its table stays empty and holds the ledger.

So every record is written by exactly one stream; in the others it counts as skipped.
"""

import re
from collections import Counter
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from frazil.ledger.keys import DEAD_LETTERS_SUFFIX, LEDGER_TABLE, TIMELINE_TABLE
from frazil.streams.column_types import FieldError
from frazil.streams.sections import Section

SEPARATOR = "__"
_LONGEST_FOLDER = 255
"""In letters, the names of a table and of its namespace: each is a folder of a file system."""
_TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)+\Z")


def parse_table_name(name: str) -> str:
    """Return a valid name of a table.

    Raises:
        ValueError: it is not `namespace.table`, or belongs to a table of Frazil.
    """
    if not _TABLE_NAME.match(name):
        message = f"{name!r} is not `namespace.table` in lower case"
        raise ValueError(message)
    namespace, _, table = name.rpartition(".")
    if len(table) + len(DEAD_LETTERS_SUFFIX) > _LONGEST_FOLDER or len(namespace) > _LONGEST_FOLDER:
        message = (
            f"a name of {len(table)} letters in a namespace of {len(namespace)}: at most "
            f"{_LONGEST_FOLDER - len(DEAD_LETTERS_SUFFIX)} and {_LONGEST_FOLDER}, since both are "
            f"folders, and dead letters are in a table with {DEAD_LETTERS_SUFFIX} behind its name"
        )
        raise ValueError(message)
    if name.endswith(DEAD_LETTERS_SUFFIX):
        message = f"names ending in {DEAD_LETTERS_SUFFIX} belong to dead letters"
        raise ValueError(message)
    if name in {LEDGER_TABLE, TIMELINE_TABLE}:
        message = f"{name} is a table of Frazil itself; choose another name"
        raise ValueError(message)
    return name


TableName = Annotated[str, AfterValidator(parse_table_name)]


class Route(Section):
    """The table for each record, by a field of its value."""

    field: str = Field(min_length=1, description="string column of the value that decides")
    tables: dict[str, TableName] = Field(
        min_length=1,
        description="value → `namespace.table`, which is filled by the stream `<stream>__<value>`",
    )
    takes: str | None = None
    """The value whose records this stream writes; not an option, set when the file is loaded."""

    @model_validator(mode="after")
    def _each_value_has_its_own(self) -> "Route":
        tables, slugs = Counter(self.tables.values()), Counter(map(_slug, self.tables))
        for value, table in self.tables.items():
            if not _slug(value):
                reason = "has no letter or digit, so its stream would have no name"
                raise FieldError(("tables", value), reason)
            if slugs[_slug(value)] > 1:
                reason = f"another value has the same stream name, …{SEPARATOR}{_slug(value)}"
                raise FieldError(("tables", value), reason)
            if tables[table] > 1:
                raise FieldError(("tables", value), f"{table} is listed twice")
        return self


def derived_name(stream: str, value: str) -> str:
    """Return the name of the stream that writes the records with this value."""
    return stream + SEPARATOR + _slug(value)


def _slug(value: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")


def count_own_records(route: Route | None, read: int, elsewhere: int) -> int:
    """Return the number of records that the ratio of bad records refers to.

    For a stream of one table these are its own records; `elsewhere` is the number of records that
    other streams write. For the stream of the unrouted records these are all records read.
    """
    return read - elsewhere if route is not None and route.takes is not None else read
