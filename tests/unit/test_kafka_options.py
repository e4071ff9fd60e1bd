"""One Kafka connection serves librdkafka and the Java client alike (A9)."""

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from frazil.errors import ConfigurationError
from frazil.kafka_log import KafkaLog
from frazil.kafka_options import to_librdkafka, to_spark_options

SASL = {
    "bootstrap.servers": "k:9093",
    "security.protocol": "SASL_SSL",
    "sasl.username": "jane",
    "sasl.password": 'a"b\\c',
}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"bootstrap.servers": "k:9092"}, {"kafka.bootstrap.servers": "k:9092"}),
        ({"client.rack": "zone-1"}, {"kafka.client.rack": "zone-1"}),
        ({"log_level": "0", "socket.connection.setup.timeout.ms": "5000"}, {}),
        ({"java.max.poll.records": "5000"}, {"kafka.max.poll.records": "5000"}),
        (
            {"ssl.ca.location": "/ca.pem"},
            {
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": "/ca.pem",
            },
        ),
        (
            {"ssl.ca.location": "/ca.pem", "java.ssl.truststore.location": "/t.jks"},
            {"kafka.ssl.truststore.location": "/t.jks"},
        ),
    ],
    ids=[
        "a word of both clients",
        "reads in the own zone",
        "words of librdkafka alone",
        "a word of Java alone",
        "an authority as PEM",
        "Java's own trust store wins",
    ],
)
def test_java_reads(config: dict[str, str], options: dict[str, str]) -> None:
    assert to_spark_options(config) == options


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_login_becomes_jaas_that_no_password_can_leave(
    key: str, mechanism: str, module: str
) -> None:
    options = to_spark_options(SASL | {key: mechanism})

    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == (
        f'{module} required username="jane" password="a\\"b\\\\c";'
    )


def test_a_login_that_java_knows_better_is_left_alone() -> None:
    own = {"sasl.mechanism": "OAUTHBEARER", "java.sasl.jaas.config": "mine"}

    assert to_spark_options(own) == {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": "mine",
    }


def test_what_java_alone_knows_does_not_reach_librdkafka() -> None:
    given = {"bootstrap.servers": "k:9092", "java.max.poll.records": "5000"}

    # librdkafka itself refuses what it does not know.
    with pytest.raises(KafkaException, match=r"java\.max\.poll\.records"):
        AdminClient(given)
    assert AdminClient(to_librdkafka(given)) is not None
    assert KafkaLog(given) is not None


def test_a_setting_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"max\.pol\.records"):
        KafkaLog({"bootstrap.servers": "k:9092", "max.pol.records": "5000"})
