"""No secret of a connection is seen in what Spark leaves behind: logs, events, web pages."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.connect_server import ConnectServer, run_connect_server

from frazil.connections.clients import CatalogPreset
from frazil.kafka.client_settings import to_spark_options
from frazil.spark.redaction import REDACTION
from frazil_spark.session_settings import apply_settings

pytestmark = pytest.mark.spark

STRING_REDACTION = "spark.sql.redaction.string.regex"
PLANTED = (
    *("planted-plain", "planted-oidc", "planted-database", "planted-s3", "planted-token"),
    "planted-session",
)
ASSIGNED = json.dumps({"t": [0]})
NOWHERE = "127.0.0.1:1"
SASL = {"bootstrap.servers": NOWHERE, "security.protocol": "SASL_PLAINTEXT"}
KAFKA: tuple[Mapping[str, str], ...] = (
    {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "planted-plain"},
    {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "planted-oidc",
        "sasl.oauthbearer.token.endpoint.url": f"http://{NOWHERE}/token",
    },
)
CATALOGS = (
    CatalogPreset(
        "db",
        {
            "type": "sql",
            "uri": f"postgresql://me:planted-database@{NOWHERE}/db",
            "warehouse": "s3://w",
            "s3.secret-access-key": "planted-s3",
        },
    ),
    CatalogPreset(
        "rest",
        {"uri": f"http://{NOWHERE}", "header.Authorization": "planted-token"},
        {
            "type": "rest",
            "uri": f"http://{NOWHERE}",
            "header.Authorization": "planted-token",
            "rest.client.max-retries": "1",
        },
    ),
)


def use_catalogs(spark: SparkSession) -> None:
    """Read by catalogs that lead nowhere."""
    for preset in CATALOGS:
        with pytest.raises(PySparkException):
            apply_settings(spark, preset.spark_conf())


def read_kafka(spark: SparkSession) -> None:
    """Read by brokers that lead nowhere: Spark writes down what it was asked all the same."""
    soon = {
        "java.request.timeout.ms": "1000",
        "java.default.api.timeout.ms": "1000",
        "java.sasl.login.retry.backoff.max.ms": "200",
    }
    for login in KAFKA:
        options = to_spark_options({**SASL, **login, **soon})
        reader = spark.read.format("kafka").options(**options).option("assign", ASSIGNED)
        with pytest.raises(PySparkException):
            reader.load().write.format("noop").mode("overwrite").save()


def find_planted(server: ConnectServer) -> set[tuple[str, str]]:
    traces = server.read_traces()
    return {(name, s) for name, text in traces.items() for s in PLANTED if s in text}


def write_rows(spark: SparkSession, preset: CatalogPreset) -> None:
    """Let jobs run in a session that has a catalog with a secret."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {preset.name}.a")
    spark.range(3).writeTo(f"{preset.name}.a.b").createOrReplace()


@pytest.mark.core
def test_no_secret_is_in_what_spark_leaves_behind_and_without_redaction_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    preset = CatalogPreset("local", {**local, "s3.secret-access-key": "planted-session"})
    with run_connect_server(tmp_path / "server", REDACTION) as server:
        spark = SparkSession.builder.remote(server.remote).create()
        monkeypatch.setenv("SPARK_REMOTE", server.remote)
        use_catalogs(spark)
        read_kafka(spark)
        apply_settings(spark, preset.spark_conf())
        write_rows(spark, preset)
        found = find_planted(server)
        for key, value in preset.spark_conf().items():
            spark.conf.set(key, value)
        write_rows(spark, preset)
        spark.conf.set(STRING_REDACTION, "nothing")
        read_kafka(spark)
        without, event_log = find_planted(server), server.event_log
        spark.stop()

    assert found == set()
    assert {secret for _, secret in without} >= {
        *("planted-plain", "planted-oidc", "planted-session")
    }
    assert {name for name, _ in without} >= {event_log, "connect/"}
