"""The hash of Iceberg's `bucket` transform for a whole Arrow column: Murmur3, 32 bits, seed 0.

This runs in Spark's Python workers, sent there by value (Iceberg spec, Appendix B). Words wrap
around, as the hash wants it.
"""

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

_BLOCK = 4


def hash_longs(numbers: NDArray[np.int64]) -> Words:
    """Hash whole numbers, dates and instants: all count as eight bytes."""
    words = np.ascontiguousarray(numbers).astype("<i8").view(np.uint32).reshape(-1, 2)
    found = np.zeros(len(words), np.uint32)
    for place in (0, 1):
        found = _mix(found, words[:, place])
    return _finish(found, np.full(len(words), 2 * _BLOCK, np.uint32))


def hash_texts(column: pa.StringArray) -> Words:
    """Hash short texts by their UTF-8, a null as the empty text: it passes over them by length."""
    count, begin = len(column), column.offset
    _, bounds, content = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[begin : begin + count + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    letters = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]].astype(np.uint32)
    starts, ends = starts - ends[0], ends - ends[0]
    found = np.zeros(count, np.uint32)
    for block in range(int(lengths.max(initial=0)) // _BLOCK):
        rows = np.flatnonzero(lengths >= (block + 1) * _BLOCK)
        found[rows] = _mix(found[rows], _read(letters, starts[rows] + block * _BLOCK, _BLOCK))
    rest = lengths % _BLOCK
    for size in range(1, _BLOCK):
        rows = np.flatnonzero(rest == size)
        found[rows] ^= _scramble(_read(letters, (ends[1:] - rest)[rows], size))
    return _finish(found, lengths.astype(np.uint32))


def _read(letters: Words, places: NDArray[np.int64], size: int) -> Words:
    found = np.zeros(len(places), np.uint32)
    for place in range(size):
        found |= letters[places + place] << np.uint32(8 * place)
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
