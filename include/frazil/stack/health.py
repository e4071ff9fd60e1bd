"""Whether a service answers the way its clients need it; a probe gives None or what is amiss."""

import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from frazil.stack.airflow_environment import airflow_url, registry_url
from frazil.stack.loopback import DIRECT, LOOPBACK
from frazil.stack.ports import Ports

_TIMEOUT_SECONDS = 3.0


def probe_kafka(ports: Ports) -> str | None:
    """Ask the broker for metadata."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - other probes do without
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{ports.kafka}", "log_level": 0})
    try:
        metadata = client.list_topics(timeout=_TIMEOUT_SECONDS)
    except KafkaException as error:
        return str(error.args[0].str())
    return None if metadata.brokers else "no broker has registered"


def probe_spark(ports: Ports) -> str | None:
    """Open a gRPC channel; the server opens its port only once its Spark session is there."""
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import

    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(f"{LOOPBACK}:{ports.spark_connect}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_TIMEOUT_SECONDS)
        except grpc.FutureTimeoutError:
            return "its port does not answer"
    return None


def probe_registry(ports: Ports) -> str | None:
    """Ask the schema registry for its subjects."""
    url = f"{registry_url(ports)}/subjects"
    try:
        with DIRECT.open(url, timeout=_TIMEOUT_SECONDS) as response:
            json.load(response)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return None


def probe_catalog(catalog_file: Path) -> str | None:
    """Read the catalog's list of tables."""
    try:
        with sqlite3.connect(f"file:{catalog_file}?mode=ro", uri=True) as connection:
            connection.execute("select count(*) from iceberg_tables").fetchone()
    except sqlite3.Error as error:
        return f"{catalog_file}: {error}"
    return None


def probe_airflow(ports: Ports, started_at_seconds: Mapping[str, int]) -> str | None:
    """Ask Airflow's health page; a heartbeat counts if it is younger than its service.

    After a crash the page calls the dead scheduler of before healthy for half a minute.
    """
    url = f"{airflow_url(ports)}/api/v2/monitor/health"
    try:
        with DIRECT.open(url, timeout=_TIMEOUT_SECONDS) as response:
            health = json.load(response)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return judge_airflow_health(health, started_at_seconds)


def judge_airflow_health(
    health: Mapping[str, Mapping[str, str | None]], started_at_seconds: Mapping[str, int]
) -> str | None:
    """Name the first component of `/api/v2/monitor/health` that is not healthy or is stale."""
    if health["metadatabase"]["status"] != "healthy":
        return "its database does not answer"
    for component in ("scheduler", "dag_processor", "triggerer"):
        state = health.get(component) or {}
        if state.get("status") != "healthy":
            return f"its {component} is {state.get('status') or 'not there'}"
        beat = state.get(f"latest_{component}_heartbeat")
        started = started_at_seconds.get(f"airflow_{component}", 0)
        if beat is None or datetime.fromisoformat(beat).timestamp() < started:
            return f"its {component} has not beaten since it started"
    return None
