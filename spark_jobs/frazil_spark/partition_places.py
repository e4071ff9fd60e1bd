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

MAX_TEXT_BYTES = 256
"""Rows with a longer text in a partition's column are left to Spark: a name for each is no use."""

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_UNITS = {"month": "datetime64[M]", "year": "datetime64[Y]"}


@dataclass
class Places:
    """Give each partition a number, in the order in which they come, up to a number of them."""

    by: Sequence[tuple[str, str]]
    """Columns, and the transforms of the Iceberg specification."""
    limit: int
    _known: dict[tuple[Value, ...], int] = field(default_factory=dict)
    _values: list[tuple[Value, ...]] = field(default_factory=list)

    def find(self, columns: Mapping[str, pa.Array], count: int) -> Codes:
        """Say in which partition each of `count` rows is; -1 where Spark has to find it."""
        if not self.by:
            self._number(())
            return np.zeros(count, np.int64)
        is_short, keys = np.ones(count, np.bool_), list[pa.Array]()
        for name, kind in self.by:
            column = columns[name]
            if pa.types.is_string(column.type):
                lengths = pc.binary_length(column).fill_null(0)
                short = pc.less_equal(lengths, MAX_TEXT_BYTES)
                is_short &= short.to_numpy(zero_copy_only=False)
                column = pc.if_else(short, column, None)
            keys.append(transform(column, kind))
        joined = np.zeros(count, np.int64)
        for key in keys:
            encoded = key.dictionary_encode(null_encoding="encode")
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            joined = joined * (len(encoded.dictionary) + 1) + codes
            joined = np.unique(joined, return_inverse=True)[1]
        numbers = np.full(count, -1, np.int64)
        _, first, places = np.unique(joined[is_short], return_index=True, return_inverse=True)
        rows = np.flatnonzero(is_short)[first]
        found = [self._number(tuple(key[int(at)].as_py() for key in keys)) for at in rows]
        numbers[is_short] = np.array(found, np.int64)[places]
        return numbers

    def values(self, number: int) -> tuple[Value, ...]:
        """Give the values of a partition, as Iceberg's manifests hold them."""
        return self._values[number]

    def _number(self, values: tuple[Value, ...]) -> int:
        known = self._known.get(values)
        if known is not None:
            return known
        if len(self._values) >= self.limit:
            return -1
        self._values.append(values)
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
    if not places.any():
        yield 0, rows
        return
    numbers, counts = np.unique(places, return_counts=True)
    if len(numbers) > 1:
        rows = rows.combine_chunks().take(pa.array(np.argsort(places, kind="stable")))
    begin = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        yield number, rows.slice(begin, count)
        begin += count
