"""Random rows for the parity test: small pools full of edges.

Pools are small so that values meet the constants of the suites, and verdicts fall on both sides.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa

COLUMNS = {
    "i": "int",
    "j": "int",
    "k": "long",
    "m": "long",
    "d": "double",
    "e": "double",
    "f": "float",
    "g": "decimal(12,2)",
    "h": "decimal(20,4)",
    "s": "string",
    "t": "string",
    "b": "boolean",
    "n": "date",
    "o": "date",
    "x": "timestamp",
    "y": "timestamp",
    "z": "timestamptz",
    "w": "timestamptz",
    "l": "list<long>",
}
ARROW = pa.schema(
    [
        *[(name, pa.int32()) for name in "ij"],
        *[(name, pa.int64()) for name in "km"],
        *[(name, pa.float64()) for name in "de"],
        ("f", pa.float32()),
        ("g", pa.decimal128(12, 2)),
        ("h", pa.decimal128(20, 4)),
        *[(name, pa.string()) for name in "st"],
        ("b", pa.bool_()),
        *[(name, pa.date32()) for name in "no"],
        *[(name, pa.timestamp("us")) for name in "xy"],
        *[(name, pa.timestamp("us", "UTC")) for name in "zw"],
        ("l", pa.list_(pa.int64())),
    ]
)
TEXTS = (
    *("", "a", "b", "ab", "ba", "A1", "1", "12", "é", "e\u0301", "ß", "😀", "a😀b", "\U0010ffff"),
    *("\n", "a\n", "a\nb", "\r\n", "\u2028", " ", "\xa0", "\x1c", "٣", "𑛁", "a'b", "a\\b", '"'),
    *("${x}", "%", "None", "nan", "x" * 40, "\x00"),
)
WHOLES = (-(2**31), -2, -1, 0, 1, 2, 3, 5, 2**31 - 1)
LONGS = (-(2**63), -(2**53) - 1, -(2**53), 2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1)
SINGLES = tuple(float(np.float32(value)) for value in (0.1, 0.5, 1.5, -2, 3e38, 1e-40))
DOUBLES = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.1, 0.2, 0.30000000000000004),
    *(0.5, 1.5, -2.0, 3.0, 1e308, -1e308, 5e-324, 2.0**53),
)
DECIMALS = tuple(map(Decimal, ("0.00", "0.10", "0.30", "0.50", "1.50", "-2.25", "9999999999.99")))
DATES = tuple(map(date.fromisoformat, ("1500-01-01", "1970-01-01", "2013-01-31", "9999-12-31")))
TIMES = tuple(
    map(
        datetime.fromisoformat,
        (
            *("1970-01-01T00:00:00", "2013-01-31T00:00:00", "2013-01-31T00:00:00.000001"),
            *("2013-03-10T02:30:00", "2013-11-03T01:30:00", "1500-01-01T00:00:00"),
            *("2300-01-01T00:00:00", "9999-12-31T23:59:59.999999"),
        ),
    )
)
IN_NANOSECONDS = TIMES[:5]


def draw_table(rng: Random, rows: int) -> pa.Table:
    """Draw rows; each column has its own share of nulls and its own mood: plain or edges."""
    data = {name: _draw_column(rng, name, rows) for name in COLUMNS}
    return pa.table(data, schema=ARROW)


def _draw_column(rng: Random, name: str, rows: int) -> list[object]:
    share = rng.choice((0, 0, 0.1, 0.5, 1))
    pool = _draw_pool(rng, name)
    return [None if rng.random() < share else rng.choice(pool) for _ in range(rows)]


def _draw_pool(rng: Random, name: str) -> tuple[object, ...]:
    edgy = rng.random() < 0.3
    times = TIMES if edgy else IN_NANOSECONDS
    pools: dict[str, tuple[object, ...]] = {
        **dict.fromkeys("ij", WHOLES if edgy else WHOLES[1:-1]),
        **dict.fromkeys("km", (*LONGS, *WHOLES) if edgy else WHOLES),
        **dict.fromkeys("de", DOUBLES if edgy else DOUBLES[3:12]),
        "f": SINGLES,
        **dict.fromkeys("gh", DECIMALS),
        **dict.fromkeys("st", TEXTS),
        "b": (True, False),
        **dict.fromkeys("no", DATES),
        **dict.fromkeys("xy", times),
        **dict.fromkeys("zw", tuple(time.replace(tzinfo=UTC) for time in times)),
        "l": ([], [1], [1, None]),
    }
    pool = pools[name]
    return tuple(rng.sample(pool, min(len(pool), rng.choice((1, 2, 4, 40)))))
