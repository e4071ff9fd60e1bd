"""Partition values by Iceberg's transforms, computed for a whole Arrow batch.

This code travels to Spark's Python workers by value (see `writer.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Value: TypeAlias = int | str | bool | None
Codes: TypeAlias = NDArray[np.int64]
MAX_TEXT_BYTES = 256
"""Rows with a longer text in a partition column are left to Spark: such texts seldom repeat."""
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_UNITS = {"month": "datetime64[M]", "year": "datetime64[Y]"}
Words: TypeAlias = NDArray[np.uint32]
_BLOCK = 4


@dataclass
class PartitionIds:
    """Number the partitions of a task as they appear, up to a limit."""

    by: Sequence[tuple[str, str]]
    """Columns and transforms of the Iceberg specification."""
    limit: int
    _known: dict[tuple[Value, ...], int] = field(default_factory=dict)
    _values: list[tuple[Value, ...]] = field(default_factory=list)

    def assign(self, columns: Mapping[str, pa.Array], count: int) -> Codes:
        """Return the partition id of each of `count` rows; -1 where Spark has to place the row."""
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
        _, first, inverse = np.unique(joined[is_short], return_index=True, return_inverse=True)
        rows = np.flatnonzero(is_short)[first]
        found = [self._number(tuple(key[int(at)].as_py() for key in keys)) for at in rows]
        numbers[is_short] = np.array(found, np.int64)[inverse]
        return numbers

    def values(self, number: int) -> tuple[Value, ...]:
        """Return the values of a partition, as Iceberg's manifests hold them."""
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
            # It wraps below the smallest number, as in Iceberg's library.
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


def split(rows: pa.Table, partition_ids: Codes) -> Iterator[tuple[int, pa.Table]]:
    """Yield each partition id with its rows, in their order."""
    if not partition_ids.any():
        yield 0, rows
        return
    numbers, counts = np.unique(partition_ids, return_counts=True)
    if len(numbers) > 1:
        rows = rows.combine_chunks().take(pa.array(np.argsort(partition_ids, kind="stable")))
    begin = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        yield number, rows.slice(begin, count)
        begin += count


def hash_longs(numbers: NDArray[np.int64]) -> Words:
    """Hash integers, dates and instants by Murmur3; each has eight bytes."""
    words = np.ascontiguousarray(numbers).astype("<i8").view(np.uint32).reshape(-1, 2)
    found = np.zeros(len(words), np.uint32)
    for half in (0, 1):
        found = _mix(found, words[:, half])
    return _finish(found, np.full(len(words), 2 * _BLOCK, np.uint32))


def hash_texts(column: pa.StringArray) -> Words:
    """Hash short texts by Murmur3 of their UTF-8, null as the empty text, in passes by length."""
    count, begin = len(column), column.offset
    _, bounds, content = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[begin : begin + count + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    content_bytes = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]].astype(np.uint32)
    starts, ends = starts - ends[0], ends - ends[0]
    found = np.zeros(count, np.uint32)
    for block in range(int(lengths.max(initial=0)) // _BLOCK):
        rows = np.flatnonzero(lengths >= (block + 1) * _BLOCK)
        found[rows] = _mix(found[rows], _read(content_bytes, starts[rows] + block * _BLOCK, _BLOCK))
    rest = lengths % _BLOCK
    for size in range(1, _BLOCK):
        rows = np.flatnonzero(rest == size)
        found[rows] ^= _scramble(_read(content_bytes, (ends[1:] - rest)[rows], size))
    return _finish(found, lengths.astype(np.uint32))


def _read(content_bytes: Words, starts: NDArray[np.int64], size: int) -> Words:
    found = np.zeros(len(starts), np.uint32)
    for byte in range(size):
        found |= content_bytes[starts + byte] << np.uint32(8 * byte)
    return found


def _rotate(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scramble(words: Words) -> Words:
    return _rotate(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mix(found: Words, words: Words) -> Words:
    return _rotate(found ^ _scramble(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(found: Words, lengths: Words) -> Words:
    found = found ^ lengths
    found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return found ^ (found >> np.uint32(16))
