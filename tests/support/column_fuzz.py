"""What random schemas of all formats share: names of fields, columns for them, damaged bytes."""

import random
from collections.abc import Mapping, Sequence

_NAMES = ("a", "b", "c_d", "Total", "total", "at", "x1", "_y", "order", "select", "value", "KEY")


def pick_fields(rnd: random.Random, most: int) -> list[str]:
    """Choose names of fields; some differ only in case."""
    return rnd.sample(_NAMES, rnd.randrange(1, most + 1))


def pick_columns(rnd: random.Random, wanted: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Choose columns of fields, in any order; now and then one is required or has no field."""
    columns: dict[str, object] = {"id!": "long"}
    if rnd.random() < 0.2:
        columns["absent"] = rnd.choice(["int", ["list", "string"], ["struct", {"a": "date"}]])
    taken = {"id", "absent"}
    for name, kind in rnd.sample(wanted, len(wanted)):
        if kind is not None and name.lower() not in taken and rnd.random() < 0.85:
            taken.add(name.lower())
            columns[name + "!" * (rnd.random() < 0.05)] = kind
    return columns


def pick_struct(rnd: random.Random, fields: Sequence[tuple[str, object]]) -> object:
    """Choose fields of a struct, now and then one that the schema lacks; None if it has none."""
    usable = {name.lower(): (name, kind) for name, kind in fields if kind is not None}
    if not usable:
        return None
    kept = rnd.sample([*usable.values()], rnd.randrange(1, len(usable) + 1))
    if rnd.random() < 0.1:
        kept.append(("absent", "int"))
    return ["struct", {name + "!" * (rnd.random() < 0.04): kind for name, kind in kept}]


def damage(rnd: random.Random, payload: bytes) -> bytes:
    """Cut, lengthen or change a payload somewhere."""
    place, byte = rnd.randrange(len(payload) + 1), rnd.randbytes(1)
    return rnd.choice(
        (
            payload[:place],
            payload[:-1],
            payload + rnd.randbytes(rnd.randrange(1, 20)),
            payload + b"\x00",
            payload[:place] + byte + payload[place + 1 :],
            payload[:place] + byte + payload[place:],
            payload[:place] + payload[place + 1 :],
        )
    )


def break_header(rnd: random.Random, header: bytes, payload: bytes) -> bytes | None:
    """Put another header in front of a payload: none, a short one, a wrong byte, no known id."""
    return rnd.choice(
        (
            *(None, b"", header[:3], payload, b"\x01" + header[1:] + payload),
            *(b"\x00\x00\x00\x03\xe7" + payload, b"\x00\xff\xff\xff\xff" + payload),
            header[:4],
        )
    )


def write_type(kind: object) -> str:
    """Write a type of an oracle as in a stream file."""
    match kind:
        case ["list", inner]:
            return f"list<{write_type(inner)}>"
        case ["map", inner]:
            return f"map<string, {write_type(inner)}>"
        case ["struct", dict(inner)]:
            fields = (
                f"{name.rstrip('!')}: {write_type(each)}{'!' * name.endswith('!')}"
                for name, each in inner.items()
            )
            return f"struct<{', '.join(fields)}>"
    return str(kind)


def write_columns(columns: Mapping[str, object]) -> dict[str, str]:
    """Write columns of an oracle as in a stream file; `!` at the end of a name: required."""
    return {
        name.rstrip("!"): write_type(kind) + "!" * name.endswith("!")
        for name, kind in columns.items()
    }
