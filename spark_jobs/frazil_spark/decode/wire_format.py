"""Payloads of registered schemas: the header in front of them, and one decode per schema.

Each schema has its own column in the frame, filled only for its own records, so that several
schemas of one batch are decoded in one pass.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from frazil.schemas.avro import MARK, MARK_FIELD
from frazil.schemas.wire_format import UNDECIDED, Part, SchemaDecode, WireFormat
from frazil.streams.column_types import write_text
from frazil_spark.decode import protobuf
from frazil_spark.decode.protobuf import MessageSpec, read_messages

HEADER_BYTES = 5
PAYLOAD = "_frazil_payload"
MAX_UNKNOWN = 20
"""Unknown ids that one attempt reports; the next attempt finds the others."""

_AVRO_OPTIONS = {
    "mode": "PERMISSIVE",
    "enableStableIdentifiersForUnionType": "true",
    "recursiveFieldMaxDepth": "1",
    "datetimeRebaseMode": "CORRECTED",
}


# Workers do not need this package: its code travels with the task.
cloudpickle.register_pickle_by_value(protobuf)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class WireFrame:
    """The columns of a frame that hold payloads of one part of a record, `value` or `key`."""

    part: Part
    wire: WireFormat

    @property
    def id_column(self) -> str:
        """Return the name of the column of the schema id."""
        return f"_frazil_{self.part}_id"

    def decoded_column(self, schema: SchemaDecode) -> str:
        """Return the name of the column of values that one schema decoded."""
        return f"_frazil_{self.part}_{schema.schema_id}"

    @property
    def usable(self) -> tuple[SchemaDecode, ...]:
        """List the schemas whose records can become rows."""
        return tuple(schema for schema in self.wire.schemas if schema.refusal is None)

    def id_sql(self) -> str:
        """Write the SQL of the schema id; null where the payload has no header."""
        if not self.wire.has_schema_id:
            return f"CASE WHEN {self.part} IS NOT NULL THEN {self.wire.schemas[0].schema_id} END"
        known = "".join(
            f"WHEN startswith({self.part}, X'{write_header(s.schema_id)}') THEN {s.schema_id} "
            for s in self.wire.schemas
        )
        number = f"conv(hex(substring({self.part}, 2, 4)), 16, 10)"
        unregistered = (
            f"CASE WHEN length({self.part}) >= {HEADER_BYTES} AND startswith({self.part}, X'00') "
            f"THEN try_cast({number} AS INT) END"
        )
        return f"CASE {known} ELSE {unregistered} END" if known else unregistered

    def unknown_sql(self) -> str:
        """Write the SQL that is true for an id that the plan did not resolve."""
        known = ", ".join(str(schema.schema_id) for schema in self.wire.schemas)
        absent = f"{self.id_column} NOT IN ({known})" if known else "true"
        return f"({self.id_column} IS NOT NULL AND {absent})"

    def quarantined_sql(self) -> str:
        """Write the SQL that is true where the schema is quarantined until it is reviewed."""
        refused = [(s.schema_id, s.refusal[0]) for s in self.wire.schemas if s.refusal is not None]
        ids = ", ".join(str(schema_id) for schema_id, reason in refused if reason == UNDECIDED)
        return f"coalesce({self.id_column} IN ({ids}), false)" if ids else "false"

    def whole_sql(self, schema: SchemaDecode) -> str:
        """Write the SQL that is true where one schema decoded a payload to its end."""
        column = f"`{self.decoded_column(schema)}`"
        if self.wire.format == "avro":
            return f"coalesce({column}.{MARK_FIELD} = X'{MARK.hex()}', false)"
        return f"{column}.value IS NOT NULL"

    def any_whole_sql(self) -> str:
        """Write the SQL that is true where some schema decoded a payload to its end."""
        return " OR ".join(self.whole_sql(schema) for schema in self.usable) or "false"

    def malformed_sql(self) -> str:
        """Write the SQL of the reason for which no schema decoded a payload."""
        word = f"'malformed_{self.wire.format}'"
        if self.wire.format != "protobuf":
            return word
        faults = [f"`{self.decoded_column(schema)}`.fault" for schema in self.usable]
        return f"coalesce({', '.join([*faults, word])})"

    def value_sql(self, column: str, ddl: str) -> str:
        """Write the SQL of a column's value, by the schema that decoded it."""
        cases = "".join(
            f"WHEN {self.whole_sql(schema)} THEN {schema.values[column]} " for schema in self.usable
        )
        return f"CASE {cases} END" if cases else f"CAST(NULL AS {ddl})"

    def mismatch_sql(self) -> str:
        """Write the SQL that is true where a decoded value has no exact form in its column."""
        cases = "".join(
            f"WHEN {self.whole_sql(schema)} THEN {_join(list(schema.mismatches.values()))} "
            for schema in self.usable
            if schema.mismatches
        )
        return f"(CASE {cases} ELSE false END)" if cases else "false"

    def mismatch_detail_sql(self) -> str:
        """Write the SQL that names the columns at fault."""
        cases = "".join(
            f"WHEN {self.whole_sql(schema)} THEN concat_ws(', ', {_name_mismatches(schema)}) "
            for schema in self.usable
            if schema.mismatches
        )
        return f"CASE {cases} END" if cases else "CAST(NULL AS STRING)"

    def header_reason_sql(self) -> str:
        """Write the cases of a reason that follow from the header."""
        if not self.wire.has_schema_id:
            return ""
        return (
            f"WHEN {self.id_column} IS NULL THEN 'missing_schema_id' "
            f"WHEN {self.refusal_sql(0)} IS NOT NULL THEN {self.refusal_sql(0)} "
        )

    def header_detail_sql(self, otherwise: str) -> str:
        """Write the detail that follows from the header, else `otherwise`."""
        return (
            f"CASE WHEN {self.id_column} IS NULL THEN "
            f"'the {self.part} does not begin with a zero byte and a schema id' "
            f"ELSE coalesce({self.refusal_sql(1)}, {otherwise}) END"
        )

    def refusal_sql(self, index: int) -> str:
        """Write the SQL of a refused schema's reason (0) or detail (1)."""
        cases = "".join(
            f"WHEN {schema.schema_id} THEN {write_text(schema.refusal[index])} "
            for schema in self.wire.schemas
            if schema.refusal is not None
        )
        return f"CASE {self.id_column} {cases} END" if cases else "CAST(NULL AS STRING)"


def add_payload(records: DataFrame, frame: WireFrame) -> DataFrame:
    """Add schema id and JSON text to the records; null where the schema is not usable."""
    usable = ", ".join(str(schema.schema_id) for schema in frame.usable)
    text = (
        f"substring({frame.part}, {HEADER_BYTES + 1})" if frame.wire.has_schema_id else frame.part
    )
    is_usable = f"{frame.id_column} IN ({usable})" if usable else "false"
    identified = records.withColumn(frame.id_column, F.expr(frame.id_sql()))
    return identified.withColumn(PAYLOAD, F.expr(f"CASE WHEN {is_usable} THEN {text} END"))


def add_decoded(records: DataFrame, frame: WireFrame) -> DataFrame:
    """Add the schema id and one decoded column per schema to the records."""
    decode = _decode_avro if frame.wire.format == "avro" else _decode_protobuf
    columns: dict[str, SparkColumn] = {frame.id_column: F.expr(frame.id_sql())}
    for schema in frame.usable:
        columns[frame.decoded_column(schema)] = decode(frame, schema)
    return records.withColumns(columns)


def _decode_avro(frame: WireFrame, schema: SchemaDecode) -> SparkColumn:
    payload: str = frame.part
    condition = f"{frame.part} IS NOT NULL"
    if frame.wire.has_schema_id:
        payload = f"substring({frame.part}, {HEADER_BYTES + 1})"
        condition = f"startswith({frame.part}, X'{write_header(schema.schema_id)}')"
    marked = F.expr(f"concat({payload}, X'{MARK.hex()}')")
    return F.when(F.expr(condition), from_avro(marked, schema.reader, _AVRO_OPTIONS))


def _decode_protobuf(frame: WireFrame, schema: SchemaDecode) -> SparkColumn:
    """Read messages in a Python worker: Spark's own reader is not published for this release."""
    is_framed = frame.wire.has_schema_id
    wire = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema.arrow_schema)))
    spec = MessageSpec(
        descriptor_set=base64.b64decode(schema.reader),
        message=schema.message,
        id_header=bytes.fromhex(write_header(schema.schema_id)) if is_framed else b"",
        indexes=tuple(bytes.fromhex(index) for index in schema.headers),
        wire=wire.field(0).type,
    )

    def read(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return read_messages(spec, batches)

    fields = [pa.field("value", spec.wire), pa.field("fault", pa.string())]
    given = from_arrow_type(pa.struct(fields))
    udf = arrow_udf(read, given)  # type: ignore[call-overload]  # its stubs know no structs
    decoded: SparkColumn = udf(F.col(frame.part))
    return decoded


def write_header(schema_id: int) -> str:
    """Write the five bytes in front of a payload as hex: zero, then the id."""
    return f"00{schema_id:08X}"


def count_ids(frame: WireFrame, good: str) -> dict[str, str]:
    """Write the aggregates that list the schemas of good records, and unresolved schema ids."""
    unknown = f"CASE WHEN {frame.unknown_sql()} THEN {frame.id_column} END"
    first = (
        f"min(CASE WHEN {frame.unknown_sql()} THEN "
        "named_struct('topic', _kafka.topic, 'partition', _kafka.partition, "
        "'offset', _kafka.offset) END)"
    )
    place = [f"{first}.{name}" for name in ("topic", "partition", "offset")]
    return {
        f"{frame.part}_ids": _join_set(f"CASE WHEN {good} THEN {frame.id_column} END"),
        f"{frame.part}_unknown": _join_set(unknown),
        f"{frame.part}_unknown_first": f"concat_ws(':', {', '.join(place)})",
    }


def read_ids(text: object) -> tuple[int, ...]:
    """Return the ids of an observation."""
    return tuple(int(word) for word in str(text or "").split(",") if word)


def _join_set(value: str) -> str:
    ids = f"slice(array_sort(collect_set({value})), 1, {MAX_UNKNOWN})"
    return f"array_join(CAST({ids} AS ARRAY<STRING>), ',')"


def _name_mismatches(schema: SchemaDecode) -> str:
    return ", ".join(
        f"CASE WHEN coalesce({condition}, false) THEN {write_text(f'{name} has a wrong form')} END"
        for name, condition in schema.mismatches.items()
    )


def _join(conditions: list[str]) -> str:
    return " OR ".join(f"coalesce({condition}, false)" for condition in conditions) or "false"
