"""How records that a registry's schemas describe are decoded: JSON for the Spark job."""

from typing import Literal

from frazil.messages import MessagePart
from frazil.streams.sections import Convert

Part = Literal["value", "key"]


PUT_ASIDE = "schema_undecided"
"""The reason of letters whose schema waits for a person's answer."""


class SchemaDecode(MessagePart):
    """How the payloads of one registered schema become columns.

    `headers` are what stands between the id and a Protobuf message, as hex, and `wire_ipc` is the
    Arrow schema of its `value`. `values` and `misfits` are SQL by column. `layout` is how Python
    workers read the payloads that are sure (`sure_layouts`); empty where they cannot. A refusal is
    a reason and a detail for dead letters: nothing of such a schema may become a row.
    """

    schema_id: int
    headers: tuple[str, ...] = ()
    reader: str = ""
    message: str = ""
    wire_ipc: str = ""
    layout: str = ""
    values: dict[str, str] = {}
    misfits: dict[str, str] = {}
    refusal: tuple[str, str] | None = None


class WireFormat(MessagePart):
    """How values, or keys, of a registry's schemas are decoded."""

    format: Literal["avro", "protobuf", "json_schema"]
    is_framed: bool
    schemas: tuple[SchemaDecode, ...]


class KeyDecode(MessagePart):
    """How keys become one column."""

    convert: Convert
    column: str
    type: str
    wire: WireFormat | None = None
