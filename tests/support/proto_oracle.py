"""What docs/formats.md and docs/types.md say of a Protobuf message, by the standard library alone.

It shares no code with Frazil: `judge` returns the values of a row, BAD for a dead letter, or UNTOLD
where no serializer writes such bytes and readers differ.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from support.avro_oracle import DoubtError, fit_decimal, fit_instant
from support.json_oracle import BAD, UNTOLD, MisfitError
from support.proto_fuzz import TIMESTAMP, WRAPPERS, Field, Kind, wire_type

_DEEPEST = 90
_WORDS = {"fixed32": "<I", "sfixed32": "<i", "fixed64": "<Q", "sfixed64": "<q", "float": "<f"}


@dataclass
class Wire:
    """A message's bytes and the position in them."""

    content: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        """Take some bytes.

        Raises:
            MisfitError: there are not so many.
        """
        if self.at + size > len(self.content):
            raise MisfitError(size)
        self.at += size
        return self.content[self.at - size : self.at]

    def take_varint(self, most: int = 10) -> int:
        """Take a number of 64 bits."""
        number = 0
        for index in range(most):
            byte = self.take(1)[0]
            number |= (byte & 127) << (7 * index)
            if byte < 128:
                if number >= 2**64:
                    raise DoubtError(number)
                return number
        if most < 10:
            raise DoubtError(number)
        raise MisfitError(number)

    def take_tag(self) -> tuple[int, int]:
        """Take a field's number and wire type."""
        found = self.take_varint(5)
        if found >= 2**32 or found >> 3 == 0 or found & 7 > 5:
            raise MisfitError(found)
        return found >> 3, found & 7

    def take_raw(self, number: int, wire: int, depth: int) -> bytes | int:
        """Take a value by its wire type; of a group its bytes."""
        match wire:
            case 0:
                return self.take_varint()
            case 1 | 5:
                return self.take(8 if wire == 1 else 4)
            case 2:
                return self.take(self.take_varint())
            case 3 if depth < _DEEPEST:
                return self.take_group(number, depth)
            case 3:
                raise DoubtError(number)
        raise MisfitError(wire)

    def take_group(self, number: int, depth: int) -> bytes:
        """Take a group to its end."""
        start = self.at
        while True:
            end = self.at
            inner, wire = self.take_tag()
            if wire == 4:
                if inner != number:
                    raise MisfitError(inner)
                return self.content[start:end]
            self.take_raw(inner, wire, depth + 1)


@dataclass(frozen=True)
class Oracle:
    """The oracle of one schema."""

    message: Kind
    is_open: bool
    """Whether it is proto3: texts are checked, and single fields have zero values."""

    def judge(self, payload: bytes, columns: Mapping[str, object]) -> object:
        """Return the values of the record's columns, BAD or UNTOLD."""
        try:
            return self._fit_message([payload], self.message, columns)
        except MisfitError:
            return BAD
        except DoubtError:
            return UNTOLD

    def _fit_message(
        self, spans: list[bytes], kind: Kind, wanted: Mapping[str, object], depth: int = 0
    ) -> dict[str, object]:
        """Return the wanted fields of a message; several spans of it are merged."""
        given = self._collect(spans, kind, depth)
        names = {name.rstrip("!"): each for name, each in wanted.items()}
        row: dict[str, object] = dict.fromkeys(names)
        for each in kind.fields or ():
            values = given.get(each.number, [])
            if each.label == "required" and not values:
                raise MisfitError(each)
            row |= {each.name: self._fit_field(values, each, names.get(each.name), depth)}
        if any(name.endswith("!") and row[name[:-1]] is None for name in wanted):
            raise MisfitError(row)
        return {name: row[name] for name in names}

    def _collect(self, spans: list[bytes], kind: Kind, depth: int) -> dict[int, list[bytes | int]]:
        """Return the values of each known field in order; of a oneof only the last field's."""
        if depth > _DEEPEST:
            raise DoubtError(depth)
        fields, given = (
            {each.number: each for each in kind.fields or ()},
            dict[int, list[bytes | int]](),
        )
        for span in spans:
            wire = Wire(span)
            while wire.at < len(span):
                number, form = wire.take_tag()
                if form == 4:
                    raise MisfitError(number)
                value, each = wire.take_raw(number, form, depth), fields.get(number)
                if each is None or form not in _forms(each):
                    continue
                if each.oneof:
                    for other in kind.fields or ():
                        if other.oneof and other.number != number:
                            cleared = given.pop(other.number, [])
                            self._fit_field(cleared, other, None, depth + 1)  # it must be valid
                given.setdefault(number, []).extend(_unpack(each, value, form))
        return given

    def _fit_field(
        self, values: list[bytes | int], each: Field, kind: object, depth: int
    ) -> object:
        """Return a field's value as its column holds it; without a column only read it."""
        if each.key is not None:
            return self._fit_map(values, each, each.key, kind, depth)
        if each.label == "repeated":
            inner = kind[1] if isinstance(kind, list) else None
            return [self._fit_value([value], each.kind, inner, depth) for value in values]
        if each.kind.fields is not None:
            spans = [value for value in values if isinstance(value, bytes)]
            return self._fit_value(spans, each.kind, kind, depth) if spans else None
        for value in values:
            self._fit_value([value], each.kind, None, depth)  # each one is checked
        if values:
            return self._fit_value(values[-1:], each.kind, kind, depth)
        has_zero = self.is_open and each.label == "" and not each.oneof
        return self._fit_value([_zero(each.kind)], each.kind, kind, depth) if has_zero else None

    def _fit_map(
        self, entries: list[bytes | int], each: Field, key: Kind, kind: object, depth: int
    ) -> object:
        pair = Kind("", (), [Field(1, "key", key, ""), Field(2, "value", each.kind, "")])
        inner, found = (
            (kind[1] if isinstance(kind, list) else None),
            dict[object, list[bytes | int]](),
        )
        for entry in entries:
            given = self._collect([entry] if isinstance(entry, bytes) else [], pair, depth + 1)
            for part in given.get(1, []):
                self._fit_value([part], key, None, depth)
            named = self._fit_value(given.get(1, [_zero(key)])[-1:], key, None, depth)
            values = given.get(2, [_zero(each.kind)])
            if each.kind.fields is None:
                for part in values:
                    self._fit_value([part], each.kind, None, depth)
                values = values[-1:]
            try:
                self._fit_value(values, each.kind, None, depth)  # also one that is replaced later
            except MisfitError as error:
                if 2 not in given:  # no serializer leaves out a message
                    raise DoubtError(each) from error
                raise
            found[named] = values
        if inner is None:
            return None
        return [
            (_write_key(k), self._fit_value(v, each.kind, inner, depth)) for k, v in found.items()
        ]

    def _fit_value(  # noqa: C901, PLR0911 - one for each kind
        self, given: list[bytes | int], kind: Kind, column: object, depth: int
    ) -> object:
        """Return a value as its column holds it; of a message it may have several parts."""
        if kind.fields is not None and not kind.is_own and not self.is_open:
            return Oracle(kind, is_open=True)._fit_value(given, kind, column, depth)  # noqa: SLF001
        if kind.fields is not None:
            spans = [each for each in given if isinstance(each, bytes)]
            if kind.name == TIMESTAMP and column is not None:
                return self._fit_instant(spans, kind, depth)
            if kind.name in WRAPPERS and column is not None:
                found = self._collect(spans, kind, depth + 1).get(
                    1, [_zero(Kind(WRAPPERS[kind.name]))]
                )
                return self._fit_field(
                    found, Field(1, "value", Kind(WRAPPERS[kind.name]), ""), column, depth
                )
            inner = column[1] if isinstance(column, list) else {}
            row = self._fit_message(spans, kind, inner, depth + 1)
            if column == "binary":
                return UNTOLD if kind.fields else b"".join(spans)
            return row if column is not None else None
        raw = given[-1]
        if kind.symbols:
            return _fit_enum(raw, kind, column)
        value = _read_scalar(raw, kind.name)
        if kind.name == "string" and isinstance(value, bytes):
            return self._fit_text(value, column)
        match column:
            case str(word) if word.startswith("decimal") and isinstance(value, int):
                return fit_decimal(value, 0, word)
            case "double" if isinstance(value, int | float):
                return float(value)
            case "fixed(3)" if isinstance(value, bytes) and len(value) != 3:
                raise MisfitError(value)
        return value

    def _fit_text(self, value: bytes, column: object) -> object:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            if self.is_open or column is not None:
                raise MisfitError(value) from error
        return value

    def _fit_instant(self, spans: list[bytes], kind: Kind, depth: int) -> object:
        parts = self._fit_message(spans, kind, {"seconds": "long", "nanos": "int"}, depth + 1)
        seconds, nanos = parts["seconds"], parts["nanos"]
        assert isinstance(seconds, int)
        assert isinstance(nanos, int)
        if not 0 <= nanos < 10**9:
            raise MisfitError(nanos)
        return fit_instant(seconds * 10**9 + nanos, "nanos", "timestamptz")


def _forms(each: Field) -> set[int]:
    own = 2 if each.key is not None else wire_type(each.kind)
    return {own, 2} if each.label == "repeated" else {own}


def _unpack(each: Field, value: bytes | int, form: int) -> list[bytes | int]:
    own = 2 if each.key is not None else wire_type(each.kind)
    if form == own or not isinstance(value, bytes):
        return [value]
    wire, found = Wire(value), list[bytes | int]()
    while wire.at < len(value):
        found.append(wire.take_raw(0, own, 0))
    return found


def _zero(kind: Kind) -> bytes | int:
    wire = wire_type(kind)
    return {0: 0, 1: b"\x00" * 8, 5: b"\x00" * 4, 2: b""}[wire]  # type: ignore[return-value]


def _signed(number: int, bits: int) -> int:
    number &= 2**bits - 1
    return number - 2**bits if number >= 2 ** (bits - 1) else number


def _fit_enum(raw: bytes | int, kind: Kind, column: object) -> object:
    assert isinstance(raw, int)
    number = _signed(raw, 32)
    if column != "string":
        return number
    names = dict(kind.symbols)
    if number not in names:
        raise MisfitError(number)
    return names[number]


def _read_scalar(raw: bytes | int, name: str) -> object:
    if isinstance(raw, bytes):
        word = {**_WORDS, "double": "<d"}.get(name)
        return struct.unpack(word, raw)[0] if word else raw
    match name:
        case "bool":
            return raw != 0
        case "int32" | "int64":
            return _signed(raw, int(name[3:]))
        case "uint32":
            return raw & (2**32 - 1)
        case "sint32" | "sint64":
            raw &= 2 ** int(name[4:]) - 1
            return (raw >> 1) ^ -(raw & 1)
    return raw


def _write_key(key: object) -> object:
    if isinstance(key, bytes):
        raise MisfitError(key)
    return str(key).lower() if isinstance(key, bool) else str(key)
