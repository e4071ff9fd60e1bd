"""When a part counts as ready, and how the stack as a whole is summed up."""

import copy
from datetime import UTC, datetime

import pytest

from frazil_stack.health import judge_airflow_health, probe_airflow, probe_catalog
from frazil_stack.ports import Ports, is_free, pick_free_port
from frazil_stack.services import SERVICE_PARTS
from frazil_stack.status import judge_state

STARTED_AT = int(datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC).timestamp())
STARTED = {
    f"airflow_{name}": STARTED_AT
    for name in ("api_server", "scheduler", "dag_processor", "triggerer")
}
AFTER = "2026-01-01T12:00:07.123456+00:00"
BEFORE = "2026-01-01T11:59:58+00:00"


def health(**changes: dict[str, str | None]) -> dict[str, dict[str, str | None]]:
    """Answer like Airflow's health page."""
    good: dict[str, dict[str, str | None]] = {"metadatabase": {"status": "healthy"}}
    for name in ("scheduler", "dag_processor", "triggerer"):
        good[name] = {"status": "healthy", f"latest_{name}_heartbeat": AFTER}
    return copy.deepcopy(good) | changes


def test_airflow_is_ready_when_all_have_beaten_since_they_started() -> None:
    assert judge_airflow_health(health(), STARTED) is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(
            health(scheduler={"status": "healthy", "latest_scheduler_heartbeat": BEFORE}),
            "scheduler has sent no heartbeat",
            id="the heartbeat of a scheduler that was killed a moment ago",
        ),
        pytest.param(
            health(triggerer={"status": None, "latest_triggerer_heartbeat": None}),
            "triggerer is missing",
            id="never started",
        ),
        pytest.param(
            health(dag_processor={"status": "unhealthy", "latest_dag_processor_heartbeat": AFTER}),
            "dag_processor is unhealthy",
            id="unhealthy",
        ),
        pytest.param(health(metadatabase={"status": "unhealthy"}), "database", id="database"),
    ],
)
def test_airflow_is_not_ready_while_a_component_is_missing(
    answer: dict[str, dict[str, str | None]], said: str
) -> None:
    reason = judge_airflow_health(answer, STARTED)

    assert reason is not None
    assert said in reason


def test_a_server_that_is_not_there_is_a_reason_and_no_exception() -> None:
    port = pick_free_port(is_free, frozenset())

    assert "refused" in str(probe_airflow(Ports(airflow=port), {}))


def test_a_catalog_without_tables_is_not_ready(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = probe_catalog(tmp_path_factory.mktemp("catalog") / "catalog.db")

    assert reason is not None
    assert "catalog.db" in reason


def states(**changes: str) -> dict[str, str]:
    """Return every service's state: stopped unless changed."""
    return {"supervisor": "running", **dict.fromkeys(SERVICE_PARTS, "stopped"), **changes}


def running(*parts: str) -> dict[str, str]:
    """Return running services of whole parts."""
    return {name: "running" for name, part in SERVICE_PARTS.items() if part in parts}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(states(supervisor="stopped"), "down", id="nothing runs"),
        pytest.param(states(), "partly up", id="supervisor alone"),
        pytest.param(states(**running("kafka", "spark", "airflow")), "up", id="everything"),
        pytest.param(states(**running("kafka", "spark")), "up", id="all that was asked for"),
        pytest.param(
            states(**running("kafka", "airflow") | {"airflow_scheduler": "stopped"}),
            "partly up",
            id="a part without one of its services",
        ),
        pytest.param(
            states(**running("kafka"), spark_connect="fatal"), "partly up", id="one gave up"
        ),
        pytest.param(
            states(supervisor="stopped", kafka="orphaned"), "partly up", id="supervisor was killed"
        ),
    ],
)
def test_the_stack_is_up_when_whole_parts_run(given: dict[str, str], expected: str) -> None:
    assert judge_state(given) == expected
