"""One topic into several tables, several topics into one: each record has exactly one place."""

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from conftest import Lab
from faults.judges import assert_exactly_once, count_open_letters
from pyiceberg.catalog import load_catalog

pytestmark = pytest.mark.stack
COLUMNS = {"kind": "string", "id": "long!", "text": "string"}


def encode(kind: object, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode()


def routed(lab: Lab, value: str) -> Lab:
    """Return the lab of one of a route's streams; its table is named like it."""
    return replace(lab, stream=f"{lab.stream}__{value}")


def read_ids(lab: Lab) -> list[int]:
    """Read the ids of a table, sorted."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows = catalog.load_table(lab.table).scan(selected_fields=("id",)).to_arrow()
    catalog.close()
    return sorted(rows["id"].to_pylist())


@pytest.mark.core
def test_a_route_gives_each_record_one_table_and_the_rest_to_dead_letters(lab: Lab) -> None:
    tables = {"order": f"{lab.table}__order", "it's \\ é": f"{lab.table}__it_s"}
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        route={"field": "kind", "tables": tables},
        errors={"max_bad_ratio": 1.0},
    )
    lab.create_topic()
    records: list[bytes | None] = [encode("order", id=i) for i in range(300)]
    records += [encode("it's \\ é", id=i) for i in range(300, 350)]
    records += [encode("order"), encode("it's \\ é", id=None, text="x")]
    records += [encode("other", id=1), encode(None, id=2), encode("ORDER", id=3), encode("", id=4)]
    records += [b"{", None, b"", encode(7, id=5), encode("order", id="x")]
    lab.produce(records)
    order, its = routed(lab, "order"), routed(lab, "it_s")

    for each in (lab, order, its):
        each.drain()

    assert (read_ids(order), read_ids(its)) == (list(range(300)), list(range(300, 350)))
    assert read_ids(lab) == []
    assert count_open_letters(order) == count_open_letters(its) == {"required_missing": 1}
    assert count_open_letters(lab) == {
        "unknown_route": 5,
        "malformed_json": 1,
        "null_value": 1,
        "empty_value": 1,
        "type_mismatch": 1,
    }
    for each in (lab, order, its):
        assert_exactly_once(each)


def test_a_tables_budget_is_told_of_its_own_records(lab: Lab) -> None:
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        route={"field": "kind", "tables": {"rare": f"{lab.table}__rare"}},
        errors={"max_bad_ratio": 0.2},
    )
    lab.create_topic()
    lab.produce([encode("other", id=i) for i in range(90)])
    lab.produce([encode("rare", id=1), encode("rare"), encode("rare")])

    run = routed(lab, "rare").frazil("run", f"{lab.stream}__rare")

    assert run.code == 1
    assert "2 of 3 records are bad" in run.err + run.out


def test_a_replay_of_a_route_changes_nothing_of_the_others(lab: Lab) -> None:
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        route={"field": "kind", "tables": {"order": f"{lab.table}__order"}},
        errors={"max_bad_ratio": 1.0},
    )
    lab.create_topic()
    lab.produce([encode("order" if i % 3 else "other", id=i) for i in range(60)])
    order = routed(lab, "order")
    order.drain()
    before = read_ids(order)

    replayed = order.frazil(
        "replay", order.stream, "--offsets", f"{lab.topic}:0:0-30", "--no-dry-run"
    )

    assert replayed.code == 0, replayed.out + replayed.err
    assert read_ids(order) == before
    assert_exactly_once(order)


def test_several_topics_fill_one_table_and_one_may_join_later(lab: Lab) -> None:
    names = [lab.topic, f"{lab.topic}-b", f"{lab.topic}-c"]
    admin = lab.admin  # must outlive its answers
    futures = admin.create_topics([NewTopic(name, 2, 1) for name in names])
    for future in futures.values():
        future.result(60)
    lab.write_stream(source={"topics": names[:2]})
    produce(lab, names[0], range(300))
    produce(lab, names[1], range(300, 450))
    lab.drain()
    assert read_ids(lab) == list(range(450))

    lab.write_stream(source={"topics": names[1:]})
    produce(lab, names[2], range(450, 500))
    produce(lab, names[0], range(900, 910))
    lab.drain()
    status = lab.frazil("status", lab.stream, "--json").json

    assert read_ids(lab) == list(range(500))
    assert isinstance(status, list)
    shown = {(p["topic"], p["partition"]) for p in status[0]["partitions"]}
    assert shown == {(name, number) for name in names[1:] for number in (0, 1)}
    assert_exactly_once(lab)
    where = lab.frazil("where", lab.stream, "--partition", "0", "--offset", "1")
    assert (where.code, "--topic" in where.err + where.out) == (1, True)
    pasted = lab.frazil("where", lab.stream, "--offset", f"{names[1]}:0:1")
    assert (pasted.code, f"{names[1]}:0:1 is in snapshot" in pasted.out) == (0, True)


def produce(lab: Lab, topic: str, ids: range) -> None:
    """Send records that fit to any topic."""
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap, "linger.ms": 5})
    for number in ids:
        value = json.dumps({"id": number, "name": "n", "amount": 0.5}).encode()
        producer.produce(topic, value=value, partition=number % 2)
    assert producer.flush(30) == 0
