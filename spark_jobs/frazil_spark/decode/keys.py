"""Record keys as a column, decoded by the same rules as values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.schemas.column_decoding import RECORD, convert_sql, converted_name, value_path
from frazil.schemas.wire_format import KeyDecode
from frazil.streams.column_types import Column
from frazil_spark.decode.frame import GOOD, Decoded, DecodeOptions
from frazil_spark.decode.wire_format import WireFrame

KEY = "_frazil_key"
FAULT = "_frazil_key_fault"
_VALUE = "_frazil_whole_value"
_INVALID = "_frazil_any_invalid"
_VALUE_GOOD = "_frazil_value_good"

DecodeValue = Callable[
    [DataFrame, str, tuple[Column, ...], Sequence[str], DecodeOptions],
    Decoded,
]


@dataclass(frozen=True)
class Keyed:
    """Records with a column for their key, and a reason where the key does not decode."""

    frame: DataFrame
    column: Column
    wires: tuple[WireFrame, ...]

    @property
    def carried(self) -> tuple[str, ...]:
        """List the columns that the decode of the value must keep."""
        return (KEY, FAULT, *(wire.id_column for wire in self.wires))


def decode_key(
    records: DataFrame, key: KeyDecode, column: Column, options: DecodeOptions, decode: DecodeValue
) -> Keyed:
    """Decode keys like values; a missing key is a fault only for a required column."""
    names = records.columns
    renamed = records.withColumn(_VALUE, F.col("value")).withColumn("value", F.col("key"))
    kept = [name for name in names if name != "value"]
    decoded = decode(renamed, key.convert, (column,), (*kept, _VALUE), options)
    absent = "'null_value'" if column.required else "NULL"
    fault = f"CASE WHEN key IS NULL THEN {absent} WHEN NOT {GOOD} THEN {decoded.reason} END"
    frame = decoded.frame.select(
        F.expr(f"CASE WHEN {GOOD} THEN {value_path(column)} END").alias(KEY),
        F.expr(fault).alias(FAULT),
        *[wire.id_column for wire in decoded.wires],
        *kept,
        F.col(_VALUE).alias("value"),
    )
    return Keyed(frame, column, decoded.wires)


def include_key(decoded: Decoded, keyed: Keyed) -> Decoded:
    """Add the key's column to those of the value; a record is good if both decode."""
    column = keyed.column
    if convert_sql(column.type, "x"):
        placed = {converted_name(column.name): F.col(KEY)}
    else:
        placed = {RECORD: F.struct(f"{RECORD}.*", F.col(KEY).alias(column.name))}
    frame = decoded.frame.withColumn(_VALUE_GOOD, F.col(GOOD)).withColumns(placed)
    frame = frame.withColumns(
        {
            GOOD: F.expr(f"{GOOD} AND {FAULT} IS NULL"),
            _INVALID: F.expr(f"({decoded.invalid}) OR {FAULT} IS NOT NULL"),
        }
    )
    return replace(
        decoded,
        frame=frame,
        columns=(*decoded.columns, column),
        invalid=_INVALID,
        reason=f"CASE WHEN {_VALUE_GOOD} THEN 'bad_key' ELSE {decoded.reason} END",
        detail=f"CASE WHEN {_VALUE_GOOD} THEN concat('key: ', {FAULT}) ELSE {decoded.detail} END",
        wires=(*decoded.wires, *keyed.wires),
    )
