"""Topics and offsets of a Kafka cluster: ids, partitions, end offsets, timestamps. No policy."""

import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import stamina
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.error import KafkaError

from frazil.errors import ConfigurationError, KafkaUnavailableError, UnknownTopicError
from frazil.kafka.client_settings import to_librdkafka
from frazil.kafka.failures import describe_certificate, explain_closing, explain_events
from frazil.ledger.usage import count_request

_Result = TypeVar("_Result")

TIMEOUT_SECONDS = 10.0
PROBE_TIMEOUT_SECONDS = 5.0
_QUIET: Mapping[str, Any] = {
    "log_level": 0,
    "socket.connection.setup.timeout.ms": 5000,
}
_MOST_EVENTS = 20
_EVENT_SECONDS = 0.25
_DECISIVE_SECONDS = 2.0
"""One broker of several may refuse: the others get this time to answer."""

_discarded: deque[AdminClient] = deque()
"""Clients whose `KafkaLog` is gone, until a thread of Python's own frees them.

Python collects garbage in any thread, also in one of librdkafka that reports a result. A client
that is freed in a thread of its own ends the process ("Application bug: rd_kafka_destroy() called
from librdkafka owned thread").
"""

_WITH_KERBEROS = (
    "install confluent-kafka with Kerberos: librdkafka with libsasl2 on this machine, then "
    "`pip install --no-binary confluent-kafka confluent-kafka`"
)


@dataclass(frozen=True)
class PartitionOffsets:
    """The earliest available offset of a partition, and its end: the next offset to be written."""

    earliest: int
    end: int


@dataclass(frozen=True)
class TopicFacts:
    """Ids and offsets of a topic at the time of the request."""

    topic: str
    topic_id: str
    cluster_id: str
    partitions: tuple[PartitionOffsets, ...]


@dataclass(frozen=True)
class GroupFacts:
    """Active members of a consumer group, and topic → partition → committed offset and metadata."""

    members: int
    committed: Mapping[str, Mapping[int, tuple[int, str]]]


_QUOTED_VALUE = re.compile(r'value ".*"(?= for )', re.DOTALL)
"""What librdkafka quotes of a setting that it refuses."""


@contextmanager
def _refused_settings(bootstrap: str) -> Iterator[None]:
    """Raise a `ConfigurationError` with the reason where librdkafka refuses settings."""
    try:
        yield
    except KafkaException as exception:
        reason = _QUOTED_VALUE.sub("value", exception.args[0].str())
        raise ConfigurationError(
            f"settings for Kafka at {bootstrap}: {reason}",
            _WITH_KERBEROS
            if "mechanism GSSAPI" in reason
            else "correct the connection's extra; settings for Spark's Java client alone have the "
            "prefix `java.`",
        ) from exception


def open_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Create a consumer.

    Raises:
        ConfigurationError: librdkafka refuses a setting, as some are only wrong beside others.
    """
    with _refused_settings(str(settings.get("bootstrap.servers", "?"))):
        return Consumer(dict(settings))


def _discard(client: AdminClient) -> None:
    """Store a client whose `KafkaLog` is gone, unless the main thread frees it at once."""
    if threading.current_thread() is not threading.main_thread():
        _discarded.append(client)


class KafkaLog:
    """Client of one Kafka cluster for topics and offsets."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """Store librdkafka's settings; the connection is opened by the first request.

        Raises:
            ConfigurationError: a setting is unknown, or reaches only one of the clients.
        """
        self._config: dict[str, Any] = {**_QUIET, **to_librdkafka(config)}
        self._bootstrap = config.get("bootstrap.servers", "?")
        # What librdkafka reports beside the requests: the cause of a timeout.
        self._events = events = deque[str](maxlen=_MOST_EVENTS)
        observed: dict[str, Any] = {
            **self._config,
            "error_cb": lambda error: events.append(error.str()),
        }
        _discarded.clear()
        with _refused_settings(self._bootstrap):
            self._admin = AdminClient(observed)
        weakref.finalize(self, _discard, self._admin).atexit = False

    def fetch_topic(self, topic: str, isolation: str = "read_committed") -> TopicFacts:
        """Fetch ids and offsets of a topic.

        With `read_committed` the end is the last stable offset.

        Raises:
            UnknownTopicError: the cluster has no such topic, or this user may not describe it.
            KafkaUnavailableError: the cluster did not answer in time.
        """
        for attempt in stamina.retry_context(on=_is_electing_leader, attempts=12, timeout=15.0):
            with attempt:
                return self._fetch_topic(topic, isolation)
        message = "stamina leaves its loop only by a result or an error"
        raise AssertionError(message)

    def fetch_topics(
        self, topics: Iterable[str], isolation: str = "read_committed"
    ) -> tuple[TopicFacts, ...]:
        """Fetch ids and offsets of several topics, in the given order."""
        return tuple(self.fetch_topic(topic, isolation) for topic in topics)

    def _fetch_topic(self, topic: str, isolation: str) -> TopicFacts:
        with self._translated(f"describing topic {topic}"):
            count_request("kafka", 2)
            cluster = self._admin.describe_cluster(request_timeout=TIMEOUT_SECONDS)
            described = self._admin.describe_topics(
                TopicCollection(topic_names=[topic]), request_timeout=TIMEOUT_SECONDS
            )
            description = self._wait(described[topic])
            cluster_id = str(self._wait(cluster).cluster_id)
            partitions = sorted(p.id for p in description.partitions)
            earliest = self._list_offsets(topic, partitions, OffsetSpec.earliest(), isolation)
            ends = self._list_offsets(topic, partitions, OffsetSpec.latest(), isolation)
        return TopicFacts(
            topic=topic,
            topic_id=str(description.topic_id),
            cluster_id=cluster_id,
            partitions=tuple(PartitionOffsets(earliest[p], ends[p]) for p in partitions),
        )

    def fetch_offsets_at(
        self, topic: str, partitions: int, timestamp_ms: int, isolation: str = "read_committed"
    ) -> tuple[int, ...]:
        """Fetch each partition's first offset at or after an instant; its end if there is none.

        With `read_committed` the end is the last stable offset. The ends are fetched first: a
        record at or after the instant that arrives between both requests is at or above them.
        """
        with self._translated(f"looking up offsets of {topic} by time"):
            numbers = list(range(partitions))
            ends = self._list_offsets(topic, numbers, OffsetSpec.latest(), isolation)
            spec = OffsetSpec.for_timestamp(timestamp_ms)
            found = self._list_offsets(topic, numbers, spec, isolation)
        return tuple(found[p] if found[p] >= 0 else ends[p] for p in numbers)

    def fetch_group(self, group: str) -> GroupFacts:
        """Fetch members and committed offsets of a consumer group; an unknown group has none."""
        for attempt in stamina.retry_context(on=_is_moving_groups, attempts=12, timeout=15.0):
            with attempt:
                return self._fetch_group(group)
        message = "stamina leaves its loop only by a result or an error"
        raise AssertionError(message)

    def _fetch_group(self, group: str) -> GroupFacts:
        with self._translated(f"describing consumer group {group}"):
            count_request("kafka", 2)
            # Sequential: after a failure no response of a pending request may be left unread.
            described = self._admin.describe_consumer_groups(
                [group], request_timeout=TIMEOUT_SECONDS
            )
            members = 0
            with suppress_unknown_group():
                members = len(self._wait(described[group]).members)
            wanted = [ConsumerGroupTopicPartitions(group)]
            listed = self._admin.list_consumer_group_offsets(
                wanted, request_timeout=TIMEOUT_SECONDS
            )
            found: dict[str, dict[int, tuple[int, str]]] = {}
            for each in self._wait(listed[group]).topic_partitions or ():
                if each.offset >= 0:
                    found.setdefault(each.topic, {})[each.partition] = (
                        each.offset,
                        each.metadata or "",
                    )
        return GroupFacts(members, found)

    def commit_group(self, group: str, offsets: Mapping[str, Sequence[int]], metadata: str) -> None:
        """Commit offsets of a consumer group without members; brokers refuse others."""
        with self._translated(f"committing offsets of consumer group {group}"):
            count_request("kafka")
            partitions = [
                TopicPartition(topic, partition, offset, metadata)
                for topic, parts in offsets.items()
                for partition, offset in enumerate(parts)
            ]
            request = [ConsumerGroupTopicPartitions(group, partitions)]
            futures = self._admin.alter_consumer_group_offsets(
                request, request_timeout=TIMEOUT_SECONDS
            )
            for each in self._wait(futures[group]).topic_partitions or ():
                if each.error is not None:
                    raise KafkaException(each.error)

    def fetch_cluster_id(self) -> str:
        """Fetch the cluster's id.

        Raises:
            KafkaUnavailableError: the cluster did not answer in time.
        """
        with self._translated("describing the cluster"):
            cluster = self._admin.describe_cluster(request_timeout=PROBE_TIMEOUT_SECONDS)
            return str(self._wait(cluster, PROBE_TIMEOUT_SECONDS).cluster_id)

    def fetch_topic_names(self) -> frozenset[str]:
        """Fetch the names of all topics that this user may describe.

        Raises:
            KafkaUnavailableError: the cluster did not answer in time.
        """
        with self._translated("listing the topics"):
            count_request("kafka")
            return frozenset(self._admin.list_topics(timeout=PROBE_TIMEOUT_SECONDS).topics)

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
        """Fetch the topic's effective configuration."""
        with self._translated(f"reading the configuration of {topic}"):
            resource = ConfigResource(ResourceType.TOPIC, topic)
            futures = self._admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
            entries = self._wait(futures[resource])
        return {name: str(entry.value) for name, entry in entries.items()}

    def probe_read(self, topic: str) -> None:
        """Fetch from a topic's end, which needs the right to read it.

        Raises:
            KafkaUnavailableError: the user may not read the topic, or nothing answered in time.
        """
        settings = {"group.id": "frazil-probe", "enable.partition.eof": True}
        consumer = open_consumer({**self._config, **settings, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
            deadline = time.monotonic() + TIMEOUT_SECONDS
            message = consumer.poll(TIMEOUT_SECONDS)
            while _lacks_group(message):
                message = consumer.poll(max(0.0, deadline - time.monotonic()))
        finally:
            consumer.close()
        error = message.error() if message else None
        if message is None or (error and error.code() != KafkaError._PARTITION_EOF):  # noqa: SLF001 - a public constant
            reason = error.str() if error else f"no answer in {TIMEOUT_SECONDS:.0f} s"
            raise self._unavailable(f"reading topic {topic}", reason)

    def fetch_first_timestamps(
        self, topic: str, starts: Mapping[int, int], isolation: str = "read_committed"
    ) -> Mapping[int, int | None]:
        """Fetch the timestamp (ms) of the first record at or after each partition's offset.

        None if there is no record, only transaction markers. A partition is left out if it does
        not answer in time, or its record has no timestamp.
        """
        if not starts:
            return {}
        consumer = open_consumer(
            {
                **self._config,
                "group.id": "frazil-probe",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # Without this an expired offset would look like the end of the log.
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "fetch.max.bytes": 1_048_576,
                "fetch.wait.max.ms": 100,
                "queued.min.messages": 1,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, o) for p, o in starts.items()])
            return self._first_timestamps(consumer, topic, set(starts))
        finally:
            consumer.close()

    def _first_timestamps(
        self, consumer: Consumer, topic: str, waiting: set[int]
    ) -> Mapping[int, int | None]:
        found: dict[int, int | None] = {}
        while waiting:
            message = consumer.poll(PROBE_TIMEOUT_SECONDS)
            if message is None:
                break
            partition, error = message.partition(), message.error()
            if partition is None or partition not in waiting:
                continue
            waiting.discard(partition)
            consumer.pause([TopicPartition(topic, partition)])
            kind, timestamp_ms = message.timestamp()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
                    found[partition] = None
            elif kind != TIMESTAMP_NOT_AVAILABLE and timestamp_ms >= 0:
                found[partition] = timestamp_ms
        return found

    def _list_offsets(
        self, topic: str, partitions: Sequence[int], spec: OffsetSpec, isolation: str
    ) -> Mapping[int, int]:
        level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        count_request("kafka")
        request = {TopicPartition(topic, p): spec for p in partitions}
        futures = self._admin.list_offsets(
            request, isolation_level=level, request_timeout=TIMEOUT_SECONDS
        )
        return {key.partition: self._wait(f).offset for key, f in futures.items()}

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Translate librdkafka's errors into Frazil's."""
        try:
            yield
            self._admin.poll(0)
            self._events.clear()  # they must not explain a later failure
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}:
                raise UnknownTopicError(
                    f"{doing}: cluster {self._bootstrap} has no such topic",
                    "check `source` in the stream file, or create the topic; on the embedded stack "
                    "`python -m frazil_demo.send TOPIC` creates it and sends each line as a record",
                ) from exception
            raise self._unavailable(doing, error.str()) from exception
        except TimeoutError as exception:
            raise self._unavailable(doing, f"no answer in {TIMEOUT_SECONDS:.0f} s") from exception

    def _wait(self, future: "Future[_Result]", timeout: float = TIMEOUT_SECONDS) -> _Result:
        """Return a request's result; stop early if an event shows that waiting cannot help.

        Raises:
            TimeoutError: there is no result in time.
        """
        started = time.monotonic()
        while (waited := time.monotonic() - started) < timeout:
            with suppress(TimeoutError):
                return future.result(min(_EVENT_SECONDS, timeout - waited))
            self._admin.poll(0)
            cause = explain_events(self._events)
            if cause is not None and cause.is_decisive and waited > _DECISIVE_SECONDS:
                break
        raise TimeoutError

    def _unavailable(self, doing: str, reason: str) -> KafkaUnavailableError:
        self._admin.poll(0)
        events = [*self._events, reason]
        authorities = str(self._config.get("ssl.ca.pem") or "")
        if location := self._config.get("ssl.ca.location"):
            with suppress(OSError, UnicodeError):  # it may be a folder, or gone
                authorities = Path(str(location)).read_text()
        detail = describe_certificate(events, self._bootstrap, authorities)
        protocol = str(self._config.get("security.protocol", "PLAINTEXT"))
        cause = explain_events([detail] if detail else events)
        cause = explain_closing(cause, self._bootstrap, protocol)
        step = (
            "run `frazil stack up` if it is the embedded broker, otherwise `frazil doctor`"
            if cause is None
            else cause.next_step
        )
        return KafkaUnavailableError(
            f"{doing}: Kafka at {self._bootstrap}: {cause.sentence if cause else reason}"
            + (f" ({detail})" if detail else ""),
            f"{step}; nothing was read or written, the next run tries the same range again",
        )


@contextmanager
def suppress_unknown_group() -> Iterator[None]:
    """Suppress the error for an unknown group, which brokers return to newer clients only."""
    try:
        yield
    except KafkaException as exception:
        if exception.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise


def _is_electing_leader(error: Exception) -> bool:
    """Return whether a partition has no leader for a moment, as after creation or a failover."""
    return _has_code(
        error,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    )


def _lacks_group(message: Message | None) -> bool:
    """Return whether a message reports a missing right to the group, which reads do not need."""
    error = message.error() if message else None
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _is_moving_groups(error: Exception) -> bool:
    """Return whether a group has no coordinator for a moment, as before the first group."""
    return _has_code(
        error,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )


def _has_code(error: Exception, *codes: int) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in codes
