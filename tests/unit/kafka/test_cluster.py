"""Which of Kafka's errors are worth a short wait, and which a person has to see."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from frazil.errors import KafkaUnavailableError
from frazil.kafka.cluster import _is_electing_leader


def raised_from(code: int) -> KafkaUnavailableError:
    """Give the error as the client's own error makes it."""
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
