"""Change events of Debezium: the columns that they add, and how their values are read.

docs/cdc.md explains them.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from frazil.messages import MessagePart
from frazil.streams.column_types import FieldError, parse_column

OP = "_op"
UNAVAILABLE = "_unavailable"
SOURCE = "_source"
FIELD_PREFIX = "_frazil"
"""Prefix of the fields of a flattened value that no record sent."""
SOURCE_TYPE = (
    "struct<ts_ms: long, lsn: long, tx_id: string, db: string, schema: string, table: string, "
    "snapshot: string>"
)
FROM_KEY = "_from_debezium_key_"
"""Stands for the columns of a table's key that are those of the events' keys."""
LSN = f"{SOURCE}.lsn"
SOURCE_SEQUENCES = (LSN, f"{SOURCE}.ts_ms")
"""Fields of `_source` by which changes can be ordered: integers of at least 0, or null."""
EVENT_COLUMNS = {
    OP: f'string! from "{FIELD_PREFIX}{OP}"',
    UNAVAILABLE: f'list<string> from "{FIELD_PREFIX}{UNAVAILABLE}"',
    SOURCE: f'{SOURCE_TYPE} from "{FIELD_PREFIX}{SOURCE}"',
}
"""Column → type of the columns that a stream of change events has beside its own."""
OP_TYPE = f'string from "{FIELD_PREFIX}{OP}"'
"""The type of the column that tells deletes where a record without a value is one."""
REST_FIELD = f"{FIELD_PREFIX}_rest"
REST_TYPE = f'string from "{REST_FIELD}"'
"""The type of the column that keeps fields without a column."""
RESERVED_FIELDS = frozenset({*(FIELD_PREFIX + name for name in EVENT_COLUMNS), REST_FIELD})
"""The fields that Frazil writes into a flattened value; no column can read a record's own."""

UPSERT_OPERATIONS = ("c", "r", "u", "insert", "update")
DELETE_OPERATIONS = ("d", "delete")
"""What `table.cdc_field` says of a change, in lower case."""

Truncate = Literal["refuse", "apply"]
Decimals = Literal["precise", "string"]


class ChangeEvents(MessagePart):
    """How change events become rows; the fields are options of a stream file's `value`."""

    truncate: Truncate = "refuse"
    decimals: Decimals = "precise"


def refuse_fields(columns: Mapping[str, str], fields: Collection[str], *path: str) -> None:
    """Refuse columns that read fields which Frazil itself writes into a flattened value.

    Raises:
        FieldError: there is one; `path` leads to the columns.
    """
    for name, text in columns.items():
        field = parse_column(name, text).field
        if field in fields:
            reason = (
                f"from {field!r}: Frazil writes such a field itself, so a record's own cannot be "
                "read; give it another name where it is produced"
            )
            raise FieldError((*path, name), reason)
