"""Create topics and send records; an interrupted send of the flights can be resumed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.error import KafkaError

from frazil.errors import StackError
from frazil.kafka.cluster import KafkaLog
from frazil_demo.events import PARTITIONS, Event, iterate_events

TOPIC = "flights"
UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The flights have timestamps of 2013: with a retention Kafka would delete them at once."""

_PROGRESS_EVERY = 100_000
_FLUSH_SECONDS = 60
_REPEAT = "`frazil stack status` shows the broker; repeat the command to send the missing records"


@dataclass(frozen=True)
class Sent:
    """Numbers of records: sent now, there before, and malformed among all."""

    now: int
    before: int
    malformed: int


def ensure_topic(config: Mapping[str, str], name: str, settings: Mapping[str, str]) -> None:
    """Create the topic unless it exists.

    Raises:
        StackError: Kafka refused it.
    """
    topic = NewTopic(name, PARTITIONS, replication_factor=1, config=dict(settings))
    client = AdminClient(dict(config))
    try:
        client.create_topics([topic])[name].result(15)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise StackError(
                f"could not create topic {name}: {error.args[0].str()}", _REPEAT
            ) from error


def send_flights(config: Mapping[str, str], count: int, report: Callable[[str], None]) -> Sent:
    """Send those of the first `count` flights that the topic does not hold yet.

    Raises:
        StackError: Kafka did not acknowledge all of them.
    """
    facts = KafkaLog(config).fetch_topic(TOPIC, "read_uncommitted")
    ends = [partition.end for partition in facts.partitions]
    producer_settings: dict[str, Any] = {
        **config,
        "log_level": 3,  # a starting broker refuses connections at first
        "enable.idempotence": True,
        "linger.ms": 50,
        "compression.type": "lz4",
    }
    producer = Producer(producer_settings)
    position = [0] * PARTITIONS
    sent = malformed = 0
    for event in iterate_events(count):
        malformed += not _is_flight(event)
        position[event.partition] += 1
        if position[event.partition] <= ends[event.partition]:
            continue
        _produce(producer, event)
        sent += 1
        if sent % _PROGRESS_EVERY == 0:
            report(f"sent {sent:,} records")
    finish(producer, TOPIC)
    return Sent(now=sent, before=sum(ends), malformed=malformed)


def finish(producer: Producer, topic: str) -> None:
    """Wait until Kafka has acknowledged every record.

    Raises:
        StackError: it did not within the time limit.
    """
    left = producer.flush(_FLUSH_SECONDS)
    if left:
        facts = f"topic {topic}: {left} records not acknowledged within {_FLUSH_SECONDS} s"
        raise StackError(facts, _REPEAT)


def _is_flight(event: Event) -> bool:
    return event.value is not None and event.value.startswith(b'{"flight_id":"')


def _produce(producer: Producer, event: Event) -> None:
    """Queue one record, waiting while the queue is full."""
    while True:
        try:
            producer.produce(
                TOPIC,
                value=event.value,
                key=event.key,
                partition=event.partition,
                timestamp=event.timestamp_ms,
                headers=list(event.headers),
            )
        except BufferError:
            producer.poll(0.2)
            time.sleep(0.01)
        else:
            producer.poll(0)
            return
