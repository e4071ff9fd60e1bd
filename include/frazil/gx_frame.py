"""Rows as the pandas frame that Great Expectations gets: Arrow's own conversion, but lossless.

Integers beside nulls become floats only where that is exact, times are nanoseconds where they fit
(Great Expectations looks for that type), single floats are doubles. Nothing else is changed.
"""

from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from frazil import keys
from frazil.quality_sql import EXACT_INTEGER

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    Frame: TypeAlias = pa.Table | pd.DataFrame
    Series: TypeAlias = pd.Series[Any]

_LONG_LIMIT = 2**63
_COORDINATE = ("topic", "partition", "offset")


def to_pandas(frame: "Frame") -> "pd.DataFrame":
    """Convert rows; with the column `_kafka` they are put in the order of Kafka first."""
    import pandas as pd  # noqa: PLC0415 - slow

    if isinstance(frame, pd.DataFrame):
        return frame
    table = sort_by_coordinate(frame)
    columns = {name: _convert(table.column(name)) for name in table.column_names}
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows))


def sort_by_coordinate(table: "pa.Table") -> "pa.Table":
    """Sort by topic, partition and offset if the rows carry them, and drop them."""
    import pyarrow as pa  # noqa: PLC0415 - slow
    import pyarrow.compute as pc  # noqa: PLC0415 - slow

    if keys.KAFKA_COLUMN not in table.column_names:
        return table
    kafka = table.column(keys.KAFKA_COLUMN)
    coordinates = pa.table({name: pc.struct_field(kafka, name) for name in _COORDINATE})
    order = pc.sort_indices(coordinates, [(name, "ascending") for name in _COORDINATE])
    return table.drop_columns([keys.KAFKA_COLUMN]).take(order)


def _convert(column: "pa.ChunkedArray") -> "Series":
    import pandas as pd  # noqa: PLC0415 - slow
    import pyarrow as pa  # noqa: PLC0415 - slow

    if pa.types.is_integer(column.type):
        if not _loses_digits(column):
            return cast("Series", column.cast(pa.int64()).to_pandas())
        values = [float("nan") if value is None else value for value in column.to_pylist()]
        return pd.Series(values, dtype=object)
    if pa.types.is_floating(column.type):
        return cast("Series", column.cast(pa.float64()).to_pandas())
    if pa.types.is_timestamp(column.type):
        return _convert_times(column)
    return cast("Series", column.to_pandas())


def _loses_digits(column: "pa.ChunkedArray") -> bool:
    """Say whether pandas would round a value, or wrap a sum of them."""
    import pyarrow.compute as pc  # noqa: PLC0415 - slow

    limits = pc.min_max(column).as_py()
    largest = max(abs(limits["min"] or 0), abs(limits["max"] or 0))
    return bool(largest > EXACT_INTEGER or largest * len(column) >= _LONG_LIMIT)


def _convert_times(column: "pa.ChunkedArray") -> "Series":
    import pyarrow as pa  # noqa: PLC0415 - slow

    try:
        return cast("Series", column.cast(pa.timestamp("ns", column.type.tz)).to_pandas())
    except pa.ArrowInvalid:  # years before 1678 or after 2261
        return cast("Series", column.to_pandas())


def decimals_to_floats(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Convert columns of decimals to 64-bit floats, missing values to NaN."""
    decimals = [name for name in rows.columns if _holds_decimals(rows[name])]
    return rows.assign(**{name: rows[name].map(_to_float).astype(float) for name in decimals})


def _holds_decimals(values: "Series") -> bool:
    return values.dtype == object and any(isinstance(value, Decimal) for value in values)


def _to_float(value: object) -> float:
    return float(value) if isinstance(value, Decimal) else float("nan")
