"""Spark's archive of classes: written by one home, used while Java and jars are the same."""

import os
from pathlib import Path

import pytest

from frazil_stack.java import Java, archive_option
from frazil_stack.settings import StackSettings, load_settings

JAVA = Java(Path("/usr/lib/jvm/j"), "17.0.1")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackSettings:
    """Return a home with a jar of its own."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    settings = load_settings({})
    (settings.jars / "spark").mkdir(parents=True)
    (settings.jars / "spark" / "a.jar").write_bytes(b"a")
    return settings


def choose(settings: StackSettings, java: Java = JAVA) -> tuple[str, Path]:
    """Split the option into its name and its file."""
    name, _, path = archive_option(settings, java, [settings.jars / "spark" / "a.jar"]).partition(
        "="
    )
    return name, Path(path)


def test_the_first_server_of_a_home_writes_and_the_next_one_uses(settings: StackSettings) -> None:
    name, part = choose(settings)
    assert name == "-XX:ArchiveClassesAtExit"
    part.write_bytes(b"\xf0\x0b whole")

    name, archive = choose(settings)

    assert (name, archive.read_bytes()) == ("-XX:SharedArchiveFile", b"\xf0\x0b whole")
    assert choose(settings) == (name, archive)


@pytest.mark.parametrize("content", [b"", b"\0" * 4096], ids=["empty", "without its head"])
def test_an_archive_whose_writer_was_killed_is_written_anew(
    settings: StackSettings, content: bytes
) -> None:
    _, part = choose(settings)
    part.write_bytes(content)

    assert choose(settings) == ("-XX:ArchiveClassesAtExit", part)
    assert not part.exists()


def test_another_java_or_another_jar_needs_another_archive(settings: StackSettings) -> None:
    found = [choose(settings), choose(settings, Java(JAVA.home, "17.0.2"))]
    os.utime(settings.jars / "spark" / "a.jar", (1, 1))
    found.append(choose(settings))

    assert len(set(found)) == 3


def test_jars_that_homes_share_are_used_and_no_home_writes(
    settings: StackSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "other"))
    other = load_settings({"FRAZIL_JARS": str(settings.jars)})
    jars = [settings.jars / "spark" / "a.jar"]
    assert archive_option(other, JAVA, jars) == ""
    _, part = choose(settings)
    part.write_bytes(b"whole")
    assert archive_option(other, JAVA, jars) == ""

    assert choose(settings)[0] == "-XX:SharedArchiveFile"
    assert archive_option(other, JAVA, jars).startswith("-XX:SharedArchiveFile=")
