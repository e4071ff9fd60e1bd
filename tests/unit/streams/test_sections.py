"""The sections `value` and `key`: what fits together, and what is refused with its field."""

import pytest
from pydantic import ValidationError
from support.lake import make_stream

from frazil.ingest.planning import transform_version
from frazil.streams.models import Stream
from frazil.streams.sections import Key, Value

COLUMNS = {"id": "long!"}
REGISTERED = {"convert": "by_schema_id"}


def make(value: dict[str, object], **sections: object) -> Stream:
    return make_stream(value=value, **sections)


@pytest.mark.parametrize(
    ("value", "is_flat", "columns"),
    [
        ({"columns": COLUMNS}, True, COLUMNS),
        ({"convert": "raw"}, False, {"value": "binary"}),
        ({"convert": "string"}, False, {"value": "string"}),
        (REGISTERED, True, {}),
        ({**REGISTERED, "transform": "none"}, False, {}),
        ({"transform": "none", "columns": {"value": "struct<id: long>"}}, False,
         {"value": "struct<id: long>"}),
    ],
)  # fmt: skip
def test_a_value_is_flat_or_one_column(
    value: dict[str, object], is_flat: object, columns: dict[str, str]
) -> None:
    made = make(value)

    assert made.value.is_flat is is_flat
    assert made.typed_columns == columns
    assert made.needs_columns is (not columns)


def test_a_key_is_a_column_behind_the_value_s() -> None:
    made = make({"columns": COLUMNS}, key={"convert": "string", "column": "who"})

    assert list(made.typed_columns) == ["id", "who"]
    assert make({"columns": COLUMNS}).typed_columns == COLUMNS


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        ({"columns": COLUMNS, "subject": "x"}, None, "uses no schema registry; remove subject"),
        ({"convert": "raw", "transform": "flatten"}, None, "no fields to flatten"),
        ({"transform": "none", "columns": COLUMNS}, None, "transform: none has one column"),
        ({"transform": "none", "columns": {"value": "long"}}, None, "requires `value: struct"),
        ({"columns": COLUMNS}, {"column": "k"}, "key needs convert"),
        ({"columns": COLUMNS}, {"convert": "json"}, "needs a struct"),
        ({"columns": COLUMNS}, {"convert": "string", "type": "long"}, "requires `type: string`"),
        ({"columns": COLUMNS}, {"convert": "string", "column": "ID"}, "differ only in case"),
        ({"columns": COLUMNS}, {"convert": "string", "column": "_kafka"}, "added to every table"),
        ({"columns": COLUMNS}, {"convert": "by_schema_id", "type": "lung"}, "unknown type"),
        (
            {"columns": COLUMNS},
            {"convert": "raw", "unknown_id": "quarantine"},
            "remove unknown_id",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    value: dict[str, object], key: dict[str, object] | None, reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        make(value, **({"key": key} if key else {}))


EVENTS = {"convert": "by_schema_id", "transform": "flatten_debezium"}
UPSERT = {"name": "demo.t", "mode": "upsert", "id_columns": ["id"], "partition_by": ["day(at)"]}


@pytest.mark.parametrize("ids", [["id"], "_from_debezium_key_"])
def test_change_events_of_a_registry_need_no_columns(ids: object) -> None:
    assert make(EVENTS).needs_columns
    made = make(EVENTS, table={**UPSERT, "id_columns": ids}, order={"sequence_by": "_source.lsn"})
    assert made.needs_columns
    assert make({**EVENTS, "rest": "others", "truncate": "apply"}).needs_columns


@pytest.mark.parametrize(
    ("value", "table", "reason"),
    [
        ({"transform": "flatten_debezium"}, {}, r"only events in Avro \(by_schema_id\) have a"),
        (REGISTERED, UPSERT, "required with `mode: upsert`: list the columns"),
        ({**EVENTS, "convert": "by_latest_schema"}, {}, "json or by_schema_id"),
        ({**EVENTS, "rest": "_op"}, {}, "_op is a column of its own"),
        (EVENTS, {**UPSERT, "id_columns": ["id", "id"]}, "id is named twice"),
        (EVENTS, {**UPSERT, "id_columns": ["memory"]}, "memory is a column of the delete memory"),
        (EVENTS, {**UPSERT, "partition_by": ["_op"]}, "_op is not a column of the state table"),
        ({**EVENTS, "truncate": "apply"}, UPSERT, "it would have to delete every key"),
    ],
)
def test_what_is_wrong_whatever_the_columns_are_is_refused(
    value: dict[str, object], table: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        make(value, table={"name": "demo.t", **table})


def test_what_decides_about_rows_is_part_of_the_transform() -> None:
    plain = make({"columns": COLUMNS})
    keyed = make({"columns": COLUMNS}, key={"convert": "string"})

    assert transform_version(plain) != transform_version(keyed)
    assert plain.content_hash != keyed.content_hash


def test_the_defaults_ask_no_registry() -> None:
    assert Key().convert is None
    assert not Value(columns=COLUMNS).needs_columns
