"""JSON records for differential tests: plain values, odd values, values that are odd as a whole."""

import json
import random
from collections.abc import Mapping

COLUMNS = {
    "id": "long!",
    "small": "int",
    "flag": "boolean",
    "real": "double",
    "price": "decimal(9,2)",
    "day": "date",
    "local": "timestamp",
    "instant": "timestamptz",
    "text": "string",
    "deep": "struct<a: int, in: struct<b: string, d: decimal(5,1)>>",
    "reals": "list<double>",
    "lines": "list<struct<sku: string, qty: int>>",
}
PLAIN: Mapping[str, tuple[str, ...]] = {
    "small": ("0", "-7", "2147483647", "null"),
    "flag": ("true", "false", "null"),
    "real": ("1", "0.1", "-2.5", "1.7976931348623157e308", "0", "null"),
    "price": ("12.5", "-0.01", "1234567.89", "7", "1e2", "12.30", "null"),
    "day": ('"2024-02-29"', '"1970-01-01"', "null"),
    "local": ('"2024-02-29T23:59:59.123456"', '"1969-12-31 23:59:59"', '"2024-01-01T00:00:00.5"'),
    "instant": ('"2024-02-29T23:59:59.123456Z"', '"1999-12-31T23:59:59Z"', "null"),
    "text": ('"plain"', '"ä\\u00e4\\n\\"q\\""', '""', '"\\ud83d\\ude00"', "null"),
    "deep": ('{"a":1,"in":{"b":"x","d":-0.5}}', '{"in":{}}', "{}", "null", '{"z":[{}]}'),
    "reals": ("[1,null,-2.5e3]", "[]", "null"),
    "lines": ('[{"sku":"a","qty":1},null]', "[]", '[{"x":[1,[2]],"qty":2}]'),
}
LONG_NUMBER = "4" * 490 + "." + "7" * 490 + "e-" + "0" * 90 + "400"
"""Longer than Spark's parser takes a number, in pieces that are not."""

ODD: Mapping[str, tuple[str, ...]] = {
    "id": ("1.0", "9223372036854775808", '"1"', "null", "true", "-0", "1e0"),
    "small": ("2147483648", "1.5", '"1"', "1E0"),
    "flag": ('"true"', "1"),
    "real": (
        *("5e-324", "-2.5e-3", "-0.0", "-0", LONG_NUMBER, "1e400", "NaN", "Infinity"),
        *('"1.5"', '"NaN"', "1" * 400, "0." + "1" * 400),
    ),
    "price": (
        *('"12.30"', '"+1"', "12.345", "12345678.9", '"x"', '""', "1e-30", "0e-100000000"),
        *("1e-41", '"0\\u0065-9999"', "1E+2", '" 1"', '"12,50"', '"1,5"', '".5"', '"-.5"', '"5."'),
        *(
            '"007"',
            '"\\u002b1"',
            '"1\\u002e"',
            '"1E2"',
            '"1e-2"',
            '"\u0663"',
            '"1_0"',
            "1e99999999",
        ),
        *('"1e99999999"', "0.00000000000000000000000000000000000001", '"1.e1"', '"0x1"', '"1 000"'),
    ),
    "day": (
        '"2023-02-29"',
        '"0000-12-31"',
        '"2024-01-01\\n"',
        '"2024-2-9"',
        '"1500-01-01"',
        '"0001-01-01"',
        '" 2024-01-01"',
        "1",
    ),
    "local": (
        *('"2024-01-02T03:04"', '"2024-01-02"', '"2024-01-02T03:04:05Z"', '"2024-02-30T00:00:00"'),
        *('"2024-01-02T24:00:00"', '"2024-01-02T03:04:60"', '"2024-01-02T03:04:05.1234567"'),
        *(
            '"2024-01-02T03:04:05.1234560"',
            '"2024-01-02T03:04:05."',
            '"2024-01-02t03:04:05"',
            '"1850-01-01T00:00:00"',
            "1",
        ),
    ),
    "instant": (
        *('"2024-01-02T03:04:05+02:00"', '"2024-01-02T03:04:05"', '"2024-02-30T00:00:00Z"'),
        *('"9999-12-31T23:59:59-14:00"', '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59Z"'),
        *('"2024-01-02T03:04:05z"', '"2024-01-02T03:04:05.1234567Z"', "1700000000"),
        '"2024-01-02T03:04:05.1234560Z"',
    ),
    "text": (
        '"NaN Inf"',
        "1",
        "1.50",
        "true",
        "{}",
        '[1, "x"]',
        '"\\ud800"',
        '"\\u0000"',
        '"a\tb"',
        '"\\q"',
    ),
    "deep": ('{"in":{"d":0.55}}', "[]", '"x"', '{"a":"1"}', '{"a":1,"a":2}'),
    "reals": ("[1e-3]", "[-0]", '["1"]', "1", "[1e400]", "[NaN]"),
    "lines": ('[{"qty":"1"}]', "{}", "[[]]", '[{"qty":1,"qty":2}]'),
    "unknown": ("NaN", "[Infinity]", "-Infinity", "[" * 1000 + "]" * 1000, "1" * 1200, "01", "'x'"),
}
WHOLE: tuple[bytes | None, ...] = (
    *(None, b"", b" ", b"{", b"}", b"{}", b"null", b'"x"', b"[]", b"{}{}", b'{"id":1}{"id":2}'),
    *(b'{"id":1} x', b'{"id":1}}', b'{"id":1},', b'{"id":1},{"id":2}', b'{"id":1}] {', b"\x00"),
    *(b' {"id":1}', b'{"id":1} ', b'{"id":1}\n', b'{\n"id":1}', b'{"id":1}\n{"id":2}', b"{'id':1}"),
    *(b'{"id":1,}', b'{"id":1,"id":2}', b'{"x":1,"x":2,"id":1}', b'{"\\u0069d":1}', b'{"ID":1}'),
    *(b'{"id":1,"text":"\xff"}', b'\xef\xbb\xbf{"id":1}', b'{"id":1}// x', b'{/**/"id":1}'),
    *(b'{"a":{}', b'{"b":1}}', b'{"id":1,"text":"x\x00"}', b'{"id":1}\x00', b'[{"id":1}]'),
)
STILL_SURE = (
    *[("id", "-0"), ("price", '"12.30"'), ("price", "1E+2"), ("price", '"007"')],
    *[("price", '"1E2"')],
    *[("text", '"\\u0000"'), ("real", "0." + "1" * 400)],
)
"""Odd values that workers read all the same: there both decoders must agree, in every run."""

SURE_AS_A_WHOLE = (b'{"x":1,"x":2,"id":1}', b'{"\\u0069d":1}')
BIG = b'{"id":1,"text":"' + b"x" * 60_000 + b'"}'
ODD_AT_ONCE = 24
"""Of a whole batch's records so many are looked at one by one (`sure_rows.MAX_SPLITS`)."""


def make_records(seed: int, count: int) -> list[bytes | None]:
    """Mix records of plain values with records that have one odd value or are odd as a whole."""
    rnd = random.Random(seed)
    odd: list[bytes | None] = [
        write_record(rnd, count, (name, text)) for name, texts in ODD.items() for text in texts
    ]
    agreed = [write_record(rnd, count, pair) for pair in STILL_SURE]
    records: list[bytes | None] = [write_record(rnd, index) for index in range(count)]
    for value in [*agreed, *SURE_AS_A_WHOLE, *rnd.sample([*odd, *WHOLE], ODD_AT_ONCE)]:
        records.insert(rnd.randrange(len(records)), value)
    return records


def write_record(rnd: random.Random, number: int, odd: tuple[str, str] | None = None) -> bytes:
    """Write a record of plain values; `odd` replaces one of them."""
    fields = {"id": str(number), **{name: rnd.choice(texts) for name, texts in PLAIN.items()}}
    for name in list(PLAIN):
        if rnd.random() < 0.1:
            del fields[name]
    if odd is not None:
        fields[odd[0]] = odd[1]
    names = list(fields)
    rnd.shuffle(names)
    return ("{" + ",".join(f"{json.dumps(name)}:{fields[name]}" for name in names) + "}").encode()
