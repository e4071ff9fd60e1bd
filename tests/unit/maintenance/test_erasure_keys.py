"""Keys of every type that a column may have find their rows, by pruned files and by value."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.lake import Lake, append, make_stream

from frazil.errors import ConfigurationError
from frazil.iceberg.data_files import flag_whole
from frazil.iceberg.row_changes import find_rows
from frazil.maintenance import erasure_keys
from frazil.maintenance.erasure import validate_no_key_in_text
from frazil.maintenance.erasure_keys import (
    ErasedKeys,
    load_keys,
    select_key,
    select_rows_by_key,
)
from frazil.maintenance.messages import ErasureRequest
from frazil.streams import state_sections

ID = "f79c3e09-677c-4bbd-a479-3f349cb785e7"
COLUMNS = {
    "i": "int",
    "l": "long",
    "s": "string",
    "d": "date",
    "n": "decimal(9,2)",
    "w": "decimal(38,10)",
    "u": "uuid",
    "t": "timestamp",
    "z": "timestamptz",
    "f": "boolean",
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
        "t": datetime(2026, 1, 31, 23, 59, 59, 120_000),  # noqa: DTZ001 - without a zone
        "z": datetime(2026, 1, 31, 23, 59, 59, 120_000, UTC),
        "f": True,
        "b": b"\xc3\xa9",
        "who": {"id": "x", "age": 3},
    },
    {"who": None},
    {"i": 8, "s": "", "b": b"", "who": {"id": "", "age": 4}},
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A table with one row of values and two nearly without."""
    lake = Lake(tmp_path, make_stream(value={"columns": COLUMNS}))
    lake.begin()
    put_values(lake)
    yield lake
    lake.catalog.close()


def put_values(lake: Lake) -> None:
    rows = [
        {
            **dict.fromkeys(COLUMNS),
            **values,
            "_kafka": {"topic": "orders", "partition": 0, "offset": n},
        }
        for n, values in enumerate(VALUES)
    ]
    append(lake.catalog, lake.table, rows)


def find(lake: Lake, *texts: str) -> list[int]:
    """Return the offsets of the rows that have one of the keys."""
    erased = load_keys(lake.stream, ErasureRequest(stream="orders", keys=texts))
    found = find_rows(lake.table, select_rows_by_key(lake.table, erased))
    return [offset for file in found for offset in np.flatnonzero(file.is_removed).tolist()]


@pytest.mark.parametrize(
    "text",
    [
        *("i=7", f"l={2**40}", "s=a=b", "d=2026-01-31", f"u={ID}", "b=é", "who.id=x"),
        *("n=12.50", "n=12.5", "n=12.500", "n=1.25e1", "w=1E-10", "w=1e-010", "w=0.0000000001"),
        *("t=2026-01-31T23:59:59.12", "t=2026-01-31 23:59:59.12000000", "f=true"),
        *("z=2026-01-31T23:59:59.12Z", "z=2026-02-01T01:59:59.1200000+0200"),
        *("z=2026-01-31 18:29:59.120-05:30", "z=2026-02-01T02:59:59.12+03"),
    ],
)
def test_a_key_of_any_type_finds_its_row(lake: Lake, text: str) -> None:
    assert find(lake, text) == [0]


@pytest.mark.parametrize("column", ["s", "b"])
def test_an_empty_text_is_a_value_and_finds_its_row_alone(tmp_path: Path, column: str) -> None:
    table = {"name": "demo.orders", "partition_by": [column]}
    lake = Lake(tmp_path, make_stream(value={"columns": COLUMNS}, table=table))
    lake.begin()
    put_values(lake)

    found = [find(lake, text) for text in ("s=", "b=", "who.id=", "_kafka.key=")]
    lake.catalog.close()
    assert [len(each) for each in found] == [1, 1, 1, 0]


def test_an_empty_text_is_not_a_row_without_a_value(lake: Lake) -> None:
    assert [find(lake, text) for text in ("s=", "b=", "who.id=")] == [[2], [2], [2]]


@pytest.mark.parametrize("column", ["i", "l", "d", "n", "u", "t", "z", "f", "who.age"])
def test_an_empty_value_of_another_type_is_refused(lake: Lake, column: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the value for {column} is empty") as refusal:
        find(lake, "s=", f"{column}=")

    assert "only a text" in refusal.value.next_step


@pytest.mark.parametrize(
    "text", ["t=2026-01-31T23:59:59.12", "z=2026-01-31T23:59:59.12Z", "f=true"]
)
@pytest.mark.parametrize("column", ["t", "z", "f"])
def test_a_time_or_boolean_finds_its_row_in_partitions(
    tmp_path: Path, column: str, text: str
) -> None:
    table = {"name": "demo.orders", "partition_by": [column]}
    lake = Lake(tmp_path, make_stream(value={"columns": COLUMNS}, table=table))
    lake.begin()
    put_values(lake)

    assert len(find(lake, text)) == 1
    assert find(lake, "t=2026-02-01T00:00", "z=2026-02-01T00:00:00Z", "f=false") == []
    lake.catalog.close()


def test_several_keys_find_each_row_that_has_one(lake: Lake) -> None:
    assert find(lake, "i=8", "who.age=3", "s=nobody") == [0, 2]


@pytest.mark.parametrize(
    "text",
    [
        *("i=9", f"u={UUID(int=0)}", "n=12.51", "n=0E-10", "w=0E-10", "f=false"),
        *("t=2026-01-31T23:59", "z=2026-01-31T23:59:59.12+00:01", "z=0001-01-01T00:00:00-14:00"),
    ],
)
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
    ("text", "named"),
    [
        ("john@example.org=s", "what stands before the ="),
        ("john.doe@example.org=s", "what stands before the ="),
        ("who=x", "who"),
        ("_kafka.headers=x", "_kafka.headers"),
    ],
)
def test_the_left_side_of_a_key_is_named_only_if_it_is_a_column(
    lake: Lake, text: str, named: str
) -> None:
    with pytest.raises(ConfigurationError, match="not a column of the table that can") as refusal:
        find(lake, text)

    assert str(refusal.value).startswith(f"{named} ")
    assert "john" not in str(refusal.value)
    assert "as here: i, l, " in refusal.value.next_step
    assert refusal.value.next_step.endswith(
        "decimal, integer, long, string, timestamp, timestamptz, uuid"
    )


@pytest.mark.parametrize(
    ("key", "reason", "is_refused"),
    [
        ("n=1234.5", "1234.50 of Jane", True),
        ("n=1234.50", "paid 1.2345e3", True),
        ("i=4711", "order 4711.0", True),
        ("n=1234.5", "request 12345", False),
        ("n=0.00", "request 0", False),
        ("s=Jane Doe", "asked by JANE DOE", True),
        ("s=Rene\u0301e", "of Ren\u00e9e", True),
        ("s=Straße 7", "lives in STRASSE 7", True),
        (f"u={ID}", f"row {ID.upper()}", True),
        (f"u={ID.upper()}", f"row {UUID(ID).hex}", True),
        ("z=2026-01-31T23:59:59.12Z", "seen 2026-02-01 01:59:59.120+02:00", True),
        ("z=2026-01-31T23:59:59.12Z", "seen 2026-01-31 23:59:59.12", True),
        ("t=2026-01-31T23:59:00", "seen 2026-01-31 23:59", True),
        ("z=2026-01-31T23:59:59.12Z", "seen 2026-01-31T23:59:59.12+02:00", False),
        ("z=9999-12-31T23:59:59-14:00", "asked at 2026-01-31T23:59", False),
        ("s=customer-2026", "a request of 2026", False),
        ("s=EAST", "asked at least twice", False),
        ("s=EAST", "Asked in the east.", True),
        ("s=EAST", "of FAREAST", True),
        ("s=ANNA", "Annahme von Anna", True),
        ("s=ANNA", "Annahme der Anfrage", False),
        (f"u={ID.upper()}", f"77abcdef-{UUID(ID).hex} of d{UUID(ID).hex}", True),
        ("z=2025-01-01T11:00:00Z", "at 2025-01-01 12:00:00 +01:00", True),
        ("z=2025-01-01T11:00:00Z", "at 20250101T110000Z", True),
        ("z=2025-01-01T11:00:00Z", "at 20250101 1200+0100", True),
        ("z=2025-01-01T11:00:00Z", "at 20250101T120000Z", False),
        ("d=1990-05-17", "born 19900517", True),
        ("d=1990-05-17", "born 1990-05-17T00:00", True),
        ("d=1990-05-17", "born 19900518", False),
        ("s=19900517", "born 1990-05-17", True),
        ("i=1234567", "id 1,234,567", True),
        ("i=1234567", "id 1.234.567.", True),
        ("i=1234567", "id 1'234'567, as asked", True),
        ("i=1234567", "id 12,345,678", False),
        ("s=+491701234567", "phone (+49) 170 / 123-4567", True),
        ("s=+49 170 1234567", "phone +491701234567", True),
        ("s=4111 1111 1111 1111", "card 4111111111111111", True),
        ("i=12345", "on page 12 345", False),
        ("i=1234567", "customer 1,234,567, 3 rows", True),
        ("n=1234567", "paid 1,234,567.00", True),
        ("i=1234567", "1 234 567 2026-01-15", True),
        ("i=-1234567", "row -1,234,567", True),
        ("i=202611", "request 2026-11", False),
        ("d=2026-01-15", "ticket DSR-202601154711", False),
        ("i=1234567", "+(" * 40_000, False),
    ],
)
def test_a_key_is_the_same_however_a_reason_writes_it(
    key: str,
    reason: str,
    is_refused: bool,  # noqa: FBT001
) -> None:
    request = ErasureRequest(stream="orders", keys=(key,), by="ann", reason=reason)
    erased = load_keys(make_stream(value={"columns": COLUMNS}), request)

    with pytest.raises(ConfigurationError, match="a key") if is_refused else nullcontext():
        validate_no_key_in_text(request, erased)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *((f"f={value}", "true or false") for value in ("True", "1", "yes", "t", "true ")),
        *(
            (f"t={value}", "a date, T and a time, as 2026-")
            for value in (
                *("2026-01-31", "1769904000", "2026-01-31T23:59:59Z", "2026-01-31T24:00:00"),
                *("2026-02-30T00:00:00", "2026-01-31T23:59:59.1234567", "10000-01-01T00:00:00"),
            )
        ),
        *(
            (f"z={value}", "its zone, as 2026-")
            for value in (
                *("2026-01-31T23:59:59", "2026-01-31T23:59Z", "2026-01-31T23:59:59+19:00"),
                *("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1769904000000"),
            )
        ),
    ],
)
def test_another_form_of_a_time_or_boolean_is_refused_with_the_form(
    lake: Lake, text: str, form: str
) -> None:
    with pytest.raises(ConfigurationError, match="a value for") as refusal:
        find(lake, text)

    assert form in refusal.value.next_step


def test_every_type_of_a_state_table_s_key_can_be_erased() -> None:
    names = {kind.__name__.removesuffix("Type").lower() for kind in erasure_keys.KEY_TYPES}
    of_states = {"int" if name == "integer" else name for name in names} - {"binary"}

    assert of_states == state_sections.KEY_TYPES


def test_keys_are_in_no_text_of_what_holds_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("s=alice\n\ns=bob\n")
    request = ErasureRequest(stream="orders", keys=("i=4711",), keys_file=str(file))

    erased = load_keys(make_stream(value={"columns": COLUMNS}), request)

    assert erased.by_column == {"i": ("4711",), "s": ("alice", "bob")}
    assert repr([request, erased, ErasedKeys({}, frozenset())]).count("4711") == 0


def test_only_a_line_feed_ends_a_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    odd = "a\u2028i=7\x85i=8\x0ci=9\x1ci=10"
    file.write_bytes(f"\ufeffi=1\r\ns={odd}\r\n \ns=b".encode())

    erased = load_keys(
        make_stream(value={"columns": COLUMNS}),
        ErasureRequest(stream="orders", keys_file=str(file)),
    )

    assert erased.by_column == {"i": ("1",), "s": (odd, "b")}


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    request = ErasureRequest(stream="orders", keys_file=str(tmp_path / "none.txt"))

    with pytest.raises(ConfigurationError, match="cannot be read: FileNotFoundError"):
        load_keys(make_stream(), request)


@pytest.mark.parametrize("column", ["s", "b"])
def test_a_key_that_is_no_utf_8_selects_nothing_and_is_refused(lake: Lake, column: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a value for {column} is not a valid"):
        select_key(lake.table, {column: "4711\udcff"})


def test_whole_keys_of_every_type_find_their_rows(lake: Lake, tmp_path: Path) -> None:
    wanted = {"i": "7", "n": "12.5", "u": ID.upper(), "z": "2026-02-01T01:59:59.12+02:00"}
    wanted |= {"s": "a=b", "d": "2026-01-31", "f": "true", "b": "é", "who.age": "3"}
    file = tmp_path / "keys.csv"

    def find_listed(*given: dict[str, str]) -> list[int]:
        lines = [",".join(given[0]), *(",".join(each.values()) for each in given)]
        file.write_text("\n".join(lines))
        request = ErasureRequest(stream="orders", keys_file=str(file))
        erased = load_keys(lake.stream, request)
        assert "4711" not in repr(erased)
        found = find_rows(lake.table, select_rows_by_key(lake.table, erased))
        return [offset for each in found for offset in np.flatnonzero(each.is_removed).tolist()]

    assert find_listed(wanted | {"i": "4711"}, wanted) == [0]
    assert find_listed(wanted | {"i": "4711"}, wanted | {"n": "4711"}) == []
    assert find_listed({"i": "8", "who.age": "3"}, {"i": "7", "who.age": "4"}) == []
    assert find_listed({"i": "8", "who.age": "4"}, {"i": "7", "who.age": "3"}) == [0, 2]


def test_a_listed_key_selects_dead_letters_by_the_column_of_the_raw_key(tmp_path: Path) -> None:
    stream = make_stream(key={"convert": "string", "column": "customer"})
    file = tmp_path / "keys.csv"
    file.write_text("tenant,customer\n1,jane\n")

    erased = load_keys(stream, ErasureRequest(stream="orders", keys_file=str(file)))

    assert erased.raw == {b"jane"}

    file.write_text("tenant,customer\n1,\n")  # an empty raw key alone is of all tenants
    erased = load_keys(stream, ErasureRequest(stream="orders", keys_file=str(file)))

    assert (erased.raw, erased.whole) == (frozenset(), ({"tenant": "1", "customer": ""},))


@pytest.mark.parametrize("text", ['s\n""\n', 's\nx\n""', 'i,s\n""\n1,x\n', "i,s\n,\n"])
def test_a_file_may_have_no_key_of_empty_values_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.csv"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match="only empty values"):
        load_keys(make_stream(), ErasureRequest(stream="orders", keys_file=str(file)))


@pytest.mark.parametrize(
    ("text", "columns", "whole"),
    [
        ("i=1\ns=\n\n", {"i": ("1",), "s": ("",)}, ()),
        ("s\n\n \nx\n", {"s": ("x",)}, ()),
        ("i,s\n1,\n\n", {}, ({"i": "1", "s": ""},)),
        ('i,s\n1,""\n', {}, ({"i": "1", "s": ""},)),
        ("s,b\n,x\n", {}, ({"s": "", "b": "x"},)),
    ],
)
def test_a_file_may_have_empty_values_and_its_blank_lines_are_none(
    tmp_path: Path, text: str, columns: dict[str, object], whole: tuple[object, ...]
) -> None:
    file = tmp_path / "keys.csv"
    file.write_bytes(text.encode())
    stream = make_stream(value={"columns": COLUMNS})

    erased = load_keys(stream, ErasureRequest(stream="orders", keys_file=str(file)))

    assert (erased.by_column, erased.whole) == (columns, whole)


def test_a_whole_key_with_an_empty_part_finds_its_row_alone(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    request = ErasureRequest(stream="orders", keys_file=str(file))

    def find_listed(text: str) -> list[int]:
        file.write_text(text)
        found = find_rows(
            lake.table, select_rows_by_key(lake.table, load_keys(lake.stream, request))
        )
        return [offset for each in found for offset in np.flatnonzero(each.is_removed).tolist()]

    assert find_listed("i,s\n8,\n") == [2]
    assert find_listed("i,s\n7,\n8,a=b\n") == []
    with pytest.raises(ConfigurationError, match="the value for i is empty"):
        find_listed("i,s\n,x\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a, b\n1, 2\n", "blanks beside a name"),
        ("a,b\n,\n1,2\n", "its key 1 of 2 has only empty values"),
        ("a\n\n", "has one line and no `=`"),
        ('"  "\n', "has one line and no `=`"),
    ],
)
def test_a_file_that_may_mean_other_keys_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "keys.csv"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=reason):
        load_keys(make_stream(), ErasureRequest(stream="orders", keys_file=str(file)))


def test_many_whole_keys_of_many_columns_keep_their_numbers_small() -> None:
    columns = [f"c{n}" for n in range(7)]
    rng = np.random.default_rng(7)
    listed = rng.integers(0, 1000, (20_000, 7))
    others = rng.permuted(listed, axis=0)
    rows = np.concatenate([others, listed[::-1]])
    sets = {name: pa.array(listed[:, n]) for n, name in enumerate(columns)}

    flags = flag_whole(sets, pa.table({name: rows[:, n] for n, name in enumerate(columns)}))

    every = {tuple(row) for row in listed.tolist()}
    assert flags.tolist() == [tuple(row) in every for row in rows.tolist()]
