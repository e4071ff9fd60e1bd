"""How records that a registry's schemas describe are decoded: JSON for the Spark job."""

from typing import Literal

from frazil.messages import MessagePart
from frazil.streams.sections import Convert

Part = Literal["value", "key"]

UNDECIDED = "schema_undecided"
"""The reason of dead letters whose schema requires a change that is quarantined."""

UNREADABLE = "unreadable_schema"
"""The reason of dead letters whose schema is not valid, or too deep to be read."""

MAX_UNNAMED = 10
"""Fields without a column that a snapshot names."""


class SchemaDecode(MessagePart):
    """How the payloads of one registered schema become columns.

    `headers`: the encoded message indexes between schema id and a Protobuf message, in hex.
    `reader`: Avro's schema for Spark (of change events, for Python workers), or Protobuf's
    descriptors; `arrow_schema` is what a Python worker decodes the latter to. `values` and
    `mismatches`: SQL by column. `layout`: how the fast path reads payloads, empty if it cannot.
    `unnamed_fields`: those that no column can have, where columns follow the schema.
    `refusal`: reason and detail of the dead letters that all records of this schema become.
    """

    schema_id: int
    headers: tuple[str, ...] = ()
    reader: str = ""
    message: str = ""
    arrow_schema: str = ""
    layout: str = ""
    values: dict[str, str] = {}
    mismatches: dict[str, str] = {}
    unnamed_fields: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None


class WireFormat(MessagePart):
    """How the values or the keys of a batch are decoded, by schema.

    `has_schema_id`: each payload starts with a magic byte and a schema id.
    """

    format: Literal["avro", "protobuf", "json_schema"]
    has_schema_id: bool
    schemas: tuple[SchemaDecode, ...]


class KeyDecode(MessagePart):
    """How keys become columns; those of change events have none, only the schemas in `wire`.

    `is_flat`: each field of a key is a column, else the only column holds the whole key.
    `operation` is the column in which a record with a key and without a value is a delete.
    `fields` are those that the key of each change event must have; empty if any fields will do.
    """

    convert: Convert
    columns: tuple[str, ...] = ()
    is_flat: bool = False
    wire: WireFormat | None = None
    operation: str | None = None
    fields: tuple[str, ...] = ()
