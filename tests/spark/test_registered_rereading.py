"""What reads records again decodes them as a batch would: by the same schema, by every schema."""

import json
import secrets

import pytest
from confluent_kafka.schema_registry import Schema
from faults.judges import assert_audited
from support.avro_bytes import encode, record
from support.forked import Run
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

V1 = record(("a", "long"), ("b", "long"))
SWAPPED = record(("b", "long"), ("a", "long"))


def run(registry: RegistryLab, *arguments: str) -> Run:
    """Run a command that must go well."""
    done = registry.lab.frazil(*arguments, "--json")
    assert done.code == 0, done.err
    return done


def test_bare_values_are_read_again_by_the_newest_schema_alone(registry: RegistryLab) -> None:
    """Both versions decode these bytes whole; an older one would swap the columns."""
    lab = registry.lab
    registry.write_stream("by_latest_schema")
    registry.register(json.dumps(V1))
    newest = registry.register(json.dumps(SWAPPED))
    registry.send([encode(SWAPPED, {"a": 1, "b": 2})] * 10)
    lab.drain()

    for flags in ((), ("--no-dry-run",)):
        run(registry, "replay", lab.stream, "--offsets", f"{lab.topic}:0:0-5", *flags)

        rows = read_table(lab)
        assert {(r["a"], r["b"], r["_kafka"]["schema_id"]) for r in rows} == {(1, 2, newest)}
        assert len(rows) == 10
    assert_audited(lab)


def test_a_window_below_the_beginning_is_read_by_the_newest_schema_alone(
    registry: RegistryLab,
) -> None:
    lab = registry.lab
    registry.register(json.dumps(V1))
    registry.register(json.dumps(SWAPPED))
    registry.send([encode(SWAPPED, {"a": 1, "b": 2})] * 10)
    lab.write_stream(
        source={"topic": lab.topic, "start": "latest"},
        value={"convert": "by_latest_schema"},
        table={"name": lab.table},
    )
    lab.drain()
    registry.send([encode(SWAPPED, {"a": 1, "b": 2})] * 2)
    lab.drain()

    run(registry, "backfill", lab.stream, "--no-dry-run")

    assert [(r["a"], r["b"]) for r in read_table(lab)] == [(1, 2)] * 12


def test_a_comparison_knows_the_schemas_of_other_subjects_that_batches_met(
    registry: RegistryLab,
) -> None:
    lab = registry.lab
    own = registry.register(json.dumps(V1))
    wider = record(("a", "long"), ("b", "long"), ("c", "long"))
    other = registry.client.register_schema(f"{lab.topic}-other", Schema(json.dumps(wider), "AVRO"))
    registry.send(
        [
            frame(own, encode(V1, {"a": 1, "b": 2})),
            frame(other, encode(wider, {"a": 3, "b": 4, "c": 5})),
        ]
        * 5
    )
    assert "requires add_column c: long" in lab.frazil("run", lab.stream).err
    lab.drain()

    done = run(registry, "replay", lab.stream, "--offsets", f"{lab.topic}:1:0-5")

    assert isinstance(done.json, dict)
    assert done.json["differences"]["same"] == 5, done.json
    assert done.json["differences"]["now_bad"] == 0


def test_letters_of_a_schema_that_is_known_by_now_come_back(registry: RegistryLab) -> None:
    """It may be registered under any subject: the id alone counts."""
    lab = registry.lab
    word = secrets.token_hex(8)  # a schema that the registry has already keeps its number
    own = registry.register(json.dumps({**V1, "doc": word}))
    registry.write_stream(unknown_id="quarantine")
    wider = {**record(("a", "long"), ("b", "long"), ("c", "long")), "doc": word}
    late = frame(own + 1, encode(wider, {"a": 3, "b": 4, "c": 5}))
    registry.send([frame(own, encode(V1, {"a": 1, "b": 2}))] * 30 + [late])
    lab.drain()
    assert [r["reason"] for r in read_table(lab, f"{lab.table}__dead_letters")] == [
        "unknown_schema_id"
    ]
    preview = run(registry, "replay-dead-letters", lab.stream)
    assert "unknown_schema_id" in preview.out

    known = registry.client.register_schema(f"{lab.topic}-other", Schema(json.dumps(wider), "AVRO"))
    assert known == own + 1
    run(registry, "replay-dead-letters", lab.stream, "--no-dry-run")

    assert sorted((r["a"], r["b"]) for r in read_table(lab)) == [(1, 2)] * 30 + [(3, 4)]
    assert_audited(lab)
