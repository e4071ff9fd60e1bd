"""147-byte flat events, as a sensor sends them: the other half of what a floor is measured by."""

import json
import random
from collections.abc import Iterator, Mapping

TARGET_BYTES = 147
COLUMNS: Mapping[str, str] = {
    "id": "long!",
    "device": "string!",
    "at": "timestamp!",
    "kind": "string",
    "value": "double",
    "unit": "string",
    "ok": "boolean",
}
SPARK_SCHEMA = (
    "id BIGINT, device STRING, at TIMESTAMP_NTZ, kind STRING, value DOUBLE, unit STRING, ok BOOLEAN"
)
KINDS = ("temperature", "pressure", "humidity", "vibration")
EXPECTATIONS = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "device"}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "at"}},
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "kind", "value_set": [*KINDS]},
    },
    {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "unit", "value_set": ["K", "Pa", "%", "mm/s"]},
    },
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "value", "min_value": 0, "max_value": 1000},
    },
    {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "device", "min_value": 1, "max_value": 64},
    },
    {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "id", "min_value": 0, "max_value": 10**12},
    },
    {
        "type": "expect_column_max_to_be_between",
        "kwargs": {"column": "id", "min_value": 0, "max_value": 10**12},
    },
    {
        "type": "expect_table_row_count_to_be_between",
        "kwargs": {"min_value": 1, "max_value": 10**9},
    },
]


def iterate_values(count: int, seed: int = 7) -> Iterator[bytes]:
    """Yield events of 147 bytes on average."""
    rnd = random.Random(seed)
    for index in range(count):
        place = rnd.randrange(4)
        event = {
            "id": index,
            "device": f"plant-{rnd.randrange(40):02d}-sensor-{rnd.getrandbits(72):018x}",
            "at": f"2026-03-{index % 28 + 1:02d}T{index % 24:02d}:{index % 60:02d}:07.125",
            "kind": KINDS[place],
            "value": round(rnd.random() * 900, 3),
            "unit": ("K", "Pa", "%", "mm/s")[place],
            "ok": rnd.random() < 0.99,
        }
        yield json.dumps(event, separators=(",", ":")).encode()
