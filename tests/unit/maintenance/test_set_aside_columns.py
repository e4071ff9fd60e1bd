"""Rows from before a change of a column's type: an erasure and row expiry still find them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType
from support.dated_lake import Dated
from support.foreign_deletes import delete_by_value
from support.lake import Lake, append, make_stream
from support.state_lake import Change, make_state_lake

from frazil.iceberg.row_changes import count_rows, find_rows
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.authors import Author
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.erasure_keys import ErasedKeys, select_rows_by_key
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.maintenance.row_expiry import expire_rows
from frazil.messages import errors_of_forms
from frazil.schemas.evolution import accept_schema
from frazil.state_tables.tables import ensure_state_table
from frazil.streams.models import Stream
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "new feed")
NOW = datetime.now(UTC)


class Changed:
    """A table that is written, then gets other types, as often as wanted."""

    def __init__(self, folder: Path, columns: Mapping[str, str], **sections: object) -> None:
        """Begin a stream with these columns beside its id."""
        self.sections = sections
        self.lake = Lake(folder, self.describe(columns).stream)
        self.lake.begin()
        ensure_dead_letters_table(self.lake.store, self.lake.stream.table.name)
        self.offset = 0

    def describe(self, columns: Mapping[str, str]) -> Workspace:
        """Open the stream with other columns."""
        stream = make_stream(
            "orders", value={"columns": {"id": "long!", **columns}}, **self.sections
        )
        work = Workspace(stream, Path(), f"run-{len(columns)}")
        if "lake" in self.__dict__:
            work = replace(work, directory=self.lake.folder)
            work.__dict__["store"] = self.lake.store
        return work

    def change(self, **columns: str) -> Workspace:
        """Accept other types."""
        work = self.describe(columns)
        accept_schema(work, JANE)
        return work

    def write(self, *rows: Mapping[str, object]) -> None:
        """Append rows with the next offsets of partition 0."""
        empty = dict.fromkeys(field.name for field in self.lake.table.schema().fields)
        made = []
        for row in rows:
            kafka = {"topic": "orders", "partition": 0, "offset": self.offset}
            made.append({**empty, "id": self.offset, **row, "_kafka": kafka})
            self.offset += 1
        append(self.lake.catalog, self.lake.table, made)

    def rows(self) -> set[int]:
        """Return the offsets of the rows that are visible."""
        return {offset for _, offset in self.lake.coordinates()}


def run(work: Workspace, *texts: str, keys_file: str | None = None) -> Erased:
    """Erase for a person."""
    request = ErasureRequest(
        stream="orders", keys=texts, keys_file=keys_file, by="j", reason="r", dry_run=False
    )
    return erase(work, plan_erasure(work, request), request)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[Changed]:
    """Whole numbers became text: rows 0 to 3 have the former, 4 and 5 the latter."""
    changed = Changed(tmp_path, {"customer": "int", "shop": "string"})
    changed.write(*({"customer": number, "shop": "a"} for number in range(4)))
    changed.change(customer="string", shop="string")
    changed.write({"customer": "3", "shop": "a"}, {"customer": "03", "shop": "a"})
    yield changed
    changed.lake.close()


@pytest.fixture
def work(changed: Changed) -> Workspace:
    return changed.describe({"customer": "string", "shop": "string"})


def test_a_key_is_searched_in_the_column_of_its_earlier_type(
    changed: Changed, work: Workspace
) -> None:
    planned = plan_erasure(work, ErasureRequest(stream="orders", keys=("customer=3",)))
    done = run(work, "customer=3")

    assert (planned.rows, done.rows) == (2, 2)
    assert changed.rows() == {0, 1, 2, 5}
    told = "demo.orders: customer_v0 (int), set aside when the type of customer changed, is sea"
    assert told in planned.text


def test_dead_letters_of_rows_with_the_earlier_type_go_too(
    changed: Changed, work: Workspace
) -> None:
    letters = changed.lake.store.load(changed.lake.stream.dead_letters_table)
    kafka = {"topic": "orders", "partition": 0, "offset": 3, "key": b"other"}
    append(changed.lake.catalog, letters, [{"attempt": "abandoned", "_kafka": kafka}])

    assert run(work, "customer=3").dead_letters == 1


def test_whole_keys_find_rows_of_both_types(
    changed: Changed, work: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "keys.csv"
    file.write_text("customer,shop\n3,a\n2,b\nnobody,a\n")

    assert run(work, keys_file=str(file)).rows == 2

    assert changed.rows() == {0, 1, 2, 5}


def test_a_text_that_the_earlier_type_writes_otherwise_is_another_key(
    changed: Changed, work: Workspace
) -> None:
    done = run(work, "customer=03", "customer=2")

    assert (done.rows, changed.rows()) == (2, {0, 1, 3, 4})
    told = (
        "1 of 2 keys cannot be a value of customer_v0 (int), set aside when the type of customer "
    )
    assert f"{told}changed; if rows hold it there, erase them by another column" in done.text


def test_every_earlier_type_is_searched_also_after_a_rename(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"customer": "int"})
    changed.write({"customer": 3})
    changed.change(customer="string")
    changed.write({"customer": "3"})
    changed.change(client="string")
    changed.write({"client": "3"}, {"client": "4"})
    work = changed.change(client="long")
    changed.write({"client": 3})

    done = run(work, "client=3")

    assert (done.rows, changed.rows()) == (4, {3})
    changed.lake.close()


def test_a_column_that_only_has_such_a_name_is_not_searched(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"customer": "string", "customer_v0": "string"})
    changed.write({"customer": "3"}, {"customer_v0": "3"})
    work = changed.describe({"customer": "string", "customer_v0": "string"})

    assert run(work, "customer=3").rows == 1

    assert changed.rows() == {1}
    changed.lake.close()


def test_an_earlier_type_that_no_key_has_is_named(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"customer": "double"})
    changed.write({"customer": 3.0})
    work = changed.change(customer="string")

    done = run(work, "customer=3")

    told = "1 of 1 keys cannot be a value of customer_v0 (double), set aside when"
    assert (done.rows, told in done.text) == (0, True)
    changed.lake.close()


def test_an_equality_delete_of_the_earlier_type_is_named(changed: Changed, work: Workspace) -> None:
    delete_by_value(changed.lake, "customer_v0", [3])

    done = run(work, "customer=3")
    other = run(work, "customer=7")

    assert ("equality delete file" in done.text, "equality delete file" in other.text) == (
        True,
        False,
    )


RULE = {"expire_rows": {"column": "at", "keep_days": 4}}


def days_ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


def test_rows_whose_time_has_an_earlier_type_expire(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"at": "date"}, maintenance=RULE)
    changed.write(*({"at": days_ago(days).date()} for days in (2, 9)))
    changed.change(at="timestamp")
    changed.write(*({"at": days_ago(days).replace(tzinfo=None)} for days in (2, 9)))
    work = changed.change(at="timestamptz")
    changed.write({"at": days_ago(9)}, {"at": None}, {"at": days_ago(2), "at_v0": date(2000, 1, 1)})

    planned = expire_rows(work, dry_run=True)
    done = expire_rows(work)

    assert (planned.rows, done.rows, done.undated) == (3, 3, 0)
    assert changed.rows() == {0, 2, 5, 6}
    assert ", or at_v1, at_v0 where at is null" in done.text
    changed.lake.close()


STATE_COLUMNS = {"id": "long!", "op": "string", "at": "long", "name": "string"}
SEEN: dict[str, object] = {
    "value": {"columns": {**STATE_COLUMNS, "seen": "date"}},
    "order": "kafka",
}
SEEN_RULE = {"maintenance": {"expire_rows": {"column": "seen", "keep_days": 60}}}


class Seen(Dated):
    """Each row was seen when its record was made, as a date."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = Dated.make_row(change, place)
        return {**row, "seen": (NOW - timedelta(days=100 - change.at)).date()}


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    """A state table with two rows that expire by a date; another column came before."""
    lake = make_state_lake(Seen, tmp_path, "orders", **SEEN, **SEEN_RULE)
    with lake.table.update_schema() as update:
        update.add_column("note", StringType())
    lake.produce(0, Change(1, "c", 4, "old"), Change(2, "c", 96, "young"))
    lake.ingest_all()
    lake.merge()
    yield lake
    lake.close()


def accept_seen(lake: Seen, kind: str, *, merge: bool = True) -> Seen:
    """Accept another type of the time; the state follows with the next merge."""
    columns = {**STATE_COLUMNS, "note": "string", "seen": kind}
    file = lake.stream.model_dump(by_alias=True, exclude_unset=True)
    rule = {"maintenance": {}} if kind == "string" else SEEN_RULE
    stream = Stream.model_validate(file | {"value": {"columns": columns}, **rule})
    work = Workspace(stream, lake.folder, "accept")
    vars(work)["store"] = lake.store
    accept_schema(work, JANE)
    later = replace(lake, stream=stream)
    if merge:
        ensure_state_table(work, TableView(work.store, later.state_name), later.table.schema())
    return later


@pytest.mark.parametrize("is_merged", [True, False])
def test_keys_of_a_state_table_whose_time_has_an_earlier_type_expire(
    seen: Seen, *, is_merged: bool
) -> None:
    later = accept_seen(seen, "timestamptz", merge=is_merged)

    done = later.expire()

    assert (done.rows, later.changes_left()) == (1, [(0, 1)])
    rows = later.store.load(later.state_name).scan().to_arrow().to_pylist()
    assert [row["id"] for row in rows] == [2]
    assert done.earlier_columns == (("seen_v1",) if is_merged else ())


def test_rows_of_a_state_table_whose_earlier_time_is_no_time_are_told(seen: Seen) -> None:
    later = accept_seen(accept_seen(seen, "string"), "timestamptz")
    state = later.store.load(later.state_name)
    rows = state.scan().to_arrow().to_pylist()
    state.overwrite(
        pa.Table.from_pylist(
            [{**row, "seen_v1": None, "seen_v2": "long ago"} for row in rows],
            schema=state.schema().as_arrow(),
        )
    )

    planned = later.expire(dry_run=True)

    assert (planned.earlier_columns, planned.other_columns) == (("seen_v1",), ("seen_v2",))
    assert planned.undated == 2


def test_rows_whose_earlier_time_is_no_time_are_told(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"at": "long"})
    changed.write({"at": 1}, {"at": None})
    changed.sections["maintenance"] = RULE
    work = changed.change(at="timestamptz")
    changed.write({"at": days_ago(9)}, {"at": days_ago(2)})

    planned = expire_rows(work, dry_run=True)
    done = expire_rows(work)

    assert (done.rows, changed.rows()) == (1, {0, 1, 3})
    assert (planned.undated, done.undated, done.other_columns) == (1, 0, ("at_v0",))
    told = "rows without at that stay: 1; the time may be in at_v0, set aside when the type"
    assert told in planned.text
    changed.lake.close()


def test_a_column_whose_proof_is_lost_is_named_and_not_searched(
    changed: Changed, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's expire_snapshots can remove schemas that no snapshot has any more."""
    monkeypatch.setattr(Table, "schemas", lambda table: {1: table.schema()})

    text = run(work, "customer=3").text

    assert changed.rows() == {0, 1, 2, 3, 5}
    assert "customer_v0 may have been set aside when the type of customer changed" in text
    assert "to erase by it, set --key to customer_v0=VALUE" in text


def test_whole_keys_whose_proof_is_lost_are_never_told_to_be_given_in_part(
    work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "schemas", lambda table: {1: table.schema()})
    file = tmp_path / "keys.csv"
    file.write_text("shop,customer\na,3\n")

    text = run(work, keys_file=str(file)).text

    assert "set --keys-file to a CSV file whose first line is shop,customer_v0" in text
    assert "to erase by it, set --key to" not in text


def test_advice_names_the_fields_of_a_form(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Table, "schemas", lambda table: {1: table.schema()})

    with errors_of_forms():
        text = run(work, "customer=3").text

    assert "to erase by it, set keys to customer_v0=VALUE" in text
    assert "--" not in text.replace("--no-dry-run", "")


def test_a_column_of_that_name_whose_values_were_never_this_columns_is_not_searched(
    tmp_path: Path,
) -> None:
    changed = Changed(tmp_path, {"a": "string"})
    changed.change(b="string")
    changed.change(b="string", a="int")
    changed.write({"b": "9", "a": 5}, {"b": "5", "a": 1})
    work = changed.change(b="string", a="string")

    done = run(work, "b=5")

    assert (done.rows, changed.rows(), "a_v2" in done.text) == (1, {0}, False)
    changed.lake.close()


def test_a_time_of_another_column_does_not_expire_rows(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"at": "timestamptz"})
    changed.change(made="timestamptz")
    changed.change(made="timestamptz", at="date")
    changed.write({"made": None, "at": date(1980, 1, 1)})
    rule = {"column": "made", "keep_days": 4}
    changed.sections["maintenance"] = {"expire_rows": rule}
    work = changed.change(made="timestamptz", at="string")

    done = expire_rows(work)

    assert (done.rows, done.earlier_columns, changed.rows()) == (0, (), {0})
    changed.lake.close()


def test_a_change_of_case_and_type_in_one_step_is_searched(tmp_path: Path) -> None:
    changed = Changed(tmp_path, {"customer": "int"})
    changed.write({"customer": 3})
    work = changed.change(Customer="string")

    done = run(work, "Customer=3")

    assert (done.rows, "Customer_v0 (int), set aside" in done.text) == (1, True)
    changed.lake.close()


def test_a_column_set_aside_that_was_renamed_is_searched(changed: Changed, work: Workspace) -> None:
    with changed.lake.table.update_schema() as update:
        update.rename_column("customer_v0", "old_customer")

    assert run(work, "customer=3").rows == 2


UUID = "550e8400-e29b-41d4-a716-446655440000"


@pytest.mark.parametrize(
    ("now", "earlier", "value", "key", "is_erased"),
    [
        ("string", "decimal(10,2)", Decimal("100.00"), "100.00", True),
        ("string", "decimal(10,2)", Decimal("100.00"), "1E2", False),
        ("string", "decimal(10,2)", Decimal("100.00"), "100", False),
        ("string", "decimal(10,2)", Decimal("0.00"), "-0.00", False),
        ("string", "long", 0, "0", True),
        ("string", "long", 0, "-0", False),
        ("string", "long", 3, "+3", False),
        ("string", "long", -3, "-3", True),
        ("string", "long", 3, "", False),
        ("string", "boolean", True, "true", True),
        ("string", "boolean", True, "TRUE", False),
        ("string", "date", date(2026, 1, 31), "2026-01-31", True),
        ("decimal(10,2)", "long", 5, "5.00", True),
        ("decimal(10,2)", "long", 5, "5", True),
        ("decimal(10,2)", "long", 5, "5.10", False),
        ("decimal(10,2)", "long", 500, "5E2", True),
        ("decimal(10,2)", "string", "5.00", "5", True),
        ("decimal(10,2)", "string", "5", "5", True),
        ("long", "decimal(10,2)", Decimal("5.00"), "05", True),
        ("long", "decimal(10,2)", Decimal("5.50"), "5", False),
        ("long", "string", "5", "05", True),
        ("uuid", "string", UUID, UUID, True),
        ("uuid", "string", UUID, UUID.upper(), True),
        ("uuid", "string", UUID.upper(), UUID.upper(), True),
    ],
)
def test_a_key_is_searched_in_the_form_that_the_earlier_type_has(
    tmp_path: Path, now: str, earlier: str, value: object, key: str, *, is_erased: bool
) -> None:
    changed = Changed(tmp_path, {"k": earlier, "shop": "string"})
    changed.write({"k": value, "shop": "a"})
    work = changed.change(k=now, shop="string")

    select = select_rows_by_key(changed.lake.table, ErasedKeys({"k": (key,)}, frozenset()))
    file = tmp_path / "keys.csv"
    file.write_text(f"k,shop\n{key},a\n")

    assert count_rows(find_rows(changed.lake.table, select)) == is_erased
    assert run(work, keys_file=str(file)).rows == is_erased
    changed.lake.close()
