"""Require an operation that a merge knows, so that no record stops the merges of its stream."""

from dataclasses import replace

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.quality.sql import write_text
from frazil.schemas.column_decoding import value_path
from frazil.streams.change_events import DELETE_OPERATIONS, UPSERT_OPERATIONS
from frazil_spark.decode.frame import GOOD, Decoded

_WITHOUT_OPERATION = "_frazil_without_operation"


def require_operation(decoded: Decoded, name: str | None) -> Decoded:
    """Mark records bad whose column of this name holds no operation of a change."""
    if name is None:
        return decoded
    path = value_path(next(c for c in decoded.columns if c.name == name))
    operations = (*UPSERT_OPERATIONS, *DELETE_OPERATIONS)
    known = ", ".join(map(write_text, operations))
    unknown = f"{GOOD} AND NOT coalesce(lower({path}) IN ({known}), false)"
    marked = decoded.frame.withColumn(_WITHOUT_OPERATION, F.expr(unknown))
    detail = write_text(f"{name} is none of {', '.join(operations)}")
    return replace(
        decoded,
        frame=marked.withColumn(GOOD, F.expr(f"{GOOD} AND NOT {_WITHOUT_OPERATION}")),
        reason=f"CASE WHEN {_WITHOUT_OPERATION} THEN 'type_mismatch' ELSE {decoded.reason} END",
        detail=f"CASE WHEN {_WITHOUT_OPERATION} THEN {detail} ELSE {decoded.detail} END",
    )
