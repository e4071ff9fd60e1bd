"""`make clean` removes the home of a stack and nothing else; `make down` hides no running stack."""

import os
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a checkout without a virtual environment."""
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    return folder


def make(project: Path, target: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run a target in the checkout; the user's own folder is the one above it."""
    return subprocess.run(
        ["make", "-f", str(MAKEFILE), target],
        cwd=project,
        env={**os.environ, "FRAZIL_HOME": str(home), "HOME": str(project.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def write(path: Path, text: str = "") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("mark", ["stack/lock", "jars/fetched.json"])
def test_clean_removes_the_home_of_a_stack(project: Path, mark: str) -> None:
    home = project / "a home"
    write(home / mark)

    done = make(project, "clean", home)

    assert done.returncode == 0, done.stderr
    assert not home.exists()


def test_clean_leaves_a_folder_that_is_no_home(project: Path) -> None:
    kept = write(project / "data" / "stack" / "letter.txt")

    done = make(project, "clean", project / "data")

    assert done.returncode != 0
    assert f"FRAZIL_HOME={project / 'data'} is not the home of a stack; nothing was" in done.stderr
    assert "Next: " in done.stderr
    assert kept.exists()


@pytest.mark.parametrize("up", [".", "..", "../.."], ids=["project", "user's folder", "above it"])
def test_clean_leaves_a_folder_around_the_user_or_the_project(project: Path, up: str) -> None:
    kept = write(project / up / "stack" / "lock")

    done = make(project, "clean", project / up)

    assert done.returncode != 0
    assert "or a parent of it; nothing was removed" in done.stderr
    assert kept.exists()


def test_clean_without_any_home_is_done(project: Path) -> None:
    assert make(project, "clean", project / "nowhere").returncode == 0


@pytest.mark.parametrize("target", ["down", "clean"])
def test_a_running_stack_that_nothing_can_stop_is_told(project: Path, target: str) -> None:
    home = project / "home"
    write(home / "stack" / "lock")
    write(home / "stack" / "supervisord.pid", f"{os.getpid()}\n")

    done = make(project, target, home)

    assert done.returncode != 0
    assert f"runs (supervisor {os.getpid()}), but .venv is missing" in done.stderr
    assert "`make setup`" in done.stderr
    assert home.exists()


def test_a_supervisor_that_is_dead_does_not_hold_up(project: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    write(project / "home" / "stack" / "supervisord.pid", f"{ended.pid}\n")

    assert make(project, "down", project / "home").returncode == 0
