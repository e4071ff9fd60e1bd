"""Keys of every type that a column may have find their rows, by pruned files and by value."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from support.lake import Lake, append, make_stream

from frazil.errors import ConfigurationError
from frazil.iceberg.row_changes import find_rows
from frazil.maintenance.erasure_keys import (
    ErasedKeys,
    load_keys,
    select_rows_by_key,
    validate_no_key_in_text,
)
from frazil.maintenance.messages import ErasureRequest

ID = "f79c3e09-677c-4bbd-a479-3f349cb785e7"
COLUMNS = {
    "i": "int",
    "l": "long",
    "s": "string",
    "d": "date",
    "n": "decimal(9,2)",
    "w": "decimal(38,10)",
    "u": "uuid",
    "b": "binary",
    "who": "struct<id: string, age: int>",
}
VALUES: list[dict[str, object]] = [
    {
        "i": 7,
        "l": 2**40,
        "s": "a=b",
        "d": date(2026, 1, 31),
        "n": Decimal("12.50"),
        "w": Decimal("1E-10"),
        "u": UUID(ID).bytes,
        "b": b"\xc3\xa9",
        "who": {"id": "x", "age": 3},
    },
    {"who": None},
    {"i": 8, "s": "", "who": {"id": None, "age": 4}},
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A table with one row of values and two nearly without."""
    lake = Lake(tmp_path, make_stream(value={"columns": COLUMNS}))
    lake.begin()
    table = lake.table
    rows = [
        {
            **dict.fromkeys(COLUMNS),
            **values,
            "_kafka": {"topic": "orders", "partition": 0, "offset": n},
        }
        for n, values in enumerate(VALUES)
    ]
    append(lake.catalog, table, rows)
    yield lake
    lake.catalog.close()


def find(lake: Lake, *texts: str) -> list[int]:
    """Give the offsets of the rows that have one of the keys."""
    erased = load_keys(lake.stream, ErasureRequest(stream="orders", keys=texts))
    found = find_rows(lake.table, select_rows_by_key(lake.table, erased))
    return [offset for file in found for offset in np.flatnonzero(file.is_removed).tolist()]


@pytest.mark.parametrize(
    "text",
    [
        *("i=7", f"l={2**40}", "s=a=b", "d=2026-01-31", f"u={ID}", "b=é", "who.id=x"),
        *("n=12.50", "n=12.5", "n=12.500", "n=1.25e1", "w=1E-10", "w=1e-010", "w=0.0000000001"),
    ],
)
def test_a_key_of_any_type_finds_its_row(lake: Lake, text: str) -> None:
    assert find(lake, text) == [0]


def test_several_keys_find_each_row_that_has_one(lake: Lake) -> None:
    assert find(lake, "i=8", "who.age=3", "s=nobody") == [0, 2]


@pytest.mark.parametrize("text", ["i=9", f"u={UUID(int=0)}", "n=12.51", "n=0E-10", "w=0E-10"])
def test_a_key_that_nothing_has_finds_nothing(lake: Lake, text: str) -> None:
    assert find(lake, text) == []


@pytest.mark.parametrize(
    "text",
    ["u=4711", "n=4711.555", "n=4711e9", "n=47114711", "d=4711", "i=4711471147114711"],
)
def test_a_value_of_another_type_is_refused_and_not_repeated(lake: Lake, text: str) -> None:
    with pytest.raises(ConfigurationError, match="a value for") as refusal:
        find(lake, text)

    assert "4711" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "reason", "is_refused"),
    [
        ("n=1234.5", "1234.50 of Jane", True),
        ("n=1234.50", "paid 1.2345e3", True),
        ("i=4711", "order 4711.0", True),
        ("n=1234.5", "request 12345", False),
        ("n=0.00", "request 0", False),
    ],
)
def test_a_number_is_the_same_key_however_a_reason_writes_it(
    key: str,
    reason: str,
    is_refused: bool,  # noqa: FBT001
) -> None:
    request = ErasureRequest(stream="orders", keys=(key,), by="ann", reason=reason)
    erased = load_keys(make_stream(value={"columns": COLUMNS}), request)

    with pytest.raises(ConfigurationError, match="a key") if is_refused else nullcontext():
        validate_no_key_in_text(request, erased)


def test_keys_are_in_no_text_of_what_holds_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("s=alice\n\ns=bob\n")
    request = ErasureRequest(stream="orders", keys=("i=4711",), keys_file=str(file))

    erased = load_keys(make_stream(value={"columns": COLUMNS}), request)

    assert erased.by_column == {"i": ("4711",), "s": ("alice", "bob")}
    assert repr([request, erased, ErasedKeys({}, frozenset())]).count("4711") == 0


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    request = ErasureRequest(stream="orders", keys_file=str(tmp_path / "none.txt"))

    with pytest.raises(ConfigurationError, match="cannot be read: FileNotFoundError"):
        load_keys(make_stream(), request)
