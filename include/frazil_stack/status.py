"""What other programs are told about the stack: `stack.json`, and the same with pids."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil.errors import StackError
from frazil_stack.airflow_environment import airflow_url, catalog_properties, registry_url
from frazil_stack.credentials import AIRFLOW_USER, PASSWORD_FILE, write_private
from frazil_stack.ports import LOOPBACK, Ports
from frazil_stack.processes import StackProcess, find_processes, measure_memory
from frazil_stack.services import SERVICE_PARTS, SUPERVISOR_SERVICE
from frazil_stack.settings import CATALOG_NAME, PartName, StackSettings
from frazil_stack.supervisor import ServiceInfo, connect_supervisor

StackState = Literal["up", "partly up", "down"]


class _Record(BaseModel):
    """A value that is written as JSON."""

    model_config = ConfigDict(frozen=True)


class KafkaAddress(_Record):
    """Where Kafka's clients connect."""

    bootstrap: str


class CatalogAddress(_Record):
    """What `pyiceberg.catalog.load_catalog(name, **properties)` takes."""

    name: str
    properties: dict[str, str]


class AirflowAddress(_Record):
    """Where Airflow is, and where its password lies."""

    url: str
    user: str
    password_file: str


class SparkAddress(_Record):
    """What `SparkSession.builder.remote(url)` takes."""

    url: str


class RegistryAddress(_Record):
    """What a client of Confluent's schema registry takes; started only when asked for."""

    url: str


class StackDescription(_Record):
    """What a client needs; true after `up`, until the ports change. No pids, no secrets."""

    home: str
    kafka: KafkaAddress
    catalog: CatalogAddress
    airflow: AirflowAddress
    spark_connect: SparkAddress
    schema_registry: RegistryAddress


class ServiceStatus(_Record):
    """One service: supervisor's word on it; `pid` is None unless it runs."""

    part: PartName | None
    state: str
    pid: int | None
    rss_mb: int
    pss_mb: int | None


class StackStatus(StackDescription):
    """The description, and what runs now.

    Memory is in MiB over all processes; `pss_mb` counts shared pages once, `rss_mb` in each.
    """

    state: StackState
    parts: dict[str, ServiceStatus]
    rss_mb: int
    pss_mb: int | None


def describe_stack(settings: StackSettings, ports: Ports) -> StackDescription:
    """Describe a stack for its clients."""
    return StackDescription(
        home=str(settings.home),
        kafka=KafkaAddress(bootstrap=f"{LOOPBACK}:{ports.kafka}"),
        catalog=CatalogAddress(name=CATALOG_NAME, properties=catalog_properties(settings)),
        airflow=AirflowAddress(
            url=airflow_url(ports),
            user=AIRFLOW_USER,
            password_file=str(settings.airflow / PASSWORD_FILE),
        ),
        spark_connect=SparkAddress(url=f"sc://{LOOPBACK}:{ports.spark_connect}"),
        schema_registry=RegistryAddress(url=registry_url(ports)),
    )


def save_description(settings: StackSettings, ports: Ports) -> None:
    """Write `stack.json`, which other modules of Frazil read."""
    text = describe_stack(settings, ports).model_dump_json(indent=2)
    write_private(settings.stack / "stack.json", text + "\n")


def load_description(home: Path) -> StackDescription:
    """Read `stack.json`.

    Raises:
        StackError: this home has never had a stack.
    """
    path = home / "stack" / "stack.json"
    if not path.is_file():
        raise StackError(f"{path} is not there: no stack was started here", "`frazil stack up`")
    return StackDescription.model_validate(json.loads(path.read_text()))


def collect_status(settings: StackSettings, ports: Ports) -> StackStatus:
    """Look at what runs now: supervisor's view, completed by what outlived a dead supervisor."""
    supervisor = connect_supervisor(settings.stack)
    infos = supervisor.services() if supervisor else {}
    processes = find_processes(settings.home)
    parts = {
        name: _service_status(name, infos.get(name), processes)
        for name in (SUPERVISOR_SERVICE, *SERVICE_PARTS)
    }
    shares = [part.pss_mb for part in parts.values() if part.pss_mb is not None]
    return StackStatus(
        **describe_stack(settings, ports).model_dump(),
        state=judge_state({name: part.state for name, part in parts.items()}),
        parts=parts,
        rss_mb=sum(part.rss_mb for part in parts.values()),
        pss_mb=sum(shares) if shares else None,
    )


def judge_state(states: Mapping[str, str]) -> StackState:
    """Sum up: up when whole parts run and nothing is amiss in them."""
    running = {name for name, state in states.items() if state == "running"}
    if not running and "orphaned" not in states.values():
        return "down"
    services = running - {SUPERVISOR_SERVICE}
    touched = {SERVICE_PARTS[name] for name in states if _is_touched(name, states[name])}
    whole = {name for name, part in SERVICE_PARTS.items() if part in touched}
    return "up" if services and services == whole else "partly up"


def _is_touched(name: str, state: str) -> bool:
    """Say whether somebody started this service."""
    return name in SERVICE_PARTS and state != "stopped"


def _service_status(
    name: str, info: ServiceInfo | None, processes: tuple[StackProcess, ...]
) -> ServiceStatus:
    """Describe one service."""
    own = [process for process in processes if process.service == name]
    first = own[0].pid if own else None
    if name == SUPERVISOR_SERVICE:
        state = "running" if own else "stopped"
    elif info is not None:
        state, first = info.state.lower(), info.pid or None
    else:
        state = "orphaned" if own else "stopped"
    memory = measure_memory(own)
    return ServiceStatus(
        part=SERVICE_PARTS.get(name),
        state=state,
        pid=first,
        rss_mb=memory.rss_mb,
        pss_mb=memory.pss_mb,
    )
