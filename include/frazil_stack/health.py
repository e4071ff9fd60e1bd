"""Health checks of the parts; a probe returns None, or the reason why a part is not healthy."""

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from frazil.errors import StackError
from frazil_stack.airflow_environment import airflow_url, registry_url
from frazil_stack.ports import DIRECT, LOOPBACK, Ports
from frazil_stack.preparation import tail
from frazil_stack.services import SERVICE_PARTS
from frazil_stack.settings import PartName
from frazil_stack.supervisor import DEAD_STATES, ServiceInfo, Supervisor

_TIMEOUT_SECONDS = 3.0
_READY_WITHIN_SECONDS: Mapping[PartName, float] = {
    "kafka": 120,
    "registry": 120,
    "spark": 180,
    "airflow": 360,
}
_POLL_SECONDS = 0.2


def probe_kafka(ports: Ports) -> str | None:
    """Request metadata from the broker."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - slow to import
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{ports.kafka}", "log_level": 0})
    try:
        metadata = client.list_topics(timeout=_TIMEOUT_SECONDS)
    except KafkaException as error:
        return str(error.args[0].str())
    return None if metadata.brokers else "no broker has registered"


def probe_spark(ports: Ports) -> str | None:
    """Open a gRPC channel; the server opens its port once it has a Spark session."""
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to import

    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(f"{LOOPBACK}:{ports.spark_connect}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_TIMEOUT_SECONDS)
        except grpc.FutureTimeoutError:
            return "its port does not accept connections"
    return None


def probe_registry(ports: Ports) -> str | None:
    """Request the subjects of the schema registry."""
    url = f"{registry_url(ports)}/subjects"
    try:
        with DIRECT.open(url, timeout=_TIMEOUT_SECONDS) as response:
            json.load(response)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return None


def probe_catalog(catalog_file: Path) -> str | None:
    """Read the list of tables in the catalog."""
    try:
        with sqlite3.connect(f"file:{catalog_file}?mode=ro", uri=True) as connection:
            connection.execute("select count(*) from iceberg_tables").fetchone()
    except sqlite3.Error as error:
        return f"{catalog_file}: {error}"
    return None


def probe_airflow(ports: Ports, started_at_seconds: Mapping[str, int]) -> str | None:
    """Read Airflow's health endpoint; a heartbeat older than its service does not count.

    For half a minute after a crash the endpoint still reports the dead scheduler as healthy.
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
    """Return which component of `/api/v2/monitor/health` is unhealthy or stale, or None."""
    if health["metadatabase"]["status"] != "healthy":
        return "its database does not answer"
    for component in ("scheduler", "dag_processor", "triggerer"):
        state = health.get(component) or {}
        if state.get("status") != "healthy":
            return f"its {component} is {state.get('status') or 'missing'}"
        beat = state.get(f"latest_{component}_heartbeat")
        started = started_at_seconds.get(f"airflow_{component}", 0)
        if beat is None or datetime.fromisoformat(beat).timestamp() < started:
            return f"its {component} has sent no heartbeat since it started"
    return None


def wait_for_part(part: PartName, ports: Ports, supervisor: Supervisor) -> None:
    """Wait until all services of a part run and the part is healthy.

    Raises:
        StackError: a service ended or was restarted meanwhile, or the time limit passed.
    """
    names = [name for name, owner in SERVICE_PARTS.items() if owner == part]
    deadline = time.monotonic() + _READY_WITHIN_SECONDS[part]
    pids: dict[str, int] = {}
    while True:
        infos = {name: info for name, info in supervisor.services().items() if name in names}
        _require_alive(infos, pids)
        reason = probe_part(part, ports, infos)
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise _build_timeout(part, reason, list(infos.values()))
        time.sleep(_POLL_SECONDS)


def probe_part(part: PartName, ports: Ports, infos: Mapping[str, ServiceInfo]) -> str | None:
    """Return why a part is not healthy, or None if it is."""
    waiting = [name for name, info in infos.items() if info.state != "RUNNING"]
    if waiting:
        return f"{waiting[0]} is {infos[waiting[0]].state.lower()}"
    if part == "kafka":
        return probe_kafka(ports)
    if part == "registry":
        return probe_registry(ports)
    if part == "spark":
        return probe_spark(ports)
    started = {name: info.started_at_seconds for name, info in infos.items()}
    return probe_airflow(ports, started)


def _require_alive(infos: Mapping[str, ServiceInfo], pids: dict[str, int]) -> None:
    """Raise if a service has ended since the first check, even if supervisor restarted it."""
    for name, info in infos.items():
        before = pids.setdefault(name, info.pid) if info.pid else pids.get(name, 0)
        if info.state in DEAD_STATES or (before and info.pid != before):
            raise StackError(
                f"{name} ended while starting. Last lines of {info.log}:\n{tail(info.log)}",
                f"read {info.log}, fix the cause, then `frazil stack up`",
            )


def _build_timeout(part: PartName, reason: str, infos: Sequence[ServiceInfo]) -> StackError:
    logs = ", ".join(str(info.log) for info in infos)
    return StackError(
        f"{part} did not become ready within {_READY_WITHIN_SECONDS[part]:.0f} s: {reason}.\n"
        f"Last lines of {infos[0].log}:\n{tail(infos[0].log)}",
        f"read {logs}, then `frazil stack up`",
    )
