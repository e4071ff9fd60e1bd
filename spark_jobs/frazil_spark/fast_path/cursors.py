"""Read positions in many payloads at once, advanced together field by field.

This code travels to Spark's Python workers by value: it imports NumPy and PyArrow only. One call
reads the same field of every payload, so Python's cost per call is shared by all.

Each payload has its own position and end, so a mistake in one does not affect another. A payload
that is in doubt is refused: its position becomes one beyond its end and stays there. A payload was
read whole only if its position is exactly its end.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Longs: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Layout: TypeAlias = "dict[str, Layout] | list[Layout] | str | int"
"""How a schema's payloads are read, written by `frazil.schemas.fast_path_layouts`."""

VARINT32_BYTES, VARINT64_BYTES = 5, 10
"""Most bytes of a variable-length number of 32 and of 64 bits."""

FIRST_DAY, LAST_DAY = -25_567, 2_932_896
"""From 1900 to 9999: instants outside are left to Spark."""

_MICROS_OF_A_DAY = 86_400_000_000
_DECIMAL_BYTES = 8
MAX_ITEMS = 100
"""Longer lists are left to Spark: each item of the longest list is one more call for all."""

_LOW_BITS = np.uint8(127)
_WIDEST_INT = np.uint64(2**32 - 1)
_SPARE = 16
"""Bytes behind the last payload that a position beyond its end may read."""


@dataclass
class Cursors:
    """One position and one end for each payload of a batch, in the order of its bytes."""

    content: NDArray[np.uint8]
    at: Longs
    end: Longs

    def __post_init__(self) -> None:
        """Set the position of refused payloads."""
        self._stop = self.end + 1

    def __len__(self) -> int:
        """Count the payloads."""
        return len(self.at)

    @property
    def is_read(self) -> Mask:
        """Mark the payloads that were read exactly to their end."""
        return np.equal(self.at, self.end)

    def refuse(self, marks: Mask) -> None:
        """Refuse the marked payloads."""
        if marks.any():
            self.at = np.where(marks, self._stop, self.at)

    def pick(self, rows: Longs) -> "Cursors":
        """Return cursors of some payloads; `put_back` stores their new positions."""
        if len(rows) == len(self):
            return Cursors(self.content, self.at.copy(), self.end)
        return Cursors(self.content, self.at[rows], self.end[rows])

    def put_back(self, rows: Longs, picked: "Cursors") -> None:
        """Store the positions of picked payloads."""
        self.at[rows] = picked.at

    def enter(self, starts: Longs, ends: Longs) -> "Cursors":
        """Return cursors that read spans as payloads of their own."""
        return Cursors(self.content, starts.copy(), ends)

    def begin_with(self, given: bytes) -> Mask:
        """Mark the payloads whose next bytes are these."""
        marks = self.end - self.at >= len(given)
        for index, byte in enumerate(given):
            found = self.content[np.minimum(self.at + index, len(self.content) - 1)]
            marks &= found == byte
        return marks

    def skip(self, size: int) -> None:
        """Advance by a number of bytes that are known to exist."""
        self.at = self.at + size

    def read_varints(self, most: int = VARINT64_BYTES) -> NDArray[np.uint64]:
        """Read a number of seven bits per byte; refuse more than `most` bytes or 64 bits."""
        given = self.content[self.at]
        at, numbers = self.at + 1, (given & _LOW_BITS).astype(np.int64)
        more = given > _LOW_BITS
        for index in range(1, most):
            if not more.any():
                break
            given = self.content[np.minimum(at, self._stop)]
            numbers |= np.where(more, given & _LOW_BITS, 0).astype(np.int64) << (7 * index)
            at += more
            more &= given > (_LOW_BITS if index < VARINT64_BYTES - 1 else 1)
        self.at = np.minimum(np.where(more, self._stop, at), self._stop)
        return numbers.view(np.uint64)

    def read_signed(self, most: int = VARINT64_BYTES) -> Longs:
        """Read a zigzag number, of 32 bits if `most` is `VARINT32_BYTES`."""
        numbers = self.read_varints(most)
        if most == VARINT32_BYTES:
            self.refuse(numbers > _WIDEST_INT)
        half, sign = (
            (numbers >> np.uint64(1)).view(np.int64),
            (numbers & np.uint64(1)).view(np.int64),
        )
        return half ^ -sign

    def read_spans(self, lengths: Longs) -> tuple[Longs, Longs]:
        """Return start and end of spans of these lengths; refused payloads get empty ones."""
        starts, ends = self.at, self.at + lengths
        short = (lengths < 0) | (ends > self.end)
        if short.any():
            starts = np.minimum(starts, self.end)
            ends = np.where(short, starts, ends)
        self.at = np.where(short, self._stop, ends)
        return starts, ends

    def read_fixed(self, size: int) -> NDArray[np.uint8]:
        """Read a fixed number of bytes of each payload, as rows of a matrix."""
        positions = self.at[:, np.newaxis] + np.arange(size)
        self.at = np.minimum(self.at + size, self._stop)
        found: NDArray[np.uint8] = self.content[np.minimum(positions, len(self.content) - 1)]
        return found

    def read_reals(self, kind: str) -> NDArray[np.floating]:
        """Read floats (`<f4`) or doubles (`<f8`); refuse NaN, infinity and negative zero."""
        values = self.read_fixed(np.dtype(kind).itemsize).view(kind)[:, 0]
        self.refuse(~np.isfinite(values) | ((values == 0) & np.signbit(values)))
        return values

    def read_booleans(self) -> Mask:
        """Read a byte that must be 0 or 1."""
        given = self.read_fixed(1)[:, 0]
        self.refuse(given > 1)
        return np.equal(given, 1)

    def take_bytes(self, starts: Longs, ends: Longs) -> pa.BinaryArray:
        """Copy spans, one of each payload, into an array.

        Spans and the gaps between them alternate, so their bounds already are an array's offsets.
        """
        count = len(starts)
        if not count:
            return pa.array([], pa.binary())
        bounds = np.empty((count, 2), np.int32)
        bounds[:, 0], bounds[:, 1] = starts, ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.content)]
        spans = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        return spans.take(make_array(np.arange(0, 2 * count, 2), pa.int64()))

    def take_texts(self, starts: Longs, ends: Longs) -> pa.StringArray:
        """Copy spans of text; refuse payloads whose text is not valid UTF-8."""
        found = self.take_bytes(starts, ends)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            is_valid = np.array([is_valid_utf8(value) for value in found.to_pylist()], np.bool_)
            self.refuse(~is_valid)
            return self.take_bytes(starts, np.where(is_valid, ends, starts)).cast(pa.string())


def open_payloads(values: pa.BinaryArray) -> Cursors:
    """Return cursors at the beginning of each value; null counts as empty."""
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    first, last = (int(bounds[0]), int(bounds[-1])) if len(values) else (0, 0)
    held = np.frombuffer(content, np.uint8)[first:last] if content else np.empty(0, np.uint8)
    positions = bounds.astype(np.int64) - first
    spare = np.zeros(_SPARE, np.uint8)
    return Cursors(np.concatenate([held, spare]), positions[:-1].copy(), positions[1:])


def is_valid_utf8(value: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def make_array(values: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """Make an array of numbers whose type has their width, or of booleans."""
    if pa.types.is_boolean(kind):
        held: NDArray[np.generic] = np.packbits(values.astype(np.bool_), bitorder="little")
    else:
        held = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(held)])


def spread(values: pa.Array, rows: Mask) -> pa.Array:
    """Return an array with the values at the marked rows, in order, and null at the others."""
    if rows.all():
        return values
    positions = make_array(np.cumsum(rows) - 1, pa.int64())
    return values.take(pc.if_else(make_array(rows, pa.bool_()), positions, None))


def join_lists(
    parts: list[pa.Array], rows: list[Longs], counts: Longs, kind: pa.ListType
) -> pa.Array:
    """Make lists of all first items, all second items …; `rows` holds the list of each item."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    items = pa.concat_arrays(parts) if parts else pa.array([], kind.value_type)
    if len(parts) > 1:
        order = np.argsort(np.concatenate(rows), kind="stable")
        items = items.take(make_array(order, pa.int64()))
    return pa.ListArray.from_arrays(make_array(offsets, pa.int32()), items, type=kind)


def make_days(cursors: Cursors, days: Longs) -> pa.Array:
    """Make dates of days since 1970; refuse those outside 1900 to 9999."""
    cursors.refuse((days < FIRST_DAY) | (days > LAST_DAY))
    return make_array(days.astype(np.int32), pa.date32())


def make_instants(cursors: Cursors, counts: Longs, unit: int, kind: pa.DataType) -> pa.Array:
    """Make instants of counts since 1970; `unit` is in microseconds. Refuse those before 1900."""
    day = _MICROS_OF_A_DAY // unit
    cursors.refuse((counts < FIRST_DAY * day) | (counts >= (LAST_DAY + 1) * day))
    return make_array(counts * unit, kind)


def make_decimals(
    cursors: Cursors, starts: Longs, ends: Longs, kind: pa.Decimal128Type
) -> pa.Array:
    """Make decimals of big-endian numbers; refuse over 8 bytes or more digits than the column's."""
    lengths = ends - starts
    cursors.refuse((lengths < 1) | (lengths > _DECIMAL_BYTES))
    highest = cursors.content[starts]
    numbers = np.where(highest > _LOW_BITS, -1, 0)
    for index in range(min(int(lengths.max(initial=0)), _DECIMAL_BYTES)):
        following = cursors.content[np.minimum(starts + index, cursors.end)]
        numbers = np.where(lengths > index, (numbers << 8) | following, numbers)
    cursors.refuse((numbers >= 10**kind.precision) | (numbers <= -(10**kind.precision)))
    return make_array(np.column_stack((numbers, numbers >> 63)), kind)
