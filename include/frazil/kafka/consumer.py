"""A consumer that reads which offsets Kafka delivers, for audits and cluster moves."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from frazil.errors import KafkaUnavailableError
from frazil.kafka.client_settings import to_librdkafka
from frazil.kafka.cluster import KafkaLog, TopicFacts, open_consumer
from frazil.ledger.coordinates import (
    FIRST_TIMESTAMP_MS,
    LAST_TIMESTAMP_MS,
    NO_OFFSETS,
    Offsets,
)
from frazil.ledger.offsets import OffsetRange

SILENCE_SECONDS = 30.0

_FETCH_RECORDS = 10_000

_FETCH_WAIT_SECONDS = 0.1


_TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: 0, TIMESTAMP_LOG_APPEND_TIME: 1}
_NO_TYPE = -1
_NO_TIME_MS = -1
_MAX_SPARK_MS = (2**63 - 1) // 1000
"""Spark's Kafka source holds timestamps in microseconds, and fails at those beyond 64 bits."""


@dataclass(frozen=True)
class KafkaRecord:
    """A record as the broker delivers it; its timestamp is None if tables cannot hold it.

    `timestamp_type` is 0 for the producer's time, 1 for the broker's, -1 for none.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


class OffsetLog(Protocol):
    """A Kafka cluster as an audit reads it."""

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:
        """Fetch ids and offsets of every partition."""

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
        """Fetch the topic's effective configuration."""

    def fetch_delivered(
        self, topic: str, ranges: Mapping[int, OffsetRange], isolation: str
    ) -> Mapping[int, Offsets]:
        """Return the offsets of the ranges that a consumer receives, ascending."""


class OffsetConsumer:
    """Consume a topic and return only the offsets of its records."""

    def __init__(self, log: KafkaLog, config: Mapping[str, str]) -> None:
        """Store the cluster's client and its librdkafka settings."""
        self._log = log
        self._config = config

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:
        """Fetch ids and offsets of every partition."""
        return self._log.fetch_topic(topic, isolation)

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
        """Fetch the topic's effective configuration."""
        return self._log.fetch_topic_settings(topic)

    def fetch_delivered(
        self,
        topic: str,
        ranges: Mapping[int, OffsetRange],
        isolation: str,
        on_record: Callable[[Message], None] | None = None,
    ) -> Mapping[int, Offsets]:
        """Return the offsets of the ranges that a consumer receives; expired ones are left out.

        `on_record` is called with every record received, including some after a range's end.

        Raises:
            KafkaUnavailableError: nothing arrived for 30 seconds before a range's end.
        """
        consumer = open_consumer(
            {
                "log_level": 0,
                "fetch.queue.backoff.ms": 10,
                "queued.min.messages": 200_000,
                **to_librdkafka(self._config),
                "group.id": "frazil-audit",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, r.start) for p, r in ranges.items()])
            return _consume(consumer, topic, ranges, on_record)
        finally:
            consumer.close()

    def fetch_records(
        self, topic: str, partition: int, span: OffsetRange, isolation: str
    ) -> tuple[KafkaRecord, ...]:
        """Return the records of a range whole, in order.

        Raises:
            KafkaUnavailableError: nothing arrived for 30 seconds before the range's end.
        """
        received: list[Message] = []
        self.fetch_delivered(topic, {partition: span}, isolation, received.append)
        records = map(_read_record, received)
        return tuple(record for record in records if span.holds(record.offset))

    def fetch_unreadable(
        self, topic: str, ranges: Mapping[int, OffsetRange], isolation: str
    ) -> Mapping[int, list[int]]:
        """Return the offsets at whose timestamps Spark's Kafka source fails, ascending.

        Raises:
            KafkaUnavailableError: nothing arrived for 30 seconds before a range's end.
        """
        found: dict[int, list[int]] = {partition: [] for partition in ranges}

        def note(message: Message) -> None:
            partition, offset = message.partition() or 0, message.offset() or 0
            if _is_unreadable(message) and ranges[partition].holds(offset):
                found[partition].append(offset)

        self.fetch_delivered(topic, ranges, isolation, note)
        return found


def read_timestamp(message: Message) -> int | None:
    """Return a record's timestamp as tables hold it, in ms; None for none and one out of range."""
    kind, time_ms = message.timestamp()
    is_known = kind != TIMESTAMP_NOT_AVAILABLE and time_ms != _NO_TIME_MS
    return time_ms if is_known and FIRST_TIMESTAMP_MS <= time_ms <= LAST_TIMESTAMP_MS else None


def _is_unreadable(message: Message) -> bool:
    """Return whether Spark's Kafka source fails at a record's timestamp."""
    kind, time_ms = message.timestamp()
    return kind != TIMESTAMP_NOT_AVAILABLE and abs(time_ms) > _MAX_SPARK_MS


def _read_record(message: Message) -> KafkaRecord:
    return KafkaRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=read_timestamp(message),
        timestamp_type=_TIMESTAMP_TYPES.get(message.timestamp()[0], _NO_TYPE),
        key=_to_bytes(message.key()),
        value=_to_bytes(message.value()),
        headers=_read_headers(message),
    )


def _read_headers(message: Message) -> tuple[tuple[str, bytes | None], ...] | None:
    headers = cast("list[tuple[str, str | bytes | None]] | None", message.headers())
    return tuple((name, _to_bytes(value)) for name, value in headers) if headers else None


def _to_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _consume(
    consumer: Consumer,
    topic: str,
    ranges: Mapping[int, OffsetRange],
    on_record: Callable[[Message], None] | None,
) -> Mapping[int, Offsets]:
    """Consume all ranges at once, each up to its last offset or the end of the partition."""
    found: dict[int, list[Offsets]] = {partition: [NO_OFFSETS] for partition in ranges}
    waiting = set(ranges)
    received_at, problem = time.monotonic(), "no answer"
    while waiting:
        messages = consumer.consume(_FETCH_RECORDS, _FETCH_WAIT_SECONDS)
        done: set[int] = set()
        for message in (m for m in messages if m.error() is not None):
            problem = str(message.error())
            if _is_end(message):
                done.add(message.partition() or 0)
        if on_record is not None:
            for message in (m for m in messages if m.error() is None):
                on_record(message)
        for partition, offsets in _group_offsets(messages).items():
            wanted = ranges[partition]
            found[partition].append(offsets[(offsets >= wanted.start) & (offsets < wanted.end)])
            if offsets[-1] >= wanted.end - 1:
                done.add(partition)
            received_at = time.monotonic()
        for partition in done & waiting:
            waiting.discard(partition)
            consumer.pause([TopicPartition(topic, partition)])
        if waiting and time.monotonic() - received_at > SILENCE_SECONDS:
            raise _timed_out(topic, waiting, problem)
    return {partition: np.concatenate(parts) for partition, parts in found.items()}


def _group_offsets(messages: Iterable[Message]) -> dict[int, Offsets]:
    grouped: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        if message.error() is None:
            grouped[message.partition() or 0].append(message.offset() or 0)
    return {p: np.array(offsets, dtype=np.int64) for p, offsets in grouped.items()}


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - public


def _timed_out(topic: str, waiting: set[int], problem: str) -> KafkaUnavailableError:
    return KafkaUnavailableError(
        f"reading {topic} partitions {sorted(waiting)}: no record arrived for "
        f"{SILENCE_SECONDS:.0f} s: {problem}",
        "check the broker with `frazil doctor`, then run again; nothing was changed",
    )
