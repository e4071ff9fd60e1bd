"""Records with a key and without a value delete their row, where the stream file says so."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Lab
from pyiceberg.catalog import load_catalog
from support.avro_bytes import encode, record
from support.change_events import Message, send
from support.registry_lab import RegistryLab, frame

pytestmark = [pytest.mark.spark, pytest.mark.stack]

KEY = record(("id", "long"), ("zone", "string"), name="Key")
VALUE = record(("name", "string"), ("price", ["null", "double"]), name="Value")
COLUMNS = {"id": "long!", "zone": "string!"}
Key = tuple[int, str]
State = dict[Key, tuple[str, float | None]]
Write = Callable[[Key, dict[str, object] | None], Message]


def write_json(key: Key, value: dict[str, object] | None) -> Message:
    text = json.dumps({"id": key[0], "zone": key[1]}).encode()
    return text, None if value is None else json.dumps(value).encode()


def write_text(key: Key, value: dict[str, object] | None) -> Message:
    return f"{key[0]} {key[1]}".encode(), None if value is None else json.dumps(value).encode()


def write_avro(registry: RegistryLab) -> Write:
    key_id = registry.register(json.dumps(KEY), part="key")
    value_id = registry.register(json.dumps(VALUE))

    def write(key: Key, value: dict[str, object] | None) -> Message:
        sent = frame(key_id, encode(KEY, {"id": key[0], "zone": key[1]}))
        return sent, None if value is None else frame(value_id, encode(VALUE, value))

    return write


def begin(registry: RegistryLab, keys: str) -> Write:
    """Write the stream file of one kind of keys; return the writer of its records."""
    key: dict[str, object] = {"convert": "json", "columns": COLUMNS}
    ids, convert, write = [*COLUMNS], "json", write_json
    if keys == "string":
        key, ids, write = (
            {"convert": "string", "column": "code", "type": "string!"},
            ["code"],
            write_text,
        )
    if keys == "avro":
        key["convert"] = convert = "by_schema_id"
        write = write_avro(registry)
    lab = registry.lab
    table = {"name": lab.table, "mode": "upsert", "id_columns": ids, "tombstones": "delete"}
    columns = {"name": "string", "price": "double"}
    lab.write_stream(
        key=key,
        value={"convert": convert, "columns": columns},
        table=table,
        order="kafka",
        errors={"max_bad_ratio": 1.0},
    )
    return write


def draw(dice: random.Random, write: Write, count: int, state: State) -> Iterator[Message]:
    """Draw records of few keys; half of them delete. Fold them into the state."""
    for number in range(count):
        key = (dice.randrange(6), dice.choice(["north", "south"]))
        if dice.random() < 0.5:
            state.pop(key, None)
            yield write(key, None)
        else:
            price = dice.choice([None, number + 0.5])
            state[key] = (f"n{number}", price)
            yield write(key, {"name": f"n{number}", "price": price})


def read_state(lab: Lab) -> State:
    """Read the state table; keys are unique."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows: list[dict[str, Any]] = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    catalog.close()
    assert all("_op" not in row for row in rows)
    keys = [(row["code"].split() if "code" in row else (row["id"], row["zone"])) for row in rows]
    found = {
        (int(i), zone): (row["name"], row["price"])
        for (i, zone), row in zip(keys, rows, strict=True)
    }
    assert len(found) == len(rows)
    return found


def count_letters(lab: Lab) -> dict[str, int]:
    answer = lab.frazil("dead-letters", lab.stream, "--json").json
    assert isinstance(answer, dict)
    return {group["reason"]: group["open"] for group in answer["groups"]}


@pytest.mark.parametrize("keys", ["json", "string", "avro"])
def test_the_state_is_the_fold_of_records_and_tombstones(registry: RegistryLab, keys: str) -> None:
    lab, seed = registry.lab, random.randrange(10**6)
    dice, state = random.Random(seed), State()
    write = begin(registry, keys)
    for count in (30, 20):
        send(lab.stack.bootstrap, lab.topic, draw(dice, write, count, state))
        lab.drain()
        assert read_state(lab) == state, f"seed {seed}"
    broken = b"\xff\xfe" if keys == "string" else b"{"
    send(lab.stack.bootstrap, lab.topic, [(None, None), (broken, None)])
    lab.drain()

    assert read_state(lab) == state, f"seed {seed}"
    assert count_letters(lab) == {"bad_key": 1, "null_value": 1}
    assert lab.frazil("audit", lab.stream, "--values").code == 0


def test_tombstones_that_were_dead_letters_delete_once_the_file_says_so(
    registry: RegistryLab,
) -> None:
    lab = registry.lab
    table = {"name": lab.table, "mode": "upsert", "id_columns": [*COLUMNS]}
    rest = {"name": "string", "price": "double"}
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS | rest},
        table=table,
        order="kafka",
        errors={"max_bad_ratio": 1.0},
    )
    ids = [{"id": number, "zone": "north"} for number in range(3)]
    keys = [json.dumps(each).encode() for each in ids]
    values = [json.dumps({**each, "name": "old"}).encode() for each in ids]
    tombstones: list[Message] = [(keys[0], None), (keys[1], None)]
    again: Message = (keys[1], values[1].replace(b"old", b"new"))
    send(lab.stack.bootstrap, lab.topic, [*zip(keys, values, strict=True), *tombstones, again])
    lab.drain()
    before = read_state(lab)
    letters = count_letters(lab)

    key = {"convert": "json", "columns": COLUMNS}
    lab.write_stream(
        value={"convert": "json", "columns": rest}, key=key, table={**table, "tombstones": "delete"}
    )
    send(lab.stack.bootstrap, lab.topic, [(keys[2], None)])
    lab.drain()
    middle = read_state(lab)
    redriven = lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run")
    merged = lab.frazil("merge", lab.stream)

    assert len(before) == 3
    assert letters == {"null_value": 2}
    assert middle.keys() == {(0, "north"), (1, "north")}
    assert redriven.code == 0, redriven.out + redriven.err
    assert merged.code == 0, merged.out + merged.err
    assert read_state(lab) == {(1, "north"): ("new", None)}
    assert lab.frazil("audit", lab.stream).code == 0
