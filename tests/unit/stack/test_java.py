"""Finding Java 17 or 21, and saying what to install when there is none."""

from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack import java as java_module
from frazil_stack.java import Java, find_java, parse_version


def fake_java(folder: Path, version: str) -> Path:
    """Put a program there that answers like that Java; return its JAVA_HOME."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {folder}' >&2\necho '    java.version = {version}' >&2\n"
    )
    executable.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's own Javas."""
    monkeypatch.setattr(java_module, "_FOLDERS", ())


@pytest.mark.parametrize(
    ("version", "major", "is_supported"),
    [
        ("17.0.15", 17, True),
        ("21", 21, True),
        ("21.0.8-beta", 21, True),
        ("1.8.0_402", 8, False),
        ("11.0.2", 11, False),
        ("25.0.1", 25, False),
    ],
)
def test_only_java_17_and_21_will_do(version: str, major: int, is_supported: bool) -> None:  # noqa: FBT001
    java = Java(Path("/j"), version)

    assert (java.major, java.is_supported) == (major, is_supported)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.1")
    on_path = fake_java(tmp_path / "b", "17.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert found == Java(home, "21.0.1")


def test_a_java_home_of_the_wrong_version_gives_way_to_a_right_one(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    right = fake_java(tmp_path / "right", "17.0.1")

    assert find_java({"JAVA_HOME": str(old), "PATH": str(right / "bin")}).home == right


def test_without_a_fitting_java_the_error_says_what_was_found_and_what_to_install(
    tmp_path: Path,
) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")

    with pytest.raises(StackError, match=r"1\.8\.0_402") as refusal:
        find_java({"JAVA_HOME": str(old), "PATH": ""})

    assert "apt install openjdk-17" in refusal.value.next_step


def test_no_java_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="found none"):
        find_java({"PATH": str(tmp_path)})


def test_a_program_that_is_no_java_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)

    with pytest.raises(StackError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "broken"), "PATH": ""})


def test_words_that_are_no_properties_are_no_version() -> None:
    assert parse_version("openjdk version 17") is None
