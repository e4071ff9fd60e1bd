"""Which partitions Spark's Python workers can put rows into, and what their files say of them."""

import json
from collections.abc import Iterator

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.direct_orders import PartitionBy

PLACE = b"frazil.partition"
"""In the footer of a file: its partition's values, as a JSON list."""

_TIMES = (DateType, TimestampType, TimestamptzType)
_PLAIN = (IntegerType, LongType, StringType)
_TYPES: dict[str, tuple[type[IcebergType], ...]] = {
    "identity": (BooleanType, DateType, *_PLAIN),
    "bucket": (*_TIMES, *_PLAIN),
    "truncate": _PLAIN,
    **dict.fromkeys(("year", "month", "day", "hour"), _TIMES),
}


def list_partitions(schema: Schema, spec: PartitionSpec) -> tuple[PartitionBy, ...] | None:
    """Say by what workers tell partitions apart; None where only Spark can."""
    found = [*_find_each(schema, spec.fields)]
    return None if None in found else tuple(by for by in found if by)


def _find_each(schema: Schema, fields: tuple[PartitionField, ...]) -> Iterator[PartitionBy | None]:
    columns = {column.field_id: column for column in schema.fields}
    for field in fields:
        column, transform = columns.get(field.source_id), str(field.transform)
        types = _TYPES.get(transform.partition("[")[0], ())
        fits = column is not None and isinstance(column.field_type, types)
        yield PartitionBy(column=column.name, transform=transform) if column and fits else None


def read_place(metadata: dict[bytes, bytes] | None) -> Record:
    """Read a file's partition from its footer.

    Raises:
        KeyError: the file names none.
    """
    return Record(*json.loads((metadata or {})[PLACE]))
