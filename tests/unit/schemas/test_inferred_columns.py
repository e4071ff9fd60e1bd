"""The key of change events is read from the first schema in the topic's keys."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.lake import make_stream, make_topic

from frazil.errors import SchemaMisfitError, UnknownSubjectError
from frazil.iceberg.table_view import TableView
from frazil.kafka.cluster import TopicFacts
from frazil.kafka.consumer import KafkaRecord
from frazil.ledger.offsets import OffsetRange
from frazil.schemas import inferred_columns
from frazil.schemas.inferred_columns import choose_key_fields, with_columns
from frazil.workspace import Workspace

GOOD = json.dumps({"schema": {"fields": [{"field": "id"}, {"field": "shop"}]}, "payload": {}})
STRANGE = [
    *('{"schema":{"fields":5}}', '{"schema":{"fields":true}}', '{"schema":{"fields":1.5}}'),
    *('{"schema":{"fields":"id"}}', '{"schema":{"fields":{"field":"id"}}}', '{"schema":[1]}'),
    *('{"schema":{"fields":[5]}}', '{"schema":{"fields":[{"field":5}]}}', '{"schema":null}'),
    *('{"schema":{"fields":[{"field":"id"},5]}}', '{"schema":{"fields":[]}}', "5", "[]", "null"),
    *("[" * 100_000, '{"schema":' * 100_000, "id=1", "", "\x00"),
]


@pytest.mark.parametrize("text", STRANGE, ids=[text[:40] for text in STRANGE])
def test_a_strange_key_has_no_schema(text: str) -> None:
    with pytest.raises(SchemaMisfitError, match="the first key of orders:0 has no schema"):
        choose_key_fields(make_stream(), [("orders:0", text.encode())])


@pytest.mark.parametrize("text", STRANGE, ids=[text[:40] for text in STRANGE])
def test_a_key_with_a_schema_behind_strange_ones_is_found(text: str) -> None:
    keys = [("orders:0", text.encode()), ("orders:0", b"\xff"), ("orders:1", GOOD.encode())]

    assert choose_key_fields(make_stream(), keys) == ("id", "shop")


def test_without_a_key_there_are_no_fields() -> None:
    assert choose_key_fields(make_stream(), []) == ()


@dataclass
class OneTopic:
    """A topic of one partition; it stands for the cluster's client and for its consumer."""

    keys: list[bytes | None]

    def fetch_topics(self, topics: Sequence[str], _isolation: str) -> list[TopicFacts]:
        return [make_topic((len(self.keys),), topic) for topic in topics]

    def fetch_records(
        self, topic: str, number: int, span: OffsetRange, _isolation: str
    ) -> list[KafkaRecord]:
        return [
            KafkaRecord(topic, number, offset, None, -1, key, b"{}", None)
            for offset, key in enumerate(self.keys)
            if span.holds(offset)
        ]


Read = Callable[..., tuple[str, ...]]


@pytest.fixture
def read_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return a function that finds the key of a stream whose records have these keys."""

    def read(*keys: bytes | None, name: str = "orders") -> tuple[str, ...]:
        value = {"convert": "json", "transform": "flatten_debezium", "columns": {"id": "long"}}
        table = {"name": "shop.t", "mode": "upsert", "id_columns": "_from_debezium_key_"}
        work = Workspace(make_stream(name, value=value, table=table), tmp_path, "test")
        topic = OneTopic([*keys])
        vars(work).update(kafka=topic, kafka_config={})
        monkeypatch.setattr(inferred_columns, "OffsetConsumer", lambda *_: topic)
        view = cast("TableView", SimpleNamespace(found=None))
        return with_columns(work, view).stream.table.id_columns

    return read


def test_a_record_with_a_key_behind_others_names_the_key(read_key: Read) -> None:
    key = json.dumps({"schema": {"fields": [{"field": "id"}]}, "payload": {"id": 1}})

    assert read_key(None, None, key.encode()) == ("id",)


def test_without_a_record_the_key_is_not_known_yet(read_key: Read) -> None:
    with pytest.raises(UnknownSubjectError, match="orders has no record yet") as refusal:
        read_key()

    assert "once there are records" in refusal.value.next_step


def test_records_without_a_key_are_told_from_no_records(read_key: Read) -> None:
    with pytest.raises(SchemaMisfitError, match="the first 3 records of orders have no") as refusal:
        read_key(None, None, None)

    step = refusal.value.next_step
    assert "once there are records" not in step
    assert all(each in step for each in ("primary key", "`message.key.columns`", "id_columns"))
    assert "exclude_topics" not in step


def test_a_stream_of_a_pattern_may_leave_a_topic_without_keys_out(read_key: Read) -> None:
    with pytest.raises(SchemaMisfitError, match="the first record of shop__t has no") as refusal:
        read_key(None, name="shop__t")

    assert "`source.exclude_topics`" in refusal.value.next_step
