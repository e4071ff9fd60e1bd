"""Rows by partition: what Iceberg's transforms make of a column, for a whole Arrow batch.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil_spark.bucket_hash import Words, hash_longs, hash_texts

Value: TypeAlias = int | str | bool | None
Codes: TypeAlias = NDArray[np.int64]

MOST = 64
"""Files that a task keeps open at once: rows of further partitions are left to Spark's shuffle."""

LONGEST = 256
"""Bytes of a text that may be a partition of a worker's: it stands in each file's footer."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_UNITS = {"month": "datetime64[M]", "year": "datetime64[Y]"}


@dataclass
class Places:
    """Give each partition a number, in the order in which they come."""

    by: Sequence[tuple[str, str]]
    """Columns, and the transforms of the Iceberg specification."""
    _known: dict[tuple[Value, ...], int] = field(default_factory=dict)

    def find(self, columns: Mapping[str, pa.Array], count: int) -> Codes:
        """Say in which partition each of `count` rows is; -1 for one too many."""
        joined = np.zeros(count, np.int64)
        keys = [transform(columns[name], kind) for name, kind in self.by]
        for key in keys:
            encoded = key.dictionary_encode(null_encoding="encode")
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            joined = joined * (len(encoded.dictionary) + 1) + codes
            joined = np.unique(joined, return_inverse=True)[1]
        _, first, places = np.unique(joined, return_index=True, return_inverse=True)
        found = [self._number(tuple(key[int(at)].as_py() for key in keys)) for at in first]
        numbers: Codes = np.array(found, np.int64)[places]
        return numbers

    def values(self, number: int) -> tuple[Value, ...]:
        """Give the values of a partition, as Iceberg's manifests hold them."""
        return next(values for values, known in self._known.items() if known == number)

    def _number(self, values: tuple[Value, ...]) -> int:
        is_long = any(isinstance(v, str) and len(v.encode()) > LONGEST for v in values)
        if values not in self._known and (is_long or len(self._known) >= MOST):
            return -1
        return self._known.setdefault(values, len(self._known))


def transform(column: pa.Array, text: str) -> pa.Array:
    """Apply a transform; dates count in days, hours and months since 1970 (Iceberg spec)."""
    kind, _, width = text.rstrip("]").partition("[")
    if kind == "identity":
        return column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    if pa.types.is_string(column.type):
        if kind == "truncate":
            return pc.utf8_slice_codeunits(column, 0, int(width))
        found = _find_buckets(hash_texts(column), int(width))
    else:
        found = _transform_numbers(column, kind, int(width or 0))
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(found, pa.int64(), mask=missing)


def _transform_numbers(column: pa.Array, kind: str, width: int) -> Codes:
    is_date = pa.types.is_date(column.type)
    counted = column.cast(pa.int32() if is_date else pa.int64()).fill_null(0)
    numbers: Codes = counted.to_numpy(zero_copy_only=False).astype(np.int64)
    match kind:
        case "bucket":
            return _find_buckets(hash_longs(numbers), width)
        case "truncate":
            cut = numbers - numbers % width
            # Below the smallest number it goes on at the largest one, as in Iceberg's library.
            return cut.astype(np.int32).astype(np.int64) if pa.types.is_int32(column.type) else cut
        case "hour":
            return numbers // _HOUR_US
    days = numbers if is_date else numbers // _DAY_US
    return days if kind == "day" else _count_from_1970(days, _UNITS[kind])


def _find_buckets(hashes: Words, count: int) -> Codes:
    return (hashes & np.uint32(2**31 - 1)).astype(np.int64) % count


def _count_from_1970(days: Codes, unit: str) -> Codes:
    counted: Codes = days.astype("datetime64[D]").astype(unit).astype(np.int64)
    return counted


def split(rows: pa.Table, places: Codes) -> Iterator[tuple[int, pa.Table]]:
    """Give the rows of each partition together, in their order."""
    numbers, counts = np.unique(places, return_counts=True)
    if len(numbers) > 1:
        rows = rows.combine_chunks().take(pa.array(np.argsort(places, kind="stable")))
    begin = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        yield number, rows.slice(begin, count)
        begin += count
