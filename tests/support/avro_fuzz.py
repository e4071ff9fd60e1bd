"""Random Avro schemas, columns for them, and payloads: plain, extreme and broken ones."""

import random
import struct
from collections.abc import Mapping

from support.column_fuzz import damage, pick_columns, pick_fields, pick_struct

Node = object
"""A schema as its JSON."""

_LOGICAL = (
    *(("int", "date"), ("long", "time-micros")),
    *(("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("millis",)),
    *(("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("micros",)),
    *(("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("nanos",)),
    *(("int", "time-millis"), ("string", "uuid")),
)
_PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")
_LONGS = (0, -1, 1, 2**63 - 1, -(2**63), 1_764_000_000_000, 1_764_000_000_000_000)
_INSTANTS = (-62_135_596_800, 253_402_300_799, 0, 1_764_000_000, -2_208_988_800, 31_556_889_864)
_INTS = (0, -1, 1, 2**31 - 1, -(2**31), -719_162, -719_163, 2_932_896, 2_932_897)
_REALS = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 3.4e38, 1e-45)
_TEXTS = (
    b"",
    b"x",
    "n\u00e9\u0000\U0001f600".encode(),
    b"y" * 70,
    b"a,b",
    b"\xff",
    b"\xed\xa0\x80",
)
_IDS = (
    *(b"f79c3e09-677c-4bbd-a479-3f349cb785e7", b"F79C3E09-677C-4BBD-A479-3F349CB785E7"),
    *(b"f79c3e09677c4bbda4793f349cb785e7", b"f79c3e09-677c-4bbd-a479-3f349cb785e7\n"),
)


class AvroFuzz:
    """One random schema, and payloads of it."""

    def __init__(self, seed: int) -> None:
        """Choose the schema and the columns."""
        self.seed, self.rnd = seed, random.Random(seed)
        self._named, self._known = 0, dict[str, Node]()
        self._is_simple = self.rnd.random() < 0.5
        fields = [("id", "long"), *((name, self._node(0)) for name in pick_fields(self.rnd, 12))]
        self.rnd.shuffle(fields)
        self.schema: Mapping[str, object] = self._record("Top", fields)
        wanted = [(name, self._column(node)) for name, node in fields if name != "id"]
        self.columns = pick_columns(self.rnd, wanted)

    def make_payload(self) -> bytes:
        """Write a payload; some are broken."""
        found = self._write(self.schema, 0)
        return damage(self.rnd, found) if self.rnd.random() < 0.1 else found

    def _record(self, name: str, fields: list[tuple[str, Node]]) -> dict[str, object]:
        kinds = [{"name": field, "type": node} for field, node in fields]
        return {"type": "record", "name": name, "namespace": "a.b", "fields": kinds}

    def _name(self) -> str:
        self._named += 1
        return f"N{self._named}"

    def _node(self, depth: int) -> Node:  # noqa: PLR0911 - one for each kind
        """Choose a type, below the third level a plain one."""
        rnd, chance = self.rnd, self.rnd.random()
        if depth > 2 or chance < 0.4:
            return self._scalar()
        if chance < 0.55:
            return rnd.sample(["null", self._single(depth)], 2)
        if self._is_simple:
            return self._single(depth)
        if chance < 0.62:
            return self._union(depth)
        if chance < 0.66:
            name = self._name()
            return self._record(name, [("v", "int"), ("next", ["null", f"a.b.{name}"])])
        if chance < 0.68:
            return "null"
        return self._single(depth)

    def _single(self, depth: int) -> Node:
        """Choose a type that is no union."""
        chance = self.rnd.random()
        if depth > 2 or chance < 0.5:
            return self._scalar()
        if chance < 0.65:
            return {"type": "array", "items": self._item(depth)}
        if chance < 0.8 and not self._is_simple:
            return {"type": "map", "values": self._item(depth)}
        fields = [(n, self._node(depth + 1)) for n in pick_fields(self.rnd, 3)]
        return self._record(self._name(), fields)

    def _item(self, depth: int) -> Node:
        """Choose an item that has bytes: a count of others could be any number."""
        found = self._node(depth + 1)
        return ["null", "int"] if _is_empty(found) else found

    def _union(self, depth: int) -> Node:
        members = [
            self._single(depth + 1),
            *self.rnd.sample(("int", "long", "string", "double"), 2),
        ]
        found = {_kind(each): each for each in (*members, "null")[: self.rnd.randrange(2, 5)]}
        return self.rnd.sample([*found.values()], len(found))

    def _scalar(self) -> Node:
        rnd, chance = self.rnd, self.rnd.random()
        if chance < 0.35:
            return rnd.choice(_PLAIN)
        if chance < 0.65:
            kind, logical = rnd.choice(_LOGICAL[:-2] if self._is_simple else _LOGICAL)
            return {"type": kind, "logicalType": logical}
        if chance < 0.8:
            digits = rnd.choice([1, 9, 18] if self._is_simple else [1, 9, 18, 19, 38])
            decimal = {
                "logicalType": "decimal",
                "precision": digits,
                "scale": rnd.randrange(digits),
            }
            if rnd.random() < 0.5:
                return {"type": "bytes", **decimal}
            size = (10**digits).bit_length() // 8 + 1 + rnd.choice([0, 0, 1, -1])
            size = max(size, 1)
            return {"type": "fixed", "name": self._name(), "size": size, **decimal}
        if chance < 0.9:
            symbols = rnd.sample(("RED", "GREEN", "BLUE", "A"), rnd.randrange(1, 5))
            return {"type": "enum", "name": self._name(), "symbols": symbols}
        sizes = [(3, ""), (1, ""), (16, "uuid"), (12, "duration")]
        size, logical = rnd.choice(sizes[:2] if self._is_simple else sizes)
        found = {"type": "fixed", "name": self._name(), "size": size}
        return {**found, "logicalType": logical} if logical else found

    def _column(self, node: Node) -> object:
        """Choose a column's type for a field; None where there is none."""
        match node:
            case list(members):
                return self._column_of_union([m for m in members if m != "null"])
            case {"type": "array", "items": items}:
                return (inner := self._column(items)) and ["list", inner]
            case {"type": "map", "values": values}:
                return (inner := self._column(values)) and ["map", inner]
            case {"type": "record", "fields": list(fields)}:
                return pick_struct(self.rnd, [(f["name"], self._column(f["type"])) for f in fields])
        found = _columns_of(node) or [None]
        return found[0] if self._is_simple else self.rnd.choice(found)

    def _column_of_union(self, members: list[Node]) -> object:
        if len(members) == 1:
            return self._column(members[0])
        kinds = {_kind(each) for each in members}
        for pair in ({"int", "long"}, {"float", "double"}):
            if kinds == pair:
                return None if any(isinstance(each, dict) for each in members) else max(pair)
        return pick_struct(self.rnd, [(member_name(each), self._column(each)) for each in members])

    def _write(self, node: Node, depth: int) -> bytes:  # noqa: PLR0911 - one for each kind
        """Write a value."""
        match node:
            case "null":
                return b""
            case list(members):
                index = self.rnd.randrange(len(members))
                if depth > 6 and "null" in members:
                    index = members.index("null")
                return varint(index) + self._write(members[index], depth + 1)
            case {"type": "array", "items": items}:
                return self._write_blocks(lambda: self._write(items, depth + 1))
            case {"type": "map", "values": values}:
                return self._write_blocks(self._write_key, lambda: self._write(values, depth + 1))
            case {"type": "record", "name": str(name), "fields": list(fields)}:
                self._known[f"a.b.{name}"] = node
                return b"".join(self._write(f["type"], depth + 1) for f in fields)
            case str(name) if name.startswith("a.b."):
                return self._write(self._known[name], depth + 1)
        return self._write_scalar(node)

    def _write_key(self) -> bytes:
        return _sized(self.rnd.choice([*(b"abcdefgh"[i : i + 1] for i in range(8)), *_TEXTS[:3]]))

    def _write_blocks(self, *parts: object) -> bytes:
        """Write the items of a list, in one or several blocks, now and then with their sizes."""
        rnd, found = self.rnd, b""
        for count in rnd.choice([[], [1], [2], [3], [1, 2], [1, 1, 1], [20]]):
            items = b"".join(part() for _ in range(count) for part in parts)  # type: ignore[operator]
            has_size = rnd.random() < 0.1
            found += varint(-count) + varint(len(items)) if has_size else varint(count)
            found += items
        return found + b"\x00"

    def _write_scalar(self, node: Node) -> bytes:  # noqa: C901, PLR0911 - one for each type
        rnd = self.rnd
        kind, logical = _kind(node), node.get("logicalType", "") if isinstance(node, dict) else ""
        match node, kind:
            case _, "boolean":
                return rnd.choice([b"\x00", b"\x01"])
            case _, "int":
                is_plain = logical == "date" and rnd.random() < 0.98
                return varint(
                    rnd.choice([*([] if is_plain else _INTS), rnd.randrange(-30_000, 60_000)])
                )
            case _, "long":
                return varint(self._choose_long(str(logical)))
            case _, "float":
                return struct.pack("<f", rnd.choice([*_REALS, rnd.randrange(9999) / 8]))
            case _, "double":
                return struct.pack("<d", rnd.choice([*_REALS, 1e308, rnd.uniform(-1e9, 1e9)]))
            case {"logicalType": "decimal", "precision": int(digits)}, "bytes":
                return _sized(self._write_unscaled(digits))
            case _, "bytes":
                return _sized(rnd.choice([*_TEXTS, b"abc", rnd.randbytes(3)]))
            case {"logicalType": "uuid"}, "string":
                return _sized(rnd.choice([*_IDS[:2] * 8, *_IDS]))
            case _, "string":
                return _sized(rnd.choice([*_TEXTS[:5] * 12, *_TEXTS, *_IDS]))
            case {"symbols": list(symbols)}, _:
                return varint(rnd.randrange(len(symbols)))
            case {"size": int(size), "logicalType": "decimal", "precision": int(digits)}, _:
                return self._write_unscaled(digits, size)[-size:]
            case {"size": int(size)}, _:
                return rnd.randbytes(size)
        raise ValueError(node)

    def _choose_long(self, logical: str) -> int:
        rnd = self.rnd
        if "timestamp" not in logical or rnd.random() < 0.02:
            return rnd.choice([*_LONGS, rnd.randrange(-(2**40), 2**40)])
        second = rnd.choice([*_INSTANTS, rnd.randrange(-2_000_000_000, 2_000_000_000)])
        unit = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}[logical.rpartition("-")[2]]
        whole = rnd.choice([1, *[1000] * 20]) if unit == 10**9 else 1
        found = second * unit + rnd.randrange(unit // whole) * whole
        found += rnd.choice([0] * 60 + [unit, -unit])
        return max(-(2**63), min(2**63 - 1, found))

    def _write_unscaled(self, most: int, size: int = 1) -> bytes:
        """Write a number of a decimal, now and then one with too many digits."""
        rnd = self.rnd
        digits = rnd.randrange(most + 1) if rnd.random() < 0.97 else rnd.choice([18, 19, 38, 39])
        number = rnd.choice([-1, 1]) * rnd.choice([10**digits - 1, 5, rnd.randrange(10**digits)])
        found = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        size = max(size, len(found) + rnd.choice([0, 0, 0, 4]))
        return found.rjust(size, b"\xff" if number < 0 else b"\x00")


def varint(number: int) -> bytes:
    """Write a number in zigzag form."""
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def member_name(node: Node) -> str:
    """Name a union's member as docs/formats.md says."""
    named = isinstance(node, dict) and "name" in node
    return f"member_{'a_b_' if named else ''}{_kind(node, own=True)}".lower()


def _kind(node: Node, *, own: bool = False) -> str:
    """Return the name of a type: of a named one its own, or what it is."""
    if not isinstance(node, dict):
        return str(node)
    return str(node["name"]) if own and "name" in node else str(node["type"])


def _is_empty(node: Node) -> bool:
    match node:
        case "null":
            return True
        case {"type": "record", "fields": list(fields)}:
            return all(_is_empty(each["type"]) for each in fields)
    return False


def _sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def _columns_of(node: Node) -> list[str]:
    """List the columns that hold a scalar, as docs/formats.md says."""
    match node:
        case {"size": int(size), "precision": int(digits)} if 10**digits > 2 ** (8 * size - 1):
            return [f"fixed({size})", "binary"]  # Avro ignores such a logical type
        case {"logicalType": "decimal", "precision": int(digits), "scale": int(scale)}:
            wider = f"decimal({min(38, digits + 3)},{min(scale, digits)})"
            return [f"decimal({digits},{scale})", wider, "decimal(38,19)"]
        case {"logicalType": str(logical), "type": kind}:
            return {
                "date": ["date"],
                "time-millis": ["long"],
                "time-micros": ["long"],
                "timestamp-nanos": ["long", "timestamptz"],
                "local-timestamp-nanos": ["long", "timestamp"],
                "uuid": ["uuid", "string", *["fixed(16)", "binary"] * (kind == "fixed")],
                "duration": ["fixed(12)", "binary"],
            }.get(logical, ["timestamp" if logical.startswith("local") else "timestamptz"])
        case {"size": int(size)}:
            return [f"fixed({size})", "binary"]
        case {"symbols": _}:
            return ["string"]
    return {
        "int": ["int", "long", "double", "decimal(12,2)"],
        "long": ["long", "decimal(20,1)", "decimal(38,10)"],
        "float": ["float", "double"],
        "string": ["string"] * 9 + ["uuid"],
        "bytes": ["binary"] * 5 + ["fixed(3)"],
        "boolean": ["boolean"],
        "double": ["double"],
    }.get(str(node), [])
