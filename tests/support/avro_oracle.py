"""What docs/formats.md and docs/types.md say of an Avro payload, by Python's standard library.

It shares no code with Frazil: `judge` returns the values of a row, BAD for a dead letter, or UNTOLD
where no writer writes such bytes and readers differ.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext

from support.json_oracle import BAD, UNTOLD, MisfitError

_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local
_UNITS = {"millis": 1000, "micros": 1, "nanos": 0}


class DoubtError(ValueError):
    """Bytes that no writer writes and that readers take in different ways."""


@dataclass
class Bytes:
    """A payload and the position in it."""

    content: bytes
    at: int = 0
    named: dict[str, object] = field(default_factory=dict)

    def take(self, size: int) -> bytes:
        """Take some bytes.

        Raises:
            MisfitError: there are not so many.
        """
        if size < 0 or self.at + size > len(self.content):
            raise MisfitError(size)
        self.at += size
        return self.content[self.at - size : self.at]

    def take_number(self, bits: int) -> int:
        """Take a number in zigzag form."""
        number = 0
        for index in range(-(-bits // 7)):
            byte = self.take(1)[0]
            number |= (byte & 127) << (7 * index)
            if byte < 128:
                if number >= 2**bits:
                    raise DoubtError(number)
                return (number >> 1) ^ -(number & 1)
        raise MisfitError(number)


def judge(payload: bytes, schema: Mapping[str, object], columns: Mapping[str, object]) -> object:
    """Return the values of the record's columns, BAD or UNTOLD."""
    try:
        taken = Bytes(payload)
        found = _read(schema, taken)
        if taken.at < len(payload):
            return BAD
        return _fit(found, ["struct", columns])
    except MisfitError:
        return BAD
    except DoubtError:
        return UNTOLD


@dataclass(frozen=True)
class Value:
    """A value as it was sent, with its type."""

    node: object
    content: object

    @property
    def logical(self) -> str:
        """Return the logical type, or no text."""
        return str(self.node.get("logicalType", "")) if isinstance(self.node, dict) else ""


def _read(node: object, taken: Bytes) -> object:  # noqa: PLR0911 - one for each type
    match node:
        case "null":
            return None
        case list(members):
            index = taken.take_number(32)
            if not 0 <= index < len(members):
                raise MisfitError(index)
            found = _read(members[index], taken)
            others = [each for each in members if each != "null"]
            if len(others) < 2 or found is None or _is_pair(others):
                return found
            return {_member(members[index]): found}
        case {"type": "array", "items": items}:
            return _read_blocks(taken, lambda: _read(items, taken))
        case {"type": "map", "values": values}:
            pairs = _read_blocks(taken, lambda: (_read("string", taken), _read(values, taken)))
            return Value("map", {key.content: value for key, value in pairs})  # type: ignore[attr-defined, misc]
        case {"type": "record", "fields": list(fields)}:
            taken.named[f"a.b.{node['name']}"] = node
            return {each["name"]: _read(each["type"], taken) for each in fields}
        case str(name) if name in taken.named:
            return _read(taken.named[name], taken)
    return Value(node, _read_scalar(node, taken))


def _is_pair(members: list[object]) -> bool:
    return sorted(map(str, members)) in (["int", "long"], ["double", "float"])


def _member(node: object) -> str:
    match node:
        case {"name": str(name)}:
            return f"member_a_b_{name}".lower()
        case {"type": str(kind)}:
            return f"member_{kind}"
    return f"member_{node}"


def _read_blocks(taken: Bytes, read: Callable[[], object]) -> list[object]:
    found: list[object] = []
    while count := taken.take_number(64):
        if count < 0:
            taken.take_number(64)
        if abs(count) > len(taken.content):
            raise MisfitError(count)
        found.extend(read() for _ in range(abs(count)))
    return found


def _read_scalar(node: object, taken: Bytes) -> object:
    kind = node["type"] if isinstance(node, dict) else node
    match node, kind:
        case _, "boolean":
            given = taken.take(1)
            if given > b"\x01":
                raise DoubtError(given)
            return given == b"\x01"
        case _, "int" | "long":
            return taken.take_number(32 if kind == "int" else 64)
        case _, "float" | "double":
            size, word = (4, "<f") if kind == "float" else (8, "<d")
            return struct.unpack(word, taken.take(size))[0]
        case _, "bytes" | "string":
            return taken.take(taken.take_number(64))
        case {"size": int(size)}, _:
            return taken.take(size)
        case {"symbols": list(symbols)}, _:
            index = taken.take_number(32)
            if not 0 <= index < len(symbols):
                raise MisfitError(index)
            return symbols[index].encode()
    raise ValueError(node)


def _fit(value: object, kind: object) -> object:
    """Return a value as its column holds it."""
    if value is None:
        return None
    match kind, value:
        case ["struct", dict(inner)], dict():
            row: dict[str, object] = {}
            for name, each in inner.items():
                row[name.rstrip("!")] = _fit(value.get(name.rstrip("!")), each)
            if any(n.endswith("!") and row[n[:-1]] is None for n in inner):
                raise MisfitError(row)
            return row
        case ["list", inner], list():
            return [_fit(each, inner) for each in value]
        case ["map", inner], Value(_, dict(pairs)):
            return [(_fit_text(key), _fit(each, inner)) for key, each in pairs.items()]
        case str(), Value():
            return fit_scalar(value.content, value.logical, value.node, kind)
    raise ValueError(kind, value)


def _fit_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MisfitError(content) from error


def fit_scalar(content: object, logical: str, node: object, kind: str) -> object:  # noqa: C901, PLR0911, PLR0912
    """Return a single value as its column holds it."""
    match kind.partition("(")[0], content, node:
        case "decimal", bytes(), {"scale": int(scale)}:
            size = node.get("size")
            most = len(str(2 ** (8 * size - 1) - 1)) - 1 if isinstance(size, int) else 38
            if not content:
                raise DoubtError(content)
            if len(str(abs(int.from_bytes(content, "big", signed=True)))) > min(most, 38):
                raise MisfitError(content)
            return fit_decimal(int.from_bytes(content, "big", signed=True), scale, kind)
        case "decimal", int(), _:
            return fit_decimal(content, 0, kind)
        case "date", int(), _:
            return _fit_day(content)
        case "timestamp" | "timestamptz", int(), _:
            return fit_instant(content, logical.rpartition("-")[2], kind)
        case "long", int(), _:
            return content * 1000 if logical == "time-millis" else content
        case "double", int() | float(), _:
            return float(content)
        case "string" | "uuid", bytes(), {"size": 16}:
            digits = content.hex()
            return "-".join(digits[i:j] for i, j in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        case "string", bytes(), _:
            return _fit_text(content)
        case "uuid", bytes(), _:
            if not _UUID.fullmatch(content):
                raise MisfitError(content)
            return content.decode()
        case "fixed", bytes(), _:
            if len(content) != int(kind[6:-1]):
                raise MisfitError(content)
    return content


def fit_decimal(number: int, scale: int, kind: str) -> Decimal:
    """Return an unscaled number as its column holds it."""
    digits, places = map(int, kind[8:-1].split(","))
    with localcontext() as context:
        context.prec = 2000
        exact = Decimal(number).scaleb(-scale)
        rounded = exact.quantize(Decimal(1).scaleb(-places))
        if rounded != exact or abs(rounded.scaleb(places)) >= 10**digits:
            raise MisfitError(number)
    return rounded


def _fit_day(days: int) -> date:
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError as error:
        raise MisfitError(days) from error


def fit_instant(count: int, unit: str, kind: str) -> datetime:
    """Return an instant of a count since 1970."""
    if unit == "nanos" and count % 1000:
        raise MisfitError(count)
    micros = count // 1000 if unit == "nanos" else count * _UNITS[unit]
    try:
        found = _EPOCH + timedelta(microseconds=micros)
    except OverflowError as error:
        raise MisfitError(count) from error
    return found.replace(tzinfo=UTC) if kind == "timestamptz" else found
