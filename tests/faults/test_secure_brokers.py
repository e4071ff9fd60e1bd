"""Brokers that ask who is there: one connection logs in by librdkafka and by Java."""

import json
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Producer
from conftest import good_values
from support.secure_broker import WAYS, SecureBroker, run_secure_broker

from faults.batches import Batches
from frazil.ingest.messages import NothingToRead

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with run_secure_broker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


def connect(monkeypatch: pytest.MonkeyPatch, config: Mapping[str, str]) -> None:
    """Write the Kafka connection as a user does."""
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"extra": dict(config)}))


def produce(broker: SecureBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address("PLAINTEXT")})
    for value in good_values(count):
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_each_way_to_log_in_serves_both_clients(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(batches.lab.topic, 1)
    connect(monkeypatch, broker.connection("PLAINTEXT"))
    assert isinstance(batches.run(), NothingToRead)
    written = {}
    ways = [way for way in WAYS if way != "PLAINTEXT"]

    for way in ways:
        connect(monkeypatch, broker.connection(way))
        produce(broker, batches.lab.topic, 2)
        written[way] = batches.publish().rows_written

    assert written == dict.fromkeys(ways, 2)
