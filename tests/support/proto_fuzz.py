"""Random Protobuf schemas of both versions, columns for them, and plain and broken messages."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from support.column_fuzz import damage, pick_columns, pick_fields, pick_struct

SCALARS = {
    "bool": ["boolean"],
    "string": ["string"],
    "bytes": ["binary"] * 5 + ["fixed(3)"],
    "float": ["float", "double"],
    "double": ["double"],
    **{n: ["int", "long", "double", "decimal(12,2)"] for n in ("int32", "sint32", "sfixed32")},
    **{n: ["long", "decimal(20,1)", "decimal(38,10)"] for n in ("int64", "sint64", "sfixed64")},
    **{n: ["long", "decimal(19,0)"] for n in ("uint32", "fixed32")},
    **{n: ["decimal(20,0)"] for n in ("uint64", "fixed64")},
}
"""The columns that hold a scalar, as docs/formats.md says."""

WRAPPERS = {
    f"google.protobuf.{name}Value": kind
    for name, kind in (
        *(("Bool", "bool"), ("Int32", "int32"), ("Int64", "int64"), ("UInt32", "uint32")),
        *(("UInt64", "uint64"), ("Float", "float"), ("Double", "double")),
        *(("String", "string"), ("Bytes", "bytes")),
    )
}
TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_KEYS = ("string", "int32", "sint64", "uint64", "bool", "fixed32")
_REALS = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 3.4e38, 1e-45)
_TEXTS = (b"", b"x", "n\u00e9\u0000\U0001f600".encode(), b"y" * 70)
_NO_TEXTS = (b"\xff", b"\xed\xa0\x80", b"\xc0\x80")
_SECONDS = (-62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800, 0, 1, 2**63 - 1)
_NANOS = (0, 0, 0, 1000, 999_999_000, 999_999_999, 1, -1000, 1_000_000_000)


@dataclass
class Kind:
    """A type of values: a scalar, an enumeration with its numbers, or a message."""

    name: str
    symbols: tuple[tuple[int, str], ...] = ()
    fields: "list[Field] | None" = None
    is_own: bool = True
    """Whether the schema defines it."""


@dataclass
class Field:
    """A field of a message; with a key it is a map."""

    number: int
    name: str
    kind: Kind
    label: str
    key: Kind | None = None
    oneof: str = ""


_WELL_KNOWN = {
    name: Kind(
        name,
        (),
        [Field(1, "seconds", Kind("int64"), ""), Field(2, "nanos", Kind("int32"), "")],
        is_own=False,
    )
    for name in (TIMESTAMP, DURATION)
} | {
    name: Kind(name, (), [Field(1, "value", Kind(kind), "")], is_own=False)
    for name, kind in WRAPPERS.items()
}


@dataclass
class ProtoFuzz:
    """One random schema, and payloads of it."""

    seed: int
    rnd: random.Random = field(init=False)
    syntax: str = field(init=False)
    message: Kind = field(init=False)
    columns: dict[str, object] = field(init=False)
    _named: int = 0

    def __post_init__(self) -> None:
        """Choose the schema and the columns."""
        self.rnd = random.Random(self.seed)
        self._is_simple = self.rnd.random() < 0.5
        self.syntax = "proto3" if self._is_simple else self.rnd.choice(["proto2", "proto3"])
        self.message = self._message(pick_fields(self.rnd, 12), (), "Top")
        label = self.rnd.choice(["", "optional"]) if self.is_open else "required"
        last = max(each.number for each in self.message.fields or ()) + 1
        self.message.fields = [
            *(self.message.fields or ()),
            Field(last, "id", Kind("int64"), label),
        ]
        wanted = [
            (f.name, self._column(f, ("Top",))) for f in self.message.fields if f.name != "id"
        ]
        self.columns = pick_columns(self.rnd, wanted)

    @property
    def is_open(self) -> bool:
        """Return whether it is proto3, which has zero values and open enumerations."""
        return self.syntax == "proto3"

    @property
    def text(self) -> str:
        """Return the schema as text."""
        imports = ("timestamp", "duration", "wrappers")
        lines = [f'import "google/protobuf/{each}.proto";' for each in imports]
        return "\n".join([f'syntax = "{self.syntax}";', "package p;", *lines, _write(self.message)])

    def make_payload(self) -> bytes:
        """Write a payload; some are broken."""
        found = self._encode(self.message, 0)
        return damage(self.rnd, found) if self.rnd.random() < 0.1 else found

    def _message(self, names: list[str], above: tuple[Kind, ...], name: str = "") -> Kind:
        if not name:
            self._named += 1
            name = f"N{self._named}"
        made = Kind(name, (), [])
        numbers = self.rnd.sample([*range(1, 30), 1600, 2**28], len(names))
        chosen = [] if self._is_simple else self.rnd.choice([[], [], names[:2], names[:3]])
        for number, each in zip(numbers, names, strict=True):
            found = self._field(number, each, (*above, made), is_single=each in chosen)
            found.oneof = "one_of" if each in chosen else ""
            assert made.fields is not None
            made.fields.append(found)
        return made

    def _field(self, number: int, name: str, above: tuple[Kind, ...], *, is_single: bool) -> Field:
        rnd, kind = self.rnd, self._kind(above)
        if is_single:
            return Field(number, name, kind, "")
        chance = rnd.random()
        if (
            chance < 0.15 and name != "Total" and not self._is_simple
        ):  # the map `total` has an entry of its name
            return Field(number, name, kind, "", Kind(rnd.choice(_KEYS)))
        if chance < 0.35:
            return Field(number, name, kind, "repeated")
        if self.is_open:
            return Field(number, name, kind, rnd.choice(["", "optional"]))
        labels = ["optional"] * 9 + ["required"] * (kind.name not in {each.name for each in above})
        return Field(number, name, kind, rnd.choice(labels))

    def _kind(self, above: tuple[Kind, ...]) -> Kind:  # noqa: PLR0911 - one for each kind
        rnd, chance = self.rnd, self.rnd.random()
        if chance < 0.55:
            return Kind(rnd.choice([*SCALARS][: -2 if self._is_simple else None]))
        if chance < 0.67:
            self._named += 1
            numbers = [0, *rnd.sample([1, 2, 5, -3, 2**31 - 1, -(2**31)], rnd.randrange(4))]
            return Kind(
                f"N{self._named}", tuple((n, f"E{self._named}_{i}") for i, n in enumerate(numbers))
            )
        if chance < 0.82:
            return _WELL_KNOWN[
                rnd.choice(
                    [
                        TIMESTAMP,
                        TIMESTAMP,
                        DURATION,
                        *([*WRAPPERS][:4] if self._is_simple else WRAPPERS),
                    ]
                )
            ]
        if self._is_simple and len(above) < 3:
            return self._message(pick_fields(rnd, 4), above)
        if self._is_simple:
            return Kind("int64")
        if chance < 0.86:
            return rnd.choice(above)
        if chance < 0.89 or len(above) > 2:
            return self._message([], above)
        return self._message(pick_fields(rnd, 4), above)

    def _column(self, each: Field, above: tuple[str, ...]) -> object:
        """Choose a column's type for a field; None where there is none."""
        single = self._single_column(each.kind, above)
        if each.key is not None:
            return single and ["map", single]
        return single and ["list", single] if each.label == "repeated" else single

    def _single_column(self, kind: Kind, above: tuple[str, ...]) -> object:
        if kind.symbols:
            return self._choose(["string", "int"])
        if kind.fields is None:
            return self._choose(SCALARS[kind.name])
        if kind.name in above or not kind.fields:
            return "binary"
        if kind.name == TIMESTAMP:
            return "timestamptz"
        if kind.name in WRAPPERS:
            return self._choose(SCALARS[WRAPPERS[kind.name]])
        inner = [(f.name, self._column(f, (*above, kind.name))) for f in kind.fields]
        return pick_struct(self.rnd, inner)

    def _choose(self, columns: list[str]) -> str:
        return columns[0] if self._is_simple else self.rnd.choice(columns)

    def _encode(self, kind: Kind, depth: int) -> bytes:
        """Write a message; its fields may have any order and come twice."""
        rnd, fields = self.rnd, sorted(kind.fields or [], key=lambda f: f.number)
        chance = 0.7 if depth < 5 else 0
        parts = [
            self._encode_field(each, depth)
            for each in fields
            if each.name == "id" or each.label == "required" or rnd.random() < chance
        ]
        if rnd.random() < 0.06:
            rnd.shuffle(parts)
        if rnd.random() < 0.04 and parts:
            parts.append(self._encode_field(rnd.choice(fields), depth))
        if rnd.random() < 0.04:
            parts.insert(rnd.randrange(len(parts) + 1), self._encode_unknown())
        return b"".join(parts)

    def _encode_unknown(self) -> bytes:
        """Write a field that no schema has."""
        number = self.rnd.choice([31, 99, 2**28 + 1])
        return self.rnd.choice(
            [
                *(tag(number, 0) + b"\x05", tag(number, 1) + b"x" * 8, tag(number, 2) + b"\x02ab"),
                *(tag(number, 5) + b"x" * 4, tag(number, 3) + b"\x08\x01" + tag(number, 4)),
            ]
        )

    def _encode_field(self, each: Field, depth: int) -> bytes:
        rnd = self.rnd
        if each.key is not None:
            return b"".join(
                self._encode_entry(each, each.key, depth) for _ in range(rnd.randrange(3))
            )
        if each.label != "repeated":
            return self._encode_tagged(each, depth)
        count = rnd.choice([0, 1, 2, 3, 20])
        is_packable = each.kind.fields is None and each.kind.name not in {"string", "bytes"}
        if is_packable and (rnd.random() < 0.9) == self.is_open:
            items = b"".join(self._encode_value(each.kind, depth) for _ in range(count))
            return tag(each.number, 2) + sized(items) if count or rnd.random() < 0.05 else b""
        return b"".join(self._encode_tagged(each, depth) for _ in range(count))

    def _encode_entry(self, each: Field, key: Kind, depth: int) -> bytes:
        parts = []
        if self.rnd.random() < 0.95:
            parts.append(self._encode_tagged(Field(1, "key", key, ""), depth))
        if self.rnd.random() < 0.95:
            parts.append(self._encode_tagged(Field(2, "value", each.kind, ""), depth))
        return tag(each.number, 2) + sized(b"".join(parts))

    def _encode_tagged(self, each: Field, depth: int) -> bytes:
        return tag(each.number, wire_type(each.kind)) + self._encode_value(each.kind, depth)

    def _encode_value(self, kind: Kind, depth: int) -> bytes:
        rnd = self.rnd
        if kind.symbols:
            numbers = [number for number, _ in kind.symbols] * 9
            return varint(rnd.choice([*numbers, *numbers, 7, -9]))
        if kind.name in (TIMESTAMP, DURATION):
            return sized(self._encode_instant())
        if kind.fields is not None:
            return sized(self._encode(kind, depth + 1))
        return _WRITERS[kind.name](rnd)

    def _encode_instant(self) -> bytes:
        rnd = self.rnd
        second = rnd.choice(
            [rnd.randrange(-2_300_000_000, 4_000_000_000)] * 9 + [rnd.choice(_SECONDS)]
        )
        nanos = rnd.choice([rnd.randrange(10**6) * 1000] * 9 + [rnd.choice(_NANOS)])
        parts = (
            b"\x08" + varint(second) if second else b"",
            b"\x10" + varint(nanos) if nanos else b"",
        )
        return b"".join(parts)


def _write(kind: Kind) -> str:
    """Write a message's definition, with the types that only it uses inside."""
    if kind.symbols:
        return f"enum {kind.name} {{ {' '.join(f'{s} = {n};' for n, s in kind.symbols)} }}"
    lines = [f"message {kind.name} {{"]
    for each in kind.fields or ():
        own, inner = each.kind.symbols or each.kind.fields is not None, each.kind.name
        if own and each.kind.is_own and int(inner[1:] if inner != "Top" else 0) > _number(kind):
            lines.append(_write(each.kind))
    members = [each for each in kind.fields or () if each.oneof]
    if members:
        inside = " ".join(f"{each.kind.name} {each.name} = {each.number};" for each in members)
        lines.append(f"oneof one_of {{ {inside} }}")
    for each in kind.fields or ():
        if not each.oneof:
            of = f"map<{each.key.name}, {each.kind.name}>" if each.key else each.kind.name
            lines.append(f"{each.label} {of} {each.name} = {each.number};")
    return "\n".join([*lines, "}"])


def _number(kind: Kind) -> int:
    return 0 if kind.name == "Top" else int(kind.name[1:])


def wire_type(kind: Kind) -> int:
    """Return the wire type of a value."""
    if kind.fields is not None or kind.name in {"string", "bytes"}:
        return 2
    if kind.name in {"fixed64", "sfixed64", "double"}:
        return 1
    return 5 if kind.name in {"fixed32", "sfixed32", "float"} else 0


def varint(number: int) -> bytes:
    """Write a number, a negative one with 64 bits."""
    rest, found = number & (2**64 - 1), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def tag(number: int, wire: int) -> bytes:
    """Write the tag in front of a field."""
    return varint(number << 3 | wire)


def sized(content: bytes) -> bytes:
    """Write bytes after their number."""
    return varint(len(content)) + content


def _whole(bits: int, rnd: random.Random, *, is_signed: bool) -> int:
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    return rnd.choice([0, 1, least, most, rnd.randrange(least, most + 1)])


def _of(bits: int, *, is_signed: bool) -> Callable[[random.Random], bytes]:
    return lambda rnd: varint(_whole(bits, rnd, is_signed=is_signed))


def _zigzag(bits: int) -> Callable[[random.Random], bytes]:
    def write(rnd: random.Random) -> bytes:
        number = _whole(bits, rnd, is_signed=True)
        return varint(number << 1 if number >= 0 else (-number << 1) - 1)

    return write


def _fixed(word: str, bits: int, *, is_signed: bool) -> Callable[[random.Random], bytes]:
    return lambda rnd: struct.pack(word, _whole(bits, rnd, is_signed=is_signed))


_WRITERS: dict[str, Callable[[random.Random], bytes]] = {
    "bool": lambda rnd: rnd.choice([b"\x00", b"\x01", b"\x01", b"\x02"]),
    "string": lambda rnd: sized(rnd.choice([*_TEXTS * 20, *_NO_TEXTS])),
    "bytes": lambda rnd: sized(rnd.choice([*_TEXTS, *_NO_TEXTS, b"abc", b"abc"])),
    "float": lambda rnd: struct.pack("<f", rnd.choice([*_REALS, rnd.randrange(9999) / 8])),
    "double": lambda rnd: struct.pack("<d", rnd.choice([*_REALS, rnd.uniform(-1e9, 1e9)])),
    "int32": _of(32, is_signed=True),
    "int64": _of(64, is_signed=True),
    "uint32": _of(32, is_signed=False),
    "uint64": _of(64, is_signed=False),
    "sint32": _zigzag(32),
    "sint64": _zigzag(64),
    "fixed32": _fixed("<I", 32, is_signed=False),
    "sfixed32": _fixed("<i", 32, is_signed=True),
    "fixed64": _fixed("<Q", 64, is_signed=False),
    "sfixed64": _fixed("<q", 64, is_signed=True),
}
