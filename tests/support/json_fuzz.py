"""Random JSON records: values of every type, near misses of their forms, and broken documents."""

import json
import random
import string
from collections.abc import Iterator, Mapping

COLUMNS: Mapping[str, object] = {
    "id!": "long",
    "b": "boolean",
    "i": "int",
    "l": "long",
    "d": "double",
    "n": "decimal(9,2)",
    "t": "date",
    "x": "timestamp",
    "z": "timestamptz",
    "s": "string",
    "ln": ["list", "decimal(9,2)"],
    "q": ["struct", {"a": "int", "in": ["struct", {"n": "decimal(18,0)", "s": "string"}]}],
}
"""Columns that workers can write."""
ALL_COLUMNS: Mapping[str, object] = {
    **COLUMNS,
    "f": "float",
    "w": "decimal(38,10)",
    "u": "uuid",
    "y": "binary",
    "g": "fixed(4)",
    "lz": ["list", "timestamptz"],
    "m": ["map", "decimal(18,18)"],
    "k": ["list", ["struct", {"k!": "string", "t": "date", "w": "decimal(20,0)"}]],
}
"""Types, and required fields inside, that only Spark writes."""
_NUMBERS = (
    *("0", "-0", "1", "12.5", "-0.01", "1e2", "1E+2", "1e-2", "1e-10", "0e-10", "1e400", "1e99999"),
    *("2147483647", "2147483648", "-9223372036854775808", "9223372036854775808", "1e99999999"),
    *("9999999.99", "9999999.995", "0.1", "16777217", "1.7976931348623157e308", "5e-324", "1e39"),
    *("12.5000000000000000000000", "0." + "0" * 20 + "1", "1" * 30, "123456789012345678"),
    *("0.00000000000001e-9", "-0.000000000001e-9", "0.0000000000000000001e-1", "99999999999.9e-9"),
    *("1700000000", "1700000000000", "1764000000000000000", "1." + "0" * 46, "1" * 45 + ".5"),
)
_DAYS = ("0001-01-01", "9999-12-31", "0000-12-31", "2024-02-29", "2023-02-29", "1582-10-10")
_CLOCKS = ("00:00", "23:59:59", "23:59:59.999999", "12:30:00.5000000", "24:00:00", "00:00:60")
_ZONES = ("", "Z", "+00:00", "-14:00", "+14:00", "+18:00", "-18:01", "+0200", "-02", "z", "+02:60")
_TEXTS = (
    *(
        "12,50",
        "1,5",
        "+5",
        ".5",
        "5.",
        "007",
        "1_0",
        "1 0",
        "٣",
        "NaN",
        "Infinity",
        "",
        " ",
        "1e2",
    ),
    *("true", "null", "ä\U0001f600", "\ud7ff" * 17, "a\nb", "\x00", '"', "\\", "/wA=", "AAEC/w=="),
    *(
        "/wA",
        "_-8=",
        "f79c3e09-677c-4bbd-a479-3f349cb785e7",
        "F79C3E09-677C-4BBD-A479-3F349CB785E7",
    ),
    *("f79c3e09677c4bbda4793f349cb785e7", "1e-99999999", "12.50e-1", "0x1f", "1.0000000000001"),
)
_CHARACTERS = "0123456789-+.,:eETZ /=_\n٣\u00a0"


def make_records(seed: int, count: int) -> Iterator[bytes]:
    """Write records; about half of them fit all columns."""
    rnd = random.Random(seed)
    for number in range(count):
        fields = [("id", str(number))]
        for name, kind in rnd.sample(sorted(ALL_COLUMNS.items(), key=str), rnd.randrange(1, 8)):
            if name != "id!":
                fields.append((name, write_value(rnd, kind)))
        if rnd.random() < 0.05:
            fields.append(
                rnd.choice([("id", write_value(rnd, "long")), ("more", rnd.choice(_NUMBERS))])
            )
        rnd.shuffle(fields)
        blank = rnd.choice(["", "", " ", "\n", "\t "])
        inner = f",{blank}".join(f"{write_name(rnd, name)}{blank}:{blank}{v}" for name, v in fields)
        record = f"{blank}{{{inner}}}{blank}".encode()
        yield break_bytes(rnd, record) if rnd.random() < 0.06 else record


def write_name(rnd: random.Random, name: str) -> str:
    """Write a name, now and then with an escape."""
    if rnd.random() < 0.02:
        return '"' + "".join(f"\\u{ord(character):04x}" for character in name) + '"'
    return json.dumps(name)


def write_value(rnd: random.Random, kind: object) -> str:
    """Write a value of a type, null, or a near miss."""
    chance = rnd.random()
    if chance < 0.05:
        return "null"
    if chance < 0.09:
        return write_anything(rnd)
    match kind:
        case ["list", inner]:
            return f"[{','.join(write_value(rnd, inner) for _ in range(rnd.randrange(3)))}]"
        case ["map", inner]:
            names = rnd.choices("abcdefgh", k=rnd.randrange(3))
            return f"{{{','.join(f'{json.dumps(n)}:{write_value(rnd, inner)}' for n in names)}}}"
        case ["struct", dict(inner)]:
            kept = [(n.rstrip("!"), k) for n, k in inner.items() if rnd.random() < 0.9]
            return f"{{{','.join(f'{write_name(rnd, n)}:{write_value(rnd, k)}' for n, k in kept)}}}"
    return write_scalar(rnd, str(kind))


def write_scalar(rnd: random.Random, kind: str) -> str:  # noqa: PLR0911 - one for each type
    """Write a value of a primitive type, or one that nearly is."""
    match kind.partition("(")[0]:
        case "boolean":
            return rnd.choice(["true", "false"])
        case "int" | "long":
            return str(rnd.choice([rnd.randrange(-(2**31), 2**31), rnd.randrange(100)]))
        case "float" | "double":
            return rnd.choice([repr(rnd.uniform(-1e6, 1e6)), write_number(rnd), str(rnd.random())])
        case "decimal":
            found = str(rnd.randrange(-(10**7), 10**7) / 100)
            found = rnd.choice([found, found, write_number(rnd)])
            return json.dumps(mutate(rnd, found)) if rnd.random() < 0.5 else found
        case "date":
            return json.dumps(mutate(rnd, write_day(rnd)))
        case "timestamp" | "timestamptz":
            zone = rnd.choice(_ZONES) if kind.endswith("z") else ""
            text = f"{write_day(rnd)}{rnd.choice('T ')}{write_clock(rnd)}{zone}"
            return json.dumps(mutate(rnd, text))
        case "uuid":
            digits = f"{rnd.getrandbits(128):032x}"
            parts = [digits[i:j] for i, j in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))]
            return json.dumps(mutate(rnd, "-".join(parts)))
        case "binary" | "fixed":
            return rnd.choice(
                [
                    *('"/wA="', '"AAEC/w=="', '""', '"AAAAAA=="', '"/wA=\\n"', '"AAECAwQF"'),
                    json.dumps(mutate(rnd, "/wA=")),
                    rnd.choice(['"\n/wA="', '"/wA=\x01"', '"/wA="', '"/wA="']),
                ]
            )
    if rnd.random() < 0.3:
        return json.dumps(write_text(rnd), ensure_ascii=rnd.random() < 0.5)
    return json.dumps(
        rnd.choice([*_TEXTS, "".join(rnd.choices(string.printable, k=rnd.randrange(9)))])
    )


def write_text(rnd: random.Random) -> str:
    """Write characters of all of Unicode."""
    return "".join(
        chr(rnd.choice((rnd.randrange(0xD800), rnd.randrange(0xE000, 0x110000))))
        for _ in range(rnd.randrange(20))
    )


def write_anything(rnd: random.Random) -> str:
    """Write a value that fits its column by chance only."""
    given = [*_NUMBERS, *map(json.dumps, _TEXTS), "true", "[]", "{}", '["1,5"]', '{"a":1,"a":2}']
    return rnd.choice(given)


def write_number(rnd: random.Random) -> str:
    """Write a number of up to 36 digits, now and then with an exponent."""
    whole, part = rnd.randrange(1, 20), rnd.choice([0, 0, 1, 2, 3, 16])
    text = rnd.choice(["", "-"]) + str(rnd.randrange(10**whole))
    text += "." + "".join(rnd.choices(string.digits, k=part)) if part else ""
    if rnd.random() < 0.3:
        text += (
            rnd.choice("eE") + rnd.choice(["", "-", "+"]) + str(rnd.randrange(rnd.choice([4, 30])))
        )
    return rnd.choice([text, text, text, rnd.choice(_NUMBERS)])


def write_day(rnd: random.Random) -> str:
    """Write a date."""
    day = f"{rnd.randrange(1, 10000):04}-{rnd.randrange(1, 13):02}-{rnd.randrange(1, 29):02}"
    return rnd.choice([day, day, rnd.choice(_DAYS)])


def write_clock(rnd: random.Random) -> str:
    """Write a time of day."""
    clock = f"{rnd.randrange(24):02}:{rnd.randrange(60):02}:{rnd.randrange(60):02}"
    fraction = rnd.choice(["", f".{rnd.randrange(10**6):06}", ".5", ".1234567"])
    return rnd.choice([clock + fraction, clock + fraction, rnd.choice(_CLOCKS)])


def mutate(rnd: random.Random, text: str) -> str:
    """Change one character of one text in eight."""
    if rnd.random() > 0.125:
        return text
    place = rnd.randrange(len(text) + 1)
    rest = text[place + rnd.randrange(2) :]
    return text[:place] + rnd.choice(["", rnd.choice(_CHARACTERS)]) + rest


def break_bytes(rnd: random.Random, record: bytes) -> bytes:
    """Remove, replace or add a byte."""
    place = rnd.randrange(len(record))
    put = rnd.choice([b"", b",", b"]", b"}", b'"', b":", b"0", b"\xff", b"\x00", b"\\", b" "])
    return record[:place] + put + record[place + rnd.randrange(2) :]
