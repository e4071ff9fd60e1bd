"""Change events of Debezium: the columns that they add, and how their values are read.

docs/cdc.md explains them.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from frazil.messages import MessagePart
from frazil.streams.column_types import (
    MAX_DECIMAL_PRECISION,
    FieldError,
    Primitive,
    parse_column,
)

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
_CONNECT, _TIME = "org.apache.kafka.connect.data", "io.debezium.time"
DECIMAL = f"{_CONNECT}.Decimal"
_ROW_TYPES: Mapping[str, str] = {
    **dict.fromkeys((f"{_CONNECT}.Date", f"{_TIME}.Date", f"{_TIME}.IsoDate"), "date"),
    **dict.fromkeys((f"{_CONNECT}.Timestamp", f"{_TIME}.Timestamp"), "timestamp"),
    **dict.fromkeys((f"{_TIME}.MicroTimestamp", f"{_TIME}.IsoTimestamp"), "timestamp"),
    f"{_TIME}.ZonedTimestamp": "timestamptz",
    **dict.fromkeys((f"{_CONNECT}.Time", f"{_TIME}.Time", f"{_TIME}.MicroTime"), "long"),
    **dict.fromkeys((f"{_TIME}.NanoTimestamp", f"{_TIME}.NanoTime", f"{_TIME}.IsoTime"), "string"),
    "io.debezium.data.VariableScaleDecimal": "string",
    "io.debezium.data.Uuid": "uuid",
    "int/date": "date",
    "int/time-millis": "long",
    "long/timestamp-millis": "timestamp",
}
"""Kafka Connect's name of a type, or Avro's where there is none → the type of its column.

Text stands for types whose values may have more digits than those of another one.
"""

UPSERT_OPERATIONS = ("c", "r", "u", "insert", "update")
DELETE_OPERATIONS = ("d", "delete")
"""What `table.cdc_field` says of a change, in lower case."""

Truncate = Literal["refuse", "apply"]
Decimals = Literal["precise", "string"]


class ChangeEvents(MessagePart):
    """How change events become rows; the fields are options of a stream file's `value`."""

    truncate: Truncate = "refuse"
    decimals: Decimals = "precise"


def find_row_type(name: str, parameters: Mapping[str, object]) -> Primitive | None:
    """Return the type of a column for values of a type of Kafka Connect; None for other names.

    It is the type of columns that the stream file does not list. Decimals with too many digits, or
    without a known number of them, are text.
    """
    if name != DECIMAL:
        return Primitive(_ROW_TYPES[name]) if name in _ROW_TYPES else None
    texts = (
        parameters.get("connect.decimal.precision", parameters.get("precision")),
        parameters.get("scale", 0),
    )
    try:
        precision, scale = (int(str(text)) for text in texts)
    except ValueError:
        return Primitive("string")
    fits = 0 <= scale <= precision and 0 < precision <= MAX_DECIMAL_PRECISION
    return Primitive("decimal", (precision, scale)) if fits else Primitive("string")


def validate_field_names(columns: Mapping[str, str], fields: Collection[str], *path: str) -> None:
    """Check that no column reads a field which Frazil itself writes into a flattened value.

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
