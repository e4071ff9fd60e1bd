"""What a process imported for its forks is what is on disk, or it is imported again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import os, sys
from frazil.spark.preloading import preload
preload(sys.argv[1:] + ["frazil_spark.outer", "colours"])
print("imported")
sys.stdin.readline()
child = os.fork()
if child == 0:
    kept = [name in sys.modules for name in ("frazil_spark.outer", "frazil_spark.inner")]
    import colours
    try:
        from frazil_spark.outer import told
    except ModuleNotFoundError:
        told = "ModuleNotFoundError"
    print(kept, told, colours.told)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a package of Frazil's, of two modules, and one that is not Frazil's."""
    package = tmp_path / "frazil_spark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("told = 'old'\n")
    (package / "outer.py").write_text("from frazil_spark.inner import told\n")
    (tmp_path / "colours.py").write_text("told = 'red'\n")
    return tmp_path


def ask_fork(
    folder: Path, change: str = "", content: str | None = None, first: tuple[str, ...] = ()
) -> str:
    """Import, change a file, fork, and give what the fork says."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PARENT, *first],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imported\n"
        if content is not None:
            (folder / change).write_text(content)
            # Python's own compiled files tell moments apart by the second.
            os.utime(folder / change, (time.time() + 10, time.time() + 10))
        elif change:
            (folder / change).unlink()
        output, _ = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    return output.strip()


def test_a_fork_has_what_was_imported(folder: Path) -> None:
    assert ask_fork(folder) == "[True, True] old red"


@pytest.mark.parametrize("content", ["told = 'new'\n", "told = 'much newer'\n"])
def test_one_file_that_changed_makes_all_of_frazil_import_again(folder: Path, content: str) -> None:
    expected = content.split("'")[1]

    assert ask_fork(folder, "frazil_spark/inner.py", content) == f"[False, False] {expected} red"


def test_a_file_that_is_gone_is_not_found_in_memory_either(folder: Path) -> None:
    assert ask_fork(folder, "frazil_spark/inner.py") == "[False, False] ModuleNotFoundError red"


def test_a_library_stays_as_it_was_imported(folder: Path) -> None:
    assert ask_fork(folder, "colours.py", "told = 'green'\n") == "[True, True] old red"


def test_a_module_that_cannot_be_imported_is_logged_and_changes_are_still_noticed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = ("frazil_spark.missing", "no_such_library")

    answer = ask_fork(folder, "frazil_spark/inner.py", "told = 'new'\n", missing)

    assert answer == "[False, False] new red"
    assert capfd.readouterr().err == (
        "modules were not preloaded, each task imports them: frazil_spark.missing "
        "(ModuleNotFoundError: No module named 'frazil_spark.missing'); no_such_library "
        "(ModuleNotFoundError: No module named 'no_such_library')\n"
    )
