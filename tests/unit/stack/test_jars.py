"""The jars: known to be complete without asking the network."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack.jars import (
    _write_stamp,
    ensure_jars,
    ensure_registry,
    has_jars,
    has_registry,
    hold_jars,
    ivy_command,
    registry_program,
)
from frazil_stack.java import Java
from frazil_stack.settings import StackSettings, load_settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackSettings:
    """Point to a jar folder of the test's own, filled as Ivy would."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    settings = load_settings({"FRAZIL_JARS": str(tmp_path / "jars")})
    for configuration in ("spark", "kafka"):
        (settings.jars / configuration).mkdir(parents=True)
        (settings.jars / configuration / "a-1.0.jar").write_bytes(b"jar")
    _write_stamp(settings)
    return settings


def java_that_says(folder: Path, line: str, status: int) -> Java:
    """Put a program in Java's place."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{line}'\nexit {status}\n")
    executable.chmod(0o755)
    return Java(folder, "17.0.1")


def test_complete_jars_are_not_fetched_again(settings: StackSettings, tmp_path: Path) -> None:
    java = java_that_says(tmp_path / "java", "must not run", 1)

    ensure_jars(settings, java, lambda _: None)

    assert has_jars(settings)


def test_a_missing_jar_is_noticed(settings: StackSettings) -> None:
    (settings.jars / "kafka" / "a-1.0.jar").unlink()

    assert not has_jars(settings)


def test_a_jar_cut_short_is_noticed(settings: StackSettings) -> None:
    (settings.jars / "spark" / "a-1.0.jar").write_bytes(b"j")

    assert not has_jars(settings)


def test_a_new_list_of_artifacts_is_noticed(settings: StackSettings) -> None:
    stamp = json.loads((settings.jars / "fetched.json").read_text())
    stamp["ivy_sha256"] = "0" * 64
    (settings.jars / "fetched.json").write_text(json.dumps(stamp))

    assert not has_jars(settings)


def test_a_failed_fetch_says_why_and_keeps_the_jars_that_are_there(
    settings: StackSettings, tmp_path: Path
) -> None:
    java = java_that_says(tmp_path / "java", "module not found: org.example#gone;1.0", 1)
    (settings.jars / "fetched.json").unlink()

    with pytest.raises(StackError, match=r"org\.example#gone") as failure:
        ensure_jars(settings, java, lambda _: None)

    assert "FRAZIL_IVY_SETTINGS" in failure.value.next_step
    assert (settings.jars / "kafka" / "a-1.0.jar").exists()


def test_ivy_touches_nothing_outside_the_home(settings: StackSettings) -> None:
    ivy_file, java = settings.templates / "ivy.xml", Java(Path("/j"), "17")
    command = ivy_command(settings, java, ivy_file, ["kafka"], settings.jars / "incoming")

    assert f"-Duser.home={settings.home / 'ivy'}" in command
    assert command[command.index("-cache") + 1] == str(settings.home / "ivy")


def put_jars(settings: StackSettings) -> None:
    """Finish what another stack fetches: Kafka's and Spark's jars."""
    _write_stamp(settings)


def put_registry(settings: StackSettings) -> None:
    """Finish what another stack fetches: the registry."""
    registry_program(settings).parent.mkdir()
    registry_program(settings).touch()


@pytest.mark.parametrize(
    ("ensure", "has", "put"),
    [(ensure_jars, has_jars, put_jars), (ensure_registry, has_registry, put_registry)],
)
def test_a_second_stack_waits_for_the_fetch_of_the_first(
    settings: StackSettings,
    tmp_path: Path,
    ensure: Callable[[StackSettings, Java, Callable[[str], None]], None],
    has: Callable[[StackSettings], bool],
    put: Callable[[StackSettings], None],
) -> None:
    java = java_that_says(tmp_path / "java", "must not run", 1)
    (settings.jars / "fetched.json").unlink()
    said: list[str] = []
    second = threading.Thread(target=ensure, args=(settings, java, said.append))

    with hold_jars(settings):
        second.start()
        second.join(0.5)
        is_waiting = second.is_alive()
        put(settings)
    second.join(30)

    assert is_waiting
    assert has(settings)
    assert said == []
