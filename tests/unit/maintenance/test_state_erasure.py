"""An erasure takes all changes of a key, its row with replaced versions, and recorded deletes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.foreign_deletes import delete_by_position, delete_by_values
from support.lake import append
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import ConfigurationError
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger import keys
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.state_tables.merge_rules import find_position, plan_merge
from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.state_audit import audit_state
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=4, inserted=2, updated=0, deleted=0, absent=1, superseded=1, stale=0)


PLANTED, NAME = 7_070_707_070_707, "planted-9f3c71"


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Merge two versions of key 1, of which one is hidden, a row of key 3 and a delete of key 2."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    lake.produce(0, Change(1, "c", 1, "first"), Change(1, "u", 5, "last"), Change(2, "d", 2))
    lake.produce(1, Change(3, "c", 1, "three"))
    lake.ingest_all()
    rows = [row for row in lake.table.scan().to_arrow().to_pylist() if row["id"] != 2]
    rows.sort(key=lambda row: (row["id"], row["at"]))
    lake.put_state(
        [{n: v for n, v in row.items() if n != "op"} for row in rows], lake.position(COUNTS)
    )
    named = lake.stream.table.model_copy(update={"name": lake.state_name})
    state = replace(lake, stream=lake.stream.model_copy(update={"table": named}))
    (task,) = state.table.scan().plan_files()
    delete_by_position(state, task.file.file_path, [0])
    remember(lake, 2, offset=2)
    assert audit_state(lake.store, lake.stream).findings == ()
    return lake


def remember(lake: StateLake, key: int, offset: int) -> None:
    place = {"topic": "orders", "partition": 0, "offset": offset}
    row = {"id": key, "_sequence": {"s0": 2}, "_kafka": place, "memory": "m"}
    append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), [row])


def request(*texts: str, dry_run: bool = False) -> ErasureRequest:
    who = {"by": "jane@example.org", "reason": "request 12"}
    return ErasureRequest(stream="orders", keys=texts, dry_run=dry_run, **who)


def run(lake: StateLake, *texts: str) -> Erased:
    work = Workspace(lake.stream, lake.folder, f"run-of-{len(texts)}-keys")
    vars(work)["store"] = lake.store
    return erase(work, plan_erasure(work, request(*texts)), request(*texts))


def stored_ids(lake: StateLake) -> Iterator[set[int]]:
    """Return the ids in the data files of the three heads, hidden rows included."""
    for name in (lake.stream.table.name, lake.state_name, f"{lake.state_name}__deletes"):
        table, found = lake.store.load(name), set()
        for task in table.scan().plan_files():
            with table.io.new_input(task.file.file_path).open() as stream:
                found |= set(pq.ParquetFile(stream).read(["id"])["id"].to_pylist())
        yield found


def test_a_preview_counts_rows_that_readers_do_not_see(lake: StateLake) -> None:
    work = Workspace(lake.stream, lake.folder, "look")
    vars(work)["store"] = lake.store

    planned = plan_erasure(work, request("id=1", dry_run=True))

    assert planned.rows == 2
    assert f"{lake.state_name}: 2 rows in data files" in planned.text
    assert [*stored_ids(lake)] == [{1, 2, 3}, {1, 3}, {2}]


def test_no_data_file_keeps_the_key(lake: StateLake) -> None:
    done = run(lake, "id=1", "id=2")

    assert (done.outcome, done.rows) == ("ERASED", 3)
    assert "3 rows of state table and delete memory" in done.text
    assert [*stored_ids(lake)] == [{3}, {3}, set()]
    assert audit_state(lake.store, lake.stream).findings == ()
    assert run(lake, "id=1", "id=2").outcome == "ERASED"  # the same run again finds its commit
    assert run(lake, "id=1").outcome == "NOTHING"


def test_the_same_run_again_erases_what_was_merged_in_between(lake: StateLake) -> None:
    run(lake, "id=1")
    lake.produce(1, Change(1, "c", 6, "again"))
    lake.ingest_all()
    [row] = [row for row in lake.table.scan().to_arrow().to_pylist() if row["id"] == 1]
    state = lake.store.load(lake.state_name)
    append(lake.catalog, state, [{name: value for name, value in row.items() if name != "op"}])

    done = run(lake, "id=1")

    assert done.rows == 3
    assert "3 rows of state table and delete memory" in done.text
    assert [*stored_ids(lake)] == [{2, 3}, {3}, {2}]
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    assert position is not None
    assert len(position.erased) == 2


def test_the_next_merge_folds_only_what_was_added(lake: StateLake) -> None:
    lake.produce(1, Change(3, "u", 4, "new"), Change(1, "u", 2, "older"))
    lake.ingest_all()
    run(lake, "id=1")
    state = TableView(lake.store, lake.state_name)
    position = find_position(state.history, "orders")

    plan = plan_merge(lake.history, lake.stream, position)

    assert position is not None
    assert len(position.erased) == 1
    assert plan is not None
    assert (plan.reason, plan.added) == ("", {"orders": {1: [(1, 3)]}})
    assert audit_state(lake.store, lake.stream).findings == ()


def test_an_erasure_that_the_state_has_not_followed_folds_all_changes(lake: StateLake) -> None:
    before = find_position(TableView(lake.store, lake.state_name).history, "orders")
    run(lake, "id=1")

    plan = plan_merge(lake.history, lake.stream, before)

    assert plan is not None
    assert plan.added is None
    assert plan.reason.startswith(keys.ERASE)


@pytest.mark.parametrize("texts", [("name=last",), ("id=1", "at=5"), ("_kafka.key=1",)])
def test_a_condition_that_is_no_key_is_refused(lake: StateLake, texts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="erase by its key columns") as refused:
        run(lake, *texts)

    assert "give --key for id" in str(refused.value)
    assert [*stored_ids(lake)] == [{1, 2, 3}, {1, 3}, {2}]


@pytest.fixture
def pairs(tmp_path: Path) -> StateLake:
    """Rows whose key has two columns."""
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id", "at"]}
    lake = make_state_lake(
        StateLake, tmp_path, "orders", table={**table, "cdc_field": "op"}, order="kafka"
    )
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    lake.produce(0, *(Change(n, "c", at, f"{n}-{at}") for n in (1, 2, 3) for at in (5, 6)))
    lake.ingest_all()
    rows = lake.table.scan().to_arrow().to_pylist()
    counts = COUNTS.model_copy(update={"changes": 6, "inserted": 6, "absent": 0, "superseded": 0})
    position = lake.position(counts).model_copy(update={"id_columns": ("id", "at")})
    lake.put_state([{n: v for n, v in row.items() if n != "op"} for row in rows], position)
    return lake


@pytest.mark.parametrize(
    ("texts", "gone"),
    [
        (["id=1", "at=5"], {(1, 5)}),
        (["at=6", "id=3"], {(3, 6)}),
        (["id=1", "at=5", "at=6"], {(1, 5), (1, 6)}),
        (["id=1", "id=2", "at=6"], {(1, 6), (2, 6)}),
        (["id=2"], {(2, 5), (2, 6)}),
        (["id=9", "at=5"], set()),
    ],
)
def test_the_columns_of_a_key_are_one_key_together(
    pairs: StateLake, texts: list[str], gone: set[tuple[int, int]]
) -> None:
    run(pairs, *texts)

    for name in (pairs.stream.table.name, pairs.state_name):
        left = pairs.store.load(name).scan().to_arrow().to_pylist()
        every = {(n, at) for n in (1, 2, 3) for at in (5, 6)}
        assert {(row["id"], row["at"]) for row in left} == every - gone


NAMED = {(1, ""), (1, "x"), (2, ""), (2, "x")}


@pytest.fixture
def named(tmp_path: Path) -> StateLake:
    """Rows whose key has a text, which may be empty."""
    columns = {"id": "long!", "name": "string!", "op": "string", "at": "long"}
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id", "name"]}
    lake = make_state_lake(
        StateLake,
        tmp_path,
        "orders",
        value={"columns": columns},
        table={**table, "cdc_field": "op"},
        order="kafka",
    )
    lake.produce(0, *(Change(n, "c", 5, name) for n, name in sorted(NAMED)))
    lake.ingest_all()
    rows = lake.table.scan().to_arrow().to_pylist()
    position = lake.position(COUNTS).model_copy(update={"id_columns": ("id", "name")})
    lake.put_state([{n: v for n, v in row.items() if n != "op"} for row in rows], position)
    return lake


@pytest.mark.parametrize(
    ("texts", "gone"),
    [
        (["id=1", "name="], {(1, "")}),
        (["name=", "id=9"], set()),
        (["id=1", "name=", "name=x"], {(1, ""), (1, "x")}),
        (["name="], {(1, ""), (2, "")}),
        ("id,name\n2,\n\n9,\n", {(2, "")}),
        ("name,id\n,1\nx,2\n", {(1, ""), (2, "x")}),
    ],
)
def test_an_empty_text_of_a_key_selects_no_other_key(
    named: StateLake, texts: list[str] | str, gone: set[tuple[int, str]]
) -> None:
    if isinstance(texts, str):
        run_file(named, texts)
    else:
        run(named, *texts)

    for name in (named.stream.table.name, named.state_name):
        left = named.store.load(name).scan().to_arrow().to_pylist()
        assert {(row["id"], row["name"]) for row in left} == NAMED - gone


def test_values_of_two_columns_that_may_be_any_pair_are_refused(pairs: StateLake) -> None:
    with pytest.raises(ConfigurationError, match="which of them form one key is not") as refused:
        run(pairs, "id=1", "at=5", "id=2", "at=6")

    assert "erase one key at a time" in refused.value.next_step
    assert pairs.table.scan().count() == 6


def test_an_equality_delete_file_holds_a_key_that_has_all_of_its_values(pairs: StateLake) -> None:
    delete_by_values(pairs, {"id": [1, 2], "at": [6, 5]})

    told = {
        texts: "equality delete file" in run(pairs, *texts).text
        for texts in (("id=1", "at=5"), ("id=1", "at=6"), ("id=2",), ("id=3", "at=6"))
    }
    listed = [run_file(pairs, f"id,at\n{key}\n").text for key in ("1,5", "2,5")]

    assert [*told.values()] == [False, True, True, False]
    assert ["equality delete file" in text for text in listed] == [False, True]


def run_file(lake: StateLake, text: str, *texts: str) -> Erased:
    file = lake.folder / "keys.csv"
    file.write_text(text)
    work = Workspace(lake.stream, lake.folder, "run-of-a-file")
    vars(work)["store"] = lake.store
    wanted = request(*texts).model_copy(update={"keys_file": str(file)})
    return erase(work, plan_erasure(work, wanted), wanted)


@pytest.mark.parametrize(
    ("text", "texts", "gone"),
    [
        ("id,at\n1,5\n2,6\n\n9,5\n", [], {(1, 5), (2, 6)}),
        ('\ufeff"at",id\r\n"6",+3\r\n', [], {(3, 6)}),
        ("at,id\n5,1\n", ["id=3", "_kafka.key=x"], {(1, 5), (3, 5), (3, 6)}),
        (" \nid,at\n \n3,6\n\t\n", [], {(3, 6)}),
        ("id\n1\n2\n", ["at=5"], {(1, 5), (2, 5)}),
    ],
)
def test_a_file_lists_whole_keys_of_several_columns(
    pairs: StateLake, text: str, texts: list[str], gone: set[tuple[int, int]]
) -> None:
    run_file(pairs, text, *texts)

    for name in (pairs.stream.table.name, pairs.state_name):
        left = pairs.store.load(name).scan().to_arrow().to_pylist()
        every = {(n, at) for n in (1, 2, 3) for at in (5, 6)}
        assert {(row["id"], row["at"]) for row in left} == every - gone


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("471,582\n471,583\n", "the first line of a CSV file of keys, is not one of them"),
        ("id,name\n1,x-471\n", "name is not one of them"),
        ("id,at\n471\n", "names 2 columns in its first line, and its key 1 of 1 has 1 value"),
        ("id,at\n1,2\n471,\n", "the value for at is empty"),
        ("id,at\n1,471,3\n", "its key 1 of 1 has 3 values"),
        ("id,at\n", "has one line"),
        ("id,id\n471,471\n", "names a column twice"),
        ("_kafka.key,id\n471,471\n", "names _kafka.key beside other columns"),
        ('id,at\n"471,5\n', "is not valid CSV"),
        ("id,at\n1,471x\n", "a value for at is not a valid long"),
    ],
)
def test_a_file_of_unclear_keys_is_refused_and_not_repeated(
    pairs: StateLake, text: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        run_file(pairs, text)

    assert "471" not in str(refused.value)
    assert pairs.table.scan().count() == 6


def test_a_value_before_the_equals_sign_is_not_repeated(pairs: StateLake) -> None:
    with pytest.raises(ConfigurationError, match="erase by its key columns") as refused:
        run(pairs, "jane=id")

    assert "jane" not in str(refused.value)


def test_no_file_of_the_heads_has_the_key_in_values_bounds_or_statistics(lake: StateLake) -> None:
    lake.produce(1, Change(PLANTED, "c", 1, NAME), Change(4, "c", 1, "four"))
    lake.ingest_all()
    changes = [row for row in lake.table.scan().to_arrow().to_pylist() if row["id"] >= 4]
    rows = [{name: value for name, value in row.items() if name != "op"} for row in changes]
    lake.put_state(rows, lake.position(COUNTS))
    remember(lake, PLANTED, offset=9)
    names = (lake.stream.table.name, lake.state_name, f"{lake.state_name}__deletes")
    assert all(has_planted(lake, name) for name in names)

    run(lake, f"id={PLANTED}")

    assert not any(has_planted(lake, name) for name in names)


def has_planted(lake: StateLake, name: str) -> bool:
    """Search the metadata and everything that main's head refers to, decoded."""
    table = lake.store.load(name)
    head = table.current_snapshot()
    assert head is not None
    found = [table.metadata.model_dump_json().encode()]
    for manifest in head.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            found += [repr(file.file_path).encode(), *(file.lower_bounds or {}).values()]
            found += (file.upper_bounds or {}).values()
            with table.io.new_input(file.file_path).open() as stream:
                parquet = pq.ParquetFile(stream)
                found += [repr(parquet.read().to_pylist()).encode()]
                found += [str(parquet.metadata.row_group(0).to_dict()).encode()]
    wanted = (str(PLANTED).encode(), NAME.encode(), PLANTED.to_bytes(8, "little"))
    return any(each in part for each in wanted for part in found)
