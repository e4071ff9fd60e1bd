"""Waiting until a part truly answers, and saying why when it never will."""

import time
from collections.abc import Mapping, Sequence

from frazil.errors import StackError
from frazil.stack.health import probe_airflow, probe_kafka, probe_registry, probe_spark
from frazil.stack.ports import Ports
from frazil.stack.preparation import tail
from frazil.stack.services import SERVICE_PARTS
from frazil.stack.settings import PartName
from frazil.stack.supervision import DEAD_STATES, ServiceInfo, Supervisor

_READY_WITHIN_SECONDS: Mapping[PartName, float] = {
    "kafka": 120,
    "registry": 120,
    "spark": 180,
    "airflow": 360,
}
_POLL_SECONDS = 0.2


def wait_for_part(part: PartName, ports: Ports, supervisor: Supervisor) -> None:
    """Wait until all services of a part run and the part answers its clients.

    Raises:
        StackError: a service ended or was restarted meanwhile, or time is up; shows its log.
    """
    names = [name for name, owner in SERVICE_PARTS.items() if owner == part]
    deadline = time.monotonic() + _READY_WITHIN_SECONDS[part]
    pids: dict[str, int] = {}
    while True:
        infos = {name: info for name, info in supervisor.services().items() if name in names}
        _refuse_dead(infos, pids)
        reason = probe_part(part, ports, infos)
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise _late(part, reason, list(infos.values()))
        time.sleep(_POLL_SECONDS)


def probe_part(part: PartName, ports: Ports, infos: Mapping[str, ServiceInfo]) -> str | None:
    """Say what keeps a part from being ready; None when it is."""
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


def _refuse_dead(infos: Mapping[str, ServiceInfo], pids: dict[str, int]) -> None:
    """Fail when a service has ended since the first look; supervisor may have restarted it."""
    for name, info in infos.items():
        before = pids.setdefault(name, info.pid) if info.pid else pids.get(name, 0)
        if info.state in DEAD_STATES or (before and info.pid != before):
            raise StackError(
                f"{name} ended at its start. The last lines of {info.log}:\n{tail(info.log)}",
                f"read {info.log}, mend the cause, then `frazil stack up`",
            )


def _late(part: PartName, reason: str, infos: Sequence[ServiceInfo]) -> StackError:
    """Describe a part that runs but never answered."""
    logs = ", ".join(str(info.log) for info in infos)
    return StackError(
        f"{part} did not become ready within {_READY_WITHIN_SECONDS[part]:.0f} s: {reason}.\n"
        f"The last lines of its first log:\n{tail(infos[0].log)}",
        f"read {logs}, then `frazil stack up`",
    )
