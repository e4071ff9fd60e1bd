"""An erasure names what it leaves: an erased key in the headers of rows that have another key."""

import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from support.event_lake import COLUMNS, EVENTS, Event, EventsWithoutSpark
from support.lake import append
from support.state_lake import make_state_lake

from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.state_tables.messages import MergeCounts
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=4, inserted=2, updated=0, deleted=1, absent=0, superseded=1, stale=0)
OLD, NEW = "__debezium.oldkey", "__debezium.newkey"
PLANTED, OTHER = 7_070_707_070_707, 8_080_808_080_808
OWN = {"_op", "_unavailable"}
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
CONNECT = {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}


def make_lake(folder: Path, **ids: str) -> EventsWithoutSpark:
    """Make a stream of change events whose key has columns of these types."""
    columns = {**COLUMNS, **{name: f"{kind}!" for name, kind in ids.items()}}
    value = {"convert": "json", "transform": "flatten_debezium", "columns": columns}
    table = {"name": "states.orders", "mode": "upsert", "id_columns": [*ids]}
    sections = {**EVENTS, "value": value, "table": table}
    lake = make_state_lake(EventsWithoutSpark, folder, "orders", **sections)
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    return lake


def write_key(key: object) -> bytes:
    return json.dumps({"id": key}).encode()


@pytest.fixture
def lake(tmp_path: Path) -> EventsWithoutSpark:
    """Merge a row whose key changed, and one of a third key with headers of other keys."""
    lake = make_lake(tmp_path, id="long")
    lake.produce(
        0,
        Event(PLANTED, "c", 1, values={"name": "first"}),
        Event(PLANTED, "d", 3, headers={NEW: write_key(OTHER)}),
        Event(OTHER, "c", 3, values={"name": "moved"}, headers={OLD: write_key(PLANTED)}),
        Event(5, "c", 4, headers={OLD: write_key(6), "trace": write_key(PLANTED)}),
    )
    lake.ingest_all()
    rows = [r for r in lake.table.scan().to_arrow().to_pylist() if r["id"] in {OTHER, 5}]
    state = [{name: value for name, value in row.items() if name not in OWN} for row in rows]
    lake.put_state(state, lake.position(COUNTS))
    return lake


def request(*texts: str, dry_run: bool = False) -> ErasureRequest:
    who = {"by": "jane@example.org", "reason": "request 12"}
    return ErasureRequest(stream="orders", keys=texts, dry_run=dry_run, **who)


def open_work(lake: EventsWithoutSpark, run: str) -> Workspace:
    work = Workspace(lake.stream, lake.folder, run)
    vars(work)["store"] = lake.store
    return work


def list_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if OLD in line)


def preview(lake: EventsWithoutSpark, *texts: str) -> list[str]:
    work = open_work(lake, "look")
    return [*list_lines(plan_erasure(work, request(*texts, dry_run=True)).text)]


def run(lake: EventsWithoutSpark, *texts: str) -> list[str]:
    work = open_work(lake, f"run-of-{len(texts)}-keys")
    return [*list_lines(erase(work, plan_erasure(work, request(*texts)), request(*texts)).text)]


def test_rows_of_another_key_whose_headers_hold_an_erased_key_are_named(
    lake: EventsWithoutSpark,
) -> None:
    for lines in (preview(lake, f"id={PLANTED}"), run(lake, f"id={PLANTED}")):
        assert [line.split(":")[0] for line in lines] == ["states.orders__changes", "states.orders"]
        for line in lines:
            assert "hold an erased key in 1 row with other keys" in line
            assert "orders:0:2; to remove these rows" in line
            assert "`frazil erase orders`" in line
            assert str(PLANTED) not in line


def test_a_delete_whose_header_holds_the_erased_new_key_is_named(lake: EventsWithoutSpark) -> None:
    [line] = run(lake, f"id={OTHER}")

    assert line.startswith("states.orders__changes: ")
    assert "1 row with other keys" in line
    assert "orders:0:1;" in line


def test_rows_that_are_erased_themselves_are_not_named(lake: EventsWithoutSpark) -> None:
    texts = (f"id={PLANTED}", f"id={OTHER}")

    assert preview(lake, *texts) == []
    assert run(lake, *texts) == []
    for name in (lake.stream.table.name, lake.state_name):
        rows = lake.store.load(name).scan().to_arrow().to_pylist()
        assert {row["id"] for row in rows} == {5}


def test_an_erasure_of_the_other_key_ends_what_was_named(lake: EventsWithoutSpark) -> None:
    assert run(lake, f"id={PLANTED}")

    work = open_work(lake, "second")
    erase(work, plan_erasure(work, request(f"id={OTHER}")), request(f"id={OTHER}"))

    assert preview(lake, f"id={PLANTED}") == []


OWN_KEYS: dict[str, object] = {
    "long": 1,
    "string": "x",
    "uuid": bytes(16),
    "boolean": False,
    "decimal(9,2)": Decimal(0),
    "date": date(2000, 1, 1),
    "timestamp": datetime(2000, 1, 1),  # noqa: DTZ001 - a time without a zone
}
HELD, UNCLEAR = "hold an erased key", "hold what may be an erased key"


@pytest.mark.parametrize(
    ("kind", "text", "header", "told"),
    [
        ("long", "4711", b'{"id":4711}', HELD),
        ("long", "+4711", b'{"id":4711}', HELD),
        ("long", "4711", b'{"id":4712}', ""),
        ("long", "4711", b'{"id":"00:00:01Z"}', UNCLEAR),
        ("long", "4711", json.dumps({"schema": CONNECT, "payload": {"id": 4711}}).encode(), HELD),
        ("long", "4711", b'{"other":4711}', UNCLEAR),
        ("long", "4711", b"\0\0\0\0\1\x0e", UNCLEAR),
        ("long", "4711", b"Struct{id=4711}", UNCLEAR),
        ("long", "4711", b"", ""),
        ("string", "a-1", b'{"id":"a-1"}', HELD),
        ("string", "a-1", b'{"id":"A-1"}', ""),
        ("string", "1234", b'{"id":1234}', HELD),
        ("string", "1234", b'{"id":"BNI="}', HELD),
        ("string", "-1.50", b'{"id":"/2o="}', HELD),
        ("string", "1234", b'{"id":"BNM="}', ""),
        ("string", "2024-01-01", b'{"id":19723}', UNCLEAR),
        ("uuid", UUID, json.dumps({"id": UUID.upper()}).encode(), HELD),
        ("boolean", "true", b'{"id":true}', HELD),
        ("boolean", "true", b'{"id":false}', ""),
        ("decimal(9,2)", "12.30", b'{"id":12.3}', HELD),
        ("decimal(9,2)", "12.30", b'{"id":12.31}', ""),
        ("decimal(9,2)", "12.30", b'{"id":"BNI="}', UNCLEAR),
        ("date", "2024-01-01", b'{"id":19723}', HELD),
        ("date", "2024-01-01", b'{"id":19724}', ""),
        ("timestamp", "2024-01-01T00:00:00", b'{"id":1704067200000}', UNCLEAR),
    ],
)
def test_a_header_is_compared_by_the_columns_type(
    tmp_path: Path, kind: str, text: str, header: bytes, told: str
) -> None:
    lake = make_lake(tmp_path, id=kind)
    lake.produce(0, Event(0, "c", 1, values={"id": OWN_KEYS[kind]}, headers={OLD: header}))
    lake.ingest_all()

    lines = preview(lake, f"id={text}")

    assert [told in line for line in lines] == [True] * bool(told)
    assert [line for line in lines if text in line] == []


def test_a_header_is_compared_with_whole_keys_of_several_columns(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, id="long", name="string")
    row = {"name": "x"}
    for number, key in enumerate(({"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 1})):
        header = {OLD: json.dumps(key).encode()}
        lake.produce(0, Event(9 + number, "c", 1, values=row, headers=header))
    lake.ingest_all()
    keys_file = tmp_path / "keys.csv"
    keys_file.write_text("id,name\n1,a\n2,b\n")

    both = preview(lake, "id=1", "name=a")
    [*listed] = list_lines(plan_of_file(lake, keys_file))

    for held, unclear in (both, listed):
        assert (HELD in held, "orders:0:0;" in held) == (True, True)
        assert (UNCLEAR in unclear, "orders:0:2;" in unclear) == (True, True)


def plan_of_file(lake: EventsWithoutSpark, path: Path) -> str:
    asked = request(dry_run=True).model_copy(update={"keys_file": str(path)})
    return plan_erasure(open_work(lake, "look"), asked).text


def test_a_dead_letter_whose_header_holds_an_erased_key_is_named(
    lake: EventsWithoutSpark,
) -> None:
    headers = [{"key": OLD, "value": write_key(PLANTED)}]
    place = {"topic": "orders", "partition": 1, "offset": 7, "key": b"k", "headers": headers}
    letters = lake.store.load(lake.stream.dead_letters_table)
    append(lake.catalog, letters, [{"attempt": "a", "_kafka": place}])

    found = preview(lake, f"id={PLANTED}")
    taken = preview(lake, f"id={PLANTED}", "_kafka.key=k")

    [line] = [each for each in found if each not in taken]
    assert line.startswith(f"{lake.stream.dead_letters_table}: ")
    assert "orders:1:7;" in line
