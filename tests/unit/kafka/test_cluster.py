"""Which of Kafka's errors are worth a short wait, and which a person has to see."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from frazil.errors import KafkaUnavailableError
from frazil.kafka.cluster import KafkaLog, _is_electing_leader


def raised_from(code: int) -> KafkaUnavailableError:
    """Return the error as the client's own error makes it."""
    error = KafkaUnavailableError("describing topic flights", "look")
    error.__cause__ = KafkaException(KafkaError(code))
    return error


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    ],
)
def test_a_topic_that_was_just_created_is_asked_about_again(code: int) -> None:
    assert _is_electing_leader(raised_from(code))


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART]
)
def test_what_no_wait_mends_is_told_at_once(code: int) -> None:
    assert not _is_electing_leader(raised_from(code))


@dataclass
class GrowingBroker:
    """Kafka's side of `list_offsets` for one partition: a record arrives after each answer."""

    timestamps_ms: list[int] = field(default_factory=list)

    def poll(self, _timeout: float) -> int:
        """Report no event."""
        return 0

    def list_offsets(
        self, request: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, "Future[SimpleNamespace]"]:
        """Answer with the first offset at or after an instant, -1 if there is none, or the end."""
        (key, spec), answer = next(iter(request.items())), Future[SimpleNamespace]()
        instant = getattr(spec, "_value", -1)
        at_or_after = [o for o, at in enumerate(self.timestamps_ms) if at >= instant >= 0]
        end = len(self.timestamps_ms)
        is_end = isinstance(spec, type(OffsetSpec.latest()))
        offset = end if is_end else next(iter(at_or_after), -1)
        answer.set_result(SimpleNamespace(offset=offset))
        self.timestamps_ms.append(2000)
        return {key: answer}


def test_a_record_that_arrives_while_an_instant_is_looked_up_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    broker = GrowingBroker([500, 600])
    monkeypatch.setattr(log, "_admin", broker)

    (start,) = log.fetch_offsets_at("orders", 1, 1000)

    assert broker.timestamps_ms[start] >= 1000
    assert start <= broker.timestamps_ms.index(2000)


def test_an_instant_after_every_record_starts_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(log, "_admin", GrowingBroker([500, 600]))

    assert log.fetch_offsets_at("orders", 1, 9000) == (2,)


COLLECTED_BY_LIBRDKAFKA = """
import gc, threading
from frazil.kafka.cluster import KafkaLog

gc.disable()
log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
pending = log._admin.describe_cluster(request_timeout=1)
log.cycle = log
collected = threading.Event()
pending.add_done_callback(lambda _: (gc.collect(), collected.set()))
del log
assert collected.wait(20)
KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
"""


def test_a_client_that_librdkafkas_own_thread_collects_does_not_end_the_process() -> None:
    """The result of a request arrives in the client's own thread, which may collect the garbage."""
    done = subprocess.run([sys.executable, "-c", COLLECTED_BY_LIBRDKAFKA], check=False, timeout=60)
    assert done.returncode == 0


def test_a_broker_that_is_down_is_named_where_authorities_are_a_folder(tmp_path: Path) -> None:
    config = {
        "bootstrap.servers": "127.0.0.1:9",
        "security.protocol": "SSL",
        "librdkafka.ssl.ca.location": str(tmp_path),
    }

    with pytest.raises(KafkaUnavailableError):
        KafkaLog(config).fetch_cluster_id()
