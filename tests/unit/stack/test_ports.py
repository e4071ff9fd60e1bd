"""Ports: asked for, remembered or picked; never moved under a running stack."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack.ports import (
    Ports,
    find_holder,
    is_free,
    load_ports,
    pick_free_port,
    read_configured_ports,
    require_free_ports,
    require_unmoved_ports,
    resolve_ports,
    save_ports,
)

REMEMBERED = Ports(kafka=21001, kafka_controller=21002, spark_connect=21003, airflow=21004)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Listen on a port for the length of a test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_without_wishes_and_memory_the_documented_defaults_hold() -> None:
    ports = resolve_ports({}, None, lambda _: True)

    assert ports == Ports(kafka=19092, kafka_controller=19093, spark_connect=15002, airflow=18080)


def test_a_home_keeps_its_ports_unless_told_otherwise() -> None:
    ports = resolve_ports({"airflow": 8080, "kafka": 0}, REMEMBERED, lambda _: True)

    assert ports == Ports(kafka=21001, kafka_controller=21002, spark_connect=21003, airflow=8080)


def test_a_remembered_port_that_is_taken_gives_way_when_any_port_will_do() -> None:
    ports = resolve_ports({"kafka": 0}, REMEMBERED, lambda port: port != REMEMBERED.kafka)

    assert ports.kafka not in {REMEMBERED.kafka, *range(32_000, 65_536)}
    assert ports.airflow == REMEMBERED.airflow


def test_picked_ports_differ_from_each_other() -> None:
    wishes = dict.fromkeys(("kafka", "kafka_controller", "spark_connect", "airflow"), 0)

    ports = resolve_ports(wishes, None, lambda port: port % 2 == 0)

    numbers = {ports.kafka, ports.kafka_controller, ports.spark_connect, ports.airflow}
    assert len(numbers) == 4


def test_a_machine_without_a_free_port_is_told_so() -> None:
    with pytest.raises(StackError, match="no free port"):
        pick_free_port(lambda _: False, frozenset())


@pytest.mark.parametrize("text", ["-1", "65536", "kafka", "19092.0"])
def test_a_port_variable_that_is_no_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(StackError, match="FRAZIL_AIRFLOW_PORT"):
        read_configured_ports({"FRAZIL_AIRFLOW_PORT": text})


def test_only_variables_that_are_set_are_wishes() -> None:
    wishes = read_configured_ports({"FRAZIL_KAFKA_PORT": "0", "FRAZIL_SPARK_PORT": ""})

    assert wishes == {"kafka": 0}


def test_a_running_stack_is_not_moved_to_another_port() -> None:
    require_unmoved_ports({"kafka": 0, "airflow": REMEMBERED.airflow}, REMEMBERED)
    with pytest.raises(StackError, match=r"FRAZIL_KAFKA_PORT=9092.*uses port 21001") as refusal:
        require_unmoved_ports({"kafka": 9092}, REMEMBERED)
    assert "frazil stack down" in refusal.value.next_step


def test_a_taken_port_is_named_with_its_holder_and_the_variable_that_moves_it(
    taken_port: int,
) -> None:
    ports = Ports(kafka=taken_port)

    with pytest.raises(StackError, match=f"port {taken_port} for kafka") as refusal:
        require_free_ports(ports, frozenset({"kafka"}), frozenset())

    assert f"process {os.getpid()}" in refusal.value.facts
    assert "FRAZIL_KAFKA_PORT=0" in refusal.value.next_step


def test_a_port_that_this_stack_itself_holds_is_no_obstacle(taken_port: int) -> None:
    ports = Ports(kafka=taken_port)

    require_free_ports(ports, frozenset(), frozenset())
    require_free_ports(ports, frozenset({"kafka"}), frozenset({os.getpid()}))

    assert not is_free(taken_port)
    assert find_holder(taken_port).pid == os.getpid()


def test_ports_survive_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    assert load_ports(path) is None

    save_ports(path, REMEMBERED)

    assert load_ports(path) == REMEMBERED


def test_a_broken_memory_of_ports_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text('{"kafka": 19')

    assert load_ports(path) is None
