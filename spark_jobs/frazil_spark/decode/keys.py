"""Record keys as columns, decoded by the same rules as values; deletes that have only a key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.schemas.column_decoding import RECORD, convert_sql, converted_name, value_path
from frazil.schemas.wire_format import KeyDecode
from frazil.streams.change_events import OP, OP_TYPE
from frazil.streams.column_types import Column, parse_column, quote_name
from frazil_spark.decode.frame import GOOD, VALUE, Decoded, DecodeOptions
from frazil_spark.decode.wire_format import WireFrame

KEY = "_frazil_key"
FAULT = "_frazil_key_fault"
_WHOLE = "_frazil_whole_value"
_INVALID = "_frazil_any_invalid"
_VALUE_GOOD = "_frazil_value_good"
_TOMBSTONE = "_frazil_tombstone"

Placed = dict[str, SparkColumn]
DecodeValue = Callable[
    [DataFrame, str, tuple[Column, ...], Sequence[str], DecodeOptions],
    Decoded,
]


@dataclass(frozen=True)
class Keyed:
    """Records with the columns of their keys, and a reason where the key does not decode."""

    frame: DataFrame
    columns: tuple[Column, ...]
    wires: tuple[WireFrame, ...]
    operation: str | None

    @property
    def carried(self) -> tuple[str, ...]:
        """List the columns that the decode of the value must keep."""
        return (KEY, FAULT, *(wire.id_column for wire in self.wires))


def is_added_operation(column: Column, key: KeyDecode) -> bool:
    """Return whether a column only marks deletes and is not read from the value."""
    return key.operation == OP and column == parse_column(OP, OP_TYPE)


def decode_key(
    records: DataFrame,
    key: KeyDecode,
    columns: tuple[Column, ...],
    options: DecodeOptions,
    decode: DecodeValue,
) -> Keyed:
    """Decode keys like values; a missing key is a fault only for a required column."""
    names = records.columns
    renamed = records.withColumn(_WHOLE, F.col("value")).withColumn("value", F.col("key"))
    kept = [name for name in names if name != "value"]
    decoded = decode(renamed, key.convert, columns, (*kept, _WHOLE), options)
    absent = "'null_value'" if any(column.required for column in columns) else "NULL"
    fault = f"CASE WHEN key IS NULL THEN {absent} WHEN NOT {GOOD} THEN {decoded.reason} END"
    parts = ", ".join(f"'{column.name}', {value_path(column)}" for column in columns)
    frame = decoded.frame.select(
        F.expr(f"CASE WHEN {GOOD} THEN named_struct({parts}) END").alias(KEY),
        F.expr(fault).alias(FAULT),
        *[wire.id_column for wire in decoded.wires],
        *kept,
        F.col(_WHOLE).alias("value"),
    )
    return Keyed(frame, columns, decoded.wires, key.operation)


def include_key(decoded: Decoded, keyed: Keyed, names: Sequence[str]) -> Decoded:
    """Add the columns of the key to those of the value; a record is good if both decode.

    With an operation, a record without a value is good if its key decodes: it is a delete. `names`
    are all columns in their order.
    """
    is_delete = f"{VALUE} IS NULL AND _kafka.key IS NOT NULL" if keyed.operation else "false"
    frame = decoded.frame.withColumn(_TOMBSTONE, F.expr(is_delete))
    frame = frame.withColumn(_VALUE_GOOD, F.expr(f"{GOOD} OR {_TOMBSTONE}"))
    placed = {column.name: F.col(KEY)[column.name] for column in keyed.columns}
    columns = {column.name: column for column in (*decoded.columns, *keyed.columns)}
    if keyed.operation is not None:
        columns.setdefault(keyed.operation, parse_column(OP, OP_TYPE))
        placed[keyed.operation] = _write_operation(keyed.operation, decoded)
    own = [column.name for column in decoded.columns]
    frame = _place(frame, own, [columns[name] for name in placed], placed)
    frame = frame.withColumns(
        {
            GOOD: F.expr(f"{_VALUE_GOOD} AND {FAULT} IS NULL"),
            _INVALID: F.expr(f"NOT {_TOMBSTONE} AND ({decoded.invalid}) OR {FAULT} IS NOT NULL"),
        }
    )
    return replace(
        decoded,
        frame=frame,
        columns=tuple(columns[name] for name in names),
        invalid=_INVALID,
        reason=f"CASE WHEN {_VALUE_GOOD} THEN 'bad_key' ELSE {decoded.reason} END",
        detail=f"CASE WHEN {_VALUE_GOOD} THEN concat('key: ', {FAULT}) ELSE {decoded.detail} END",
        wires=(*decoded.wires, *keyed.wires),
    )


def _write_operation(name: str, decoded: Decoded) -> SparkColumn:
    """Write the operation: delete for a record without a value, else the value's, or update."""
    said = next((value_path(c) for c in decoded.columns if c.name == name), "'u'")
    return F.when(F.col(_TOMBSTONE), F.lit("d")).otherwise(F.expr(said))


def _place(
    frame: DataFrame, names: Sequence[str], columns: Sequence[Column], placed: Placed
) -> DataFrame:
    """Put columns where the decode of values has its own: beside the record if converted.

    `names` are the columns that the record has; a further one of this name replaces it.
    """
    beside = {c.name: placed[c.name] for c in columns if convert_sql(c.type, "x")}
    inside = [c.name for c in columns if c.name not in beside]
    new = [placed[name].alias(name) for name in inside if name not in names]
    record = F.struct(f"{RECORD}.*", *new)
    for name in (each for each in inside if each in names):
        record = record.withField(quote_name(name), placed[name])
    converted = {converted_name(name): value for name, value in beside.items()}
    return frame.withColumns({**converted, **({RECORD: record} if inside else {})})
