"""Mark records bad that a table or a merge cannot accept, so that no record stops its stream."""

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import RowLimits
from frazil.schemas.column_decoding import value_path
from frazil.streams.change_events import DELETE_OPERATIONS, UPSERT_OPERATIONS
from frazil.streams.column_types import quote_name, write_text
from frazil_spark.decode.frame import GOOD, INVALID, Decoded

_BEYOND = "_frazil_beyond"


def require_limits(decoded: Decoded, limits: RowLimits) -> Decoded:
    """Mark records bad whose values fit the types of their columns but exceed the limits."""
    cases = [f"WHEN {sql} THEN {write_text(text)}" for sql, text in _list_limits(decoded, limits)]
    if not cases:
        return decoded
    marked = decoded.frame.withColumn(
        _BEYOND, F.expr(f"CASE WHEN NOT {GOOD} THEN NULL {' '.join(cases)} END")
    )
    invalid = f"{decoded.invalid} OR {_BEYOND} IS NOT NULL"
    columns = {GOOD: F.expr(f"{GOOD} AND {_BEYOND} IS NULL")}
    if decoded.invalid == INVALID:
        columns[INVALID] = F.expr(invalid)
    return replace(
        decoded,
        frame=marked.withColumns(columns),
        invalid=INVALID if decoded.invalid == INVALID else f"({invalid})",
        reason=f"CASE WHEN {_BEYOND} IS NOT NULL THEN 'type_mismatch' ELSE {decoded.reason} END",
        detail=f"coalesce({_BEYOND}, {decoded.detail})",
    )


def _list_limits(decoded: Decoded, limits: RowLimits) -> Iterator[tuple[str, str]]:
    """Yield the SQL that is true for a value beyond a limit, and the dead letter's detail."""
    if limits.operation is not None:
        operations = (*UPSERT_OPERATIONS, *DELETE_OPERATIONS)
        known = ", ".join(map(write_text, operations))
        said = f"lower({_find_path(decoded, limits.operation)})"
        text = f"{limits.operation} is none of {', '.join(operations)}"
        yield f"NOT coalesce({said} IN ({known}), false)", text
    for name, lowest in limits.lowest.items():
        below = f"coalesce({_find_path(decoded, name)} < {lowest}BD, false)"
        yield below, f"{name} is too low for a partition"


def _find_path(decoded: Decoded, name: str) -> str:
    """Write the SQL that reads a column, or a field of one, by its dotted name."""
    top, *inner = name.split(".")
    column = next(each for each in decoded.columns if each.name == top)
    return ".".join([value_path(column), *map(quote_name, inner)])
