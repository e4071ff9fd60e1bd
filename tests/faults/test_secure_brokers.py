"""Brokers that ask who is there: one connection logs in by librdkafka and by Java."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType
from conftest import good_values
from support.certificates import make_authority
from support.network import NO_ROUTE
from support.secure_broker import (
    PRIVATE_TOPIC,
    READABLE_TOPIC,
    UNREADABLE_TOPIC,
    WAYS,
    SecureBroker,
    run_secure_broker,
)

from faults.batches import Batches
from frazil.errors import FrazilError, KafkaUnavailableError
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.messages import NothingToRead, StageResult
from frazil.ingest.staging import build_request
from frazil.kafka.client_settings import to_spark_options
from frazil.kafka.cluster import KafkaLog
from frazil_cli.checks.connections import SCRATCH_PREFIX, check_connections

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


@pytest.mark.core
def test_each_way_to_log_in_serves_both_clients(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(batches.lab.topic, 1)
    connect(monkeypatch, broker.connection("PLAINTEXT"))
    assert isinstance(batches.run(), NothingToRead)
    written = {}
    ways = [way for way in WAYS if way not in {"PLAINTEXT", "SCRAM-256"}]  # others use these

    for way in ways:
        connect(monkeypatch, broker.connection(way))
        produce(broker, batches.lab.topic, 2)
        written[way] = batches.publish().rows_written

    assert written == dict.fromkeys(ways, 2)
    assert find_planted(batches.lab.stack.home) == []


def find_planted(folder: Path) -> list[str]:
    """List the files below a folder that hold a password of the broker, or a private key."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        str(path.relative_to(folder))
        for path in files
        if any(secret in path.read_bytes() for secret in (b"planted-", b"BEGIN PRIVATE KEY"))
    ]


def wrong_connections(broker: SecureBroker) -> dict[str, tuple[dict[str, str], str]]:
    """Write connections with one fault each, and what the error says."""
    scram, tls = broker.connection("SCRAM-256"), broker.connection("SCRAM-512 by TLS")
    expired = {**tls, "bootstrap.servers": broker.address("EXPIRED"), "security.protocol": "SSL"}
    for key in ("sasl.mechanism", "sasl.username", "sasl.password"):
        del expired[key]
    other = {k: v for k, v in tls.items() if k != "ssl.ca.location"}
    return {
        "wrong password": ({**scram, "sasl.password": "no"}, "refuses the login or the password"),
        "wrong authority": ({**other, "ssl.ca.pem": make_authority("x").pem}, "not signed by the"),
        "expired certificate": (expired, "certificate has expired"),
        "no certificate": (
            {**expired, "bootstrap.servers": broker.address("MTLS")},
            "demands a client certificate",
        ),
    }


def read_by_java(batches: Batches, config: Mapping[str, str], topic: str) -> FrazilError:
    """Let Spark read a record; return the error that it ends with."""
    work = batches.open()
    plan = batches.plan()
    branch = name_branch(plan.stream, plan.base_epoch)
    create_branch(work.store, plan.table, branch)
    request = build_request(work, plan, branch).model_copy(
        update={"kafka_options": to_spark_options(config), "ranges": {topic: {0: (0, 1)}}}
    )
    with pytest.raises(FrazilError) as caught:
        work.engine.run_job("stage_batch", request, StageResult)
    return caught.value


def test_doctor_tries_each_connection_by_each_client(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = batches.lab.topic
    broker.create_topic(topic, 1)
    produce(broker, topic, 1)
    config = broker.connection("SCRAM-256")

    connect(monkeypatch, config)
    good = {c.name: c for c in check_connections([batches.open()])}
    connect(monkeypatch, {**config, "sasl.password": "no"})
    bad = {c.name: c for c in check_connections([batches.open()])}

    assert {name: check.detail for name, check in good.items()} == {
        "Connection kafka_default by librdkafka": f"describes and reads {topic}",
        "Connection iceberg_default by PyIceberg": "creates, commits, branches and writes",
        "Connection kafka_default by Spark (connect)": f"describes and reads {topic}",
        "Connection iceberg_default by Spark (connect)": "reads, commits and writes",
    }
    assert {name for name, check in bad.items() if not check.is_good} == {
        "Connection kafka_default by librdkafka",
        "Connection kafka_default by Spark (connect)",
    }
    assert all("login or the password" in c.detail for c in bad.values() if not c.is_good)
    assert ("lab",) not in batches.catalog.list_namespaces() or not [
        name for name in batches.catalog.list_tables("lab") if SCRATCH_PREFIX in name[1]
    ]


def test_each_cause_is_named_by_each_client(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(batches.lab.topic, 1)
    connect(monkeypatch, broker.connection("PLAINTEXT"))
    assert isinstance(batches.run(), NothingToRead)
    produce(broker, batches.lab.topic, 1)
    wrong = wrong_connections(broker)
    allowed = broker.connection("SCRAM-256")

    def ask(config: Mapping[str, str], topic: str) -> str:
        with pytest.raises(KafkaUnavailableError) as caught:
            KafkaLog(config).fetch_topic(topic)
        return caught.value.facts

    with ThreadPoolExecutor() as pool:
        asked = {k: pool.submit(ask, c, batches.lab.topic) for k, (c, _) in wrong.items()}
        asked["no right"] = pool.submit(ask, allowed, PRIVATE_TOPIC)
        native = {name: future.result() for name, future in asked.items()}
    java = {k: read_by_java(batches, c, batches.lab.topic) for k, (c, _) in wrong.items()}
    java["no right"] = read_by_java(batches, allowed, PRIVATE_TOPIC)
    java["no right to read"] = read_by_java(batches, allowed, UNREADABLE_TOPIC)

    sentences = {k: said for k, (_, said) in wrong.items()}
    sentences |= dict.fromkeys(("no right", "no right to read"), "has no right to the topic")
    assert {k: sentences[k] in text for k, text in native.items()} == dict.fromkeys(native, True)
    assert {k: type(e) for k, e in java.items()} == dict.fromkeys(java, KafkaUnavailableError)
    assert {k: sentences[k] in e.facts for k, e in java.items()} == dict.fromkeys(java, True)


OTHER_PROTOCOL = "speaks another protocol than the connection's `security.protocol`"
NO_ANSWER = "closes the connection without an answer, as a listener of another `security.protocol`"
USES_TLS = "the listener uses TLS, and the connection's `security.protocol` does not"
WRONG_PROTOCOLS = {
    ("SCRAM-256", "PLAINTEXT"): OTHER_PROTOCOL,
    ("PLAIN", "PLAINTEXT"): OTHER_PROTOCOL,
    ("SCRAM-512 by TLS", "PLAINTEXT"): OTHER_PROTOCOL,
    ("SCRAM-512 by TLS", "SASL"): OTHER_PROTOCOL,
    ("mTLS, encrypted PEM key", "PLAINTEXT"): OTHER_PROTOCOL,
    ("PLAINTEXT", "SASL"): NO_ANSWER,
    ("PLAINTEXT", "SASLSSL"): USES_TLS,
    ("PLAINTEXT", "MTLS"): USES_TLS,
    ("SCRAM-256", "SASLSSL"): USES_TLS,
    ("SCRAM-256", "MTLS"): USES_TLS,
}
"""How a connection logs in, the listener that it names, and what librdkafka's error says."""
SOON = {"java.request.timeout.ms": "4000", "java.default.api.timeout.ms": "5000"}


def test_each_wrong_protocol_is_named_by_librdkafka(broker: SecureBroker) -> None:
    def ask(pair: tuple[str, str]) -> str:
        way, listener = pair
        config = {**broker.connection(way), "bootstrap.servers": broker.address(listener)}
        with pytest.raises(KafkaUnavailableError) as caught:
            KafkaLog(config).fetch_topic(PRIVATE_TOPIC)
        return caught.value.facts

    with ThreadPoolExecutor(4) as pool:
        told = dict(zip(WRONG_PROTOCOLS, pool.map(ask, WRONG_PROTOCOLS), strict=True))

    assert {pair: s if s in told[pair] else told[pair] for pair, s in WRONG_PROTOCOLS.items()} == (
        WRONG_PROTOCOLS
    )


def test_java_names_the_address_and_the_cause_where_kafka_does_not_answer(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(batches.lab.topic, 1)
    connect(monkeypatch, broker.connection("PLAINTEXT"))
    assert isinstance(batches.run(), NothingToRead)
    produce(broker, batches.lab.topic, 1)
    plain, login = SOON | broker.connection("PLAINTEXT"), SOON | broker.connection("SCRAM-256")
    other = {"bootstrap.servers": broker.address("SASL")}
    wrong = {
        "127.0.0.1:1": (plain | {"bootstrap.servers": "127.0.0.1:1"}, "nothing listens at this"),
        NO_ROUTE: (plain | {"bootstrap.servers": NO_ROUTE}, "no route to the broker"),
        other["bootstrap.servers"]: (plain | other, "may speak another `security.protocol`"),
        broker.address("PLAINTEXT"): (
            login | {"bootstrap.servers": broker.address("PLAINTEXT")},
            OTHER_PROTOCOL,
        ),
    }

    told = {at: read_by_java(batches, c, batches.lab.topic) for at, (c, _) in wrong.items()}

    assert {at: type(error) for at, error in told.items()} == dict.fromkeys(
        told, KafkaUnavailableError
    )
    for at, (_, sentence) in wrong.items():
        assert f"Kafka at {at}" in told[at].facts
        assert sentence in told[at].facts


def test_a_right_that_is_missing_is_named_by_each_command(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = batches.lab
    broker.create_topic(lab.topic, 1)
    broker.allow("frazil-", "other", AclOperation.READ, ResourceType.GROUP)
    broker.allow("spark-kafka-", "other", AclOperation.READ, ResourceType.GROUP)
    config = broker.connection("SCRAM-256")
    connect(monkeypatch, config)
    produce(broker, lab.topic, 1)
    assert batches.publish().rows_written == 1  # no right to groups is needed for this
    KafkaLog(config).probe_read(lab.topic)
    with pytest.raises(KafkaUnavailableError, match="no right to the consumer group"):
        KafkaLog(config).fetch_group("frazil-lag")
    with pytest.raises(KafkaUnavailableError, match="no right to the topic") as settings:
        KafkaLog(config).fetch_topic_settings(READABLE_TOPIC)
    assert "DESCRIBE_CONFIGS" in settings.value.next_step
    broker.allow(lab.topic, "other", AclOperation.ALL, ResourceType.TOPIC)

    said = {
        words: lab.frazil(*words, "--json")
        for words in (
            *((command, lab.stream) for command in ("plan", "run", "status")),
            ("doctor", "--connections"),
        )
    }

    sentence = "the connection's user has no right to the topic"
    assert {words: sentence in run.out for words, run in said.items()} == dict.fromkeys(said, True)
    [doctor] = [run for words, run in said.items() if words[0] == "doctor"]
    assert doctor.out.count(sentence) == 2  # by librdkafka and by Spark
    assert all(run.code == 1 for run in said.values()), said


@pytest.mark.long
def test_each_cause_is_named_by_each_command(
    batches: Batches, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = batches.lab
    broker.create_topic(lab.topic, 1)
    connect(monkeypatch, broker.connection("PLAINTEXT"))
    produce(broker, lab.topic, 1)
    assert batches.publish().rows_written == 1
    wrong = wrong_connections(broker) | {
        "dead port": ({"bootstrap.servers": "127.0.0.1:1"}, "nothing listens at"),
        "unknown host": (
            {"bootstrap.servers": "no-such-host.invalid:9092"},
            "a host name of the brokers is unknown",
        ),
        "no route": ({"bootstrap.servers": NO_ROUTE}, "no route to the broker"),
    }
    commands = [*((name, lab.stream) for name in ("plan", "run", "status"))]
    commands.append(("doctor", "--connections"))
    silent = {}
    for fault, (config, sentence) in wrong.items():
        connect(monkeypatch, config)
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(lambda words: lab.frazil(*words, "--json"), commands))
        for words, run in zip(commands, runs, strict=True):
            said = run.out + run.err
            if sentence not in said or run.code != 1 or "Traceback" in said:
                silent[fault, words[0]] = (run.code, said)
    assert silent == {}
