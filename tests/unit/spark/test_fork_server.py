"""The fork server: a script in a fork of it is what it would be in a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.environment import fork_server_address, shipped_path
from frazil.errors import JobFailedError
from frazil.messages import Message
from frazil.spark.engine import SparkEngine
from frazil.spark.fork_server import ForkedScript
from frazil_stack.services import CLIENT_LIBRARIES

SOON = 20.0

IMPORTS = """
import sys
before = set(sys.modules)
sys.path[0] = sys.argv[1]
import merge_changes, stage_batch
print(sorted(set(sys.modules) - before))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """Start a server that has imported `json`."""
    with running_server(tmp_path / "socket", "json") as address:
        yield address


@contextmanager
def running_server(address: Path, *modules: str) -> Iterator[Path]:
    command = [sys.executable, "-m", "frazil.spark.fork_server", str(address), *modules]
    process = subprocess.Popen(command)
    try:
        wait_until(address.is_socket)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run(
    server: Path, folder: Path, program: str, *arguments: str, **environment: str
) -> tuple[int, str, str]:
    """Run a program; give its exit code and what it wrote."""
    script = folder / f"script{hash(program)}.py"
    if not script.exists():
        script.write_text(program)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [sys.executable, str(script), *arguments]
        with ForkedScript(server, command, environment, (out.fileno(), err.fileno())) as process:
            code = process.wait(SOON)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def test_the_jobs_of_a_batch_import_nothing_but_themselves(tmp_path: Path) -> None:
    with running_server(tmp_path / "socket", *CLIENT_LIBRARIES) as server:
        code, out, err = run(server, tmp_path, IMPORTS, str(shipped_path("spark_jobs")))

    assert (code, out) == (0, "['merge_changes', 'stage_batch']\n"), err


def test_a_script_has_its_own_arguments_environment_folder_and_group(
    server: Path, tmp_path: Path
) -> None:
    program = (
        "import os, sys, pathlib\n"
        "print(sys.argv, dict(os.environ), os.getcwd(), os.getpgid(0) == os.getpid(), __name__)\n"
        "print(sys.path[0], sys.stdin.read(), 'json' in sys.modules)\n"
        "print(pathlib.Path('/proc/self/cmdline').read_text()[:300], file=sys.stderr)\n"
    )

    code, out, err = run(server, tmp_path, program, "a", "b c", COLOUR="red")

    script = str(next(tmp_path.glob("script*.py")))
    expected = f"{[script, 'a', 'b c']} {{'COLOUR': 'red'}} {Path.cwd()} True __main__"
    assert (code, out.splitlines()[0]) == (0, expected)
    assert out.splitlines()[1] == f"{tmp_path}  True"
    assert f"{script} a b c" in err


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why not')", 1, "why not"),
        ("raise SystemExit", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("this is no python", 1, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_it_ends_as_a_process_of_its_own_would(
    server: Path, tmp_path: Path, program: str, code: int, words: str
) -> None:
    ended, out, err = run(server, tmp_path, program)

    assert (ended, out) == (code, "")
    assert words in err


def test_what_one_script_does_no_other_sees(server: Path, tmp_path: Path) -> None:
    program = "import sys, os\nsys.seen = os.environ['NAME']\nprint(sys.seen)\n"
    assert run(server, tmp_path, program, NAME="first")[1] == "first\n"

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda n: run(server, tmp_path, program, NAME=str(n)), range(24)))

    assert told == [(0, f"{n}\n", "") for n in range(24)]
    assert run(server, tmp_path, "import sys; print(hasattr(sys, 'seen'))")[1] == "False\n"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_it_does_not_outlive_who_asked_for_it_nor_do_its_children(
    server: Path, tmp_path: Path
) -> None:
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)\n"
    )
    with Path(os.devnull).open("w") as nowhere:
        outputs = nowhere.fileno(), nowhere.fileno()
        with ForkedScript(server, [sys.executable, str(script)], os.environ, outputs) as process:
            wait_until(lambda: pids.is_file() and len(pids.read_text().split()) == 2)
            with pytest.raises(TimeoutError):
                process.wait(0.01)

    assert process.returncode == -signal.SIGTERM
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def test_a_script_ends_with_the_process_that_waits_for_it(server: Path, tmp_path: Path) -> None:
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{os.getppid()}}')\n"
        "time.sleep(60)\n"
    )
    with Path(os.devnull).open("w") as nowhere:
        outputs = nowhere.fileno(), nowhere.fileno()
        with ForkedScript(server, [sys.executable, str(script)], os.environ, outputs) as process:
            wait_until(lambda: pids.is_file() and len(pids.read_text().split()) == 2)
            own, attendant = map(int, pids.read_text().split())
            os.kill(attendant, signal.SIGKILL)

            assert process.wait(SOON) == -signal.SIGKILL
            wait_until(lambda: not is_running(own))


def test_a_script_ends_with_the_server(tmp_path: Path) -> None:
    address, script, pids = tmp_path / "socket", tmp_path / "script.py", tmp_path / "pids"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pids)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "frazil.spark.fork_server", str(address)], process_group=0
    )
    wait_until(address.is_socket)
    with Path(os.devnull).open("w") as nowhere:
        outputs = nowhere.fileno(), nowhere.fileno()
        with ForkedScript(address, [sys.executable, str(script)], os.environ, outputs) as process:
            wait_until(lambda: pids.is_file() and pids.read_text())
            os.killpg(server.pid, signal.SIGTERM)
            assert process.wait(SOON) == -signal.SIGTERM
    server.wait()


def test_nobody_who_listens_and_another_interpreter_are_refused(
    server: Path, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="No such file"):
        ForkedScript(tmp_path / "nobody", [sys.executable, "x"], {}, (1, 2))
    with pytest.raises(OSError, match="refused"):
        ForkedScript(server, ["/usr/bin/python", "x"], {}, (1, 2))


NOBODY = 65534
FOREIGN_SERVER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o600)
os.setuid(int(sys.argv[2]))
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
connection.settimeout(5)
print(connection.recv(65536), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as another user")
def test_nothing_is_sent_to_a_server_of_another_user(tmp_path: Path) -> None:
    address = tmp_path / "socket"
    command = [sys.executable, "-c", FOREIGN_SERVER, str(address), str(NOBODY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as foreign:
        assert foreign.stdout is not None
        assert foreign.stdout.readline() == "listens\n"
        with pytest.raises(PermissionError, match="runs as another user"):
            ForkedScript(address, [sys.executable, "x"], {"SECRET": "s3cret"}, (1, 2))

        assert foreign.stdout.readline() == "b''\n"


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o777])
def test_a_socket_that_others_may_write_to_is_not_used(server: Path, mode: int) -> None:
    server.chmod(mode)

    with pytest.raises(PermissionError, match=f"with mode {mode:o}"):
        ForkedScript(server, [sys.executable, "x"], {}, (1, 2))


def test_a_socket_of_another_user_is_not_used(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)

    with pytest.raises(PermissionError, match=f"is of user {own}"):
        ForkedScript(server, [sys.executable, "x"], {}, (1, 2))


def test_the_server_refuses_a_client_of_another_user_and_goes_on(tmp_path: Path) -> None:
    address, ran = tmp_path / "socket", tmp_path / "ran"
    (tmp_path / "script.py").write_text(f"open({str(ran)!r}, 'w')")
    program = (
        "import os, sys, pathlib\n"
        "from frazil.spark.fork_server import serve\n"
        "own = os.geteuid()\nos.geteuid = lambda: own + 1\n"
        "serve(pathlib.Path(sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(address)]) as process:
        try:
            wait_until(address.is_socket)
            for _ in range(2):
                with pytest.raises(OSError, match=r"refused|reset|Broken pipe"):
                    ForkedScript(address, [sys.executable, str(tmp_path / "script.py")], {}, (1, 2))
        finally:
            process.terminate()

    assert not ran.exists()


class Nothing(Message):
    """A request without content."""


def test_a_job_runs_without_a_server_that_is_not_trusted_and_a_warning_says_why(
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.chmod(0o666)
    monkeypatch.setenv("FRAZIL_FORK_SERVER", str(server))
    monkeypatch.setattr("frazil.spark.engine.JOBS_DIR", tmp_path)
    (tmp_path / "echo.py").write_text(
        "import sys\nopen(sys.argv[2], 'w').write(open(sys.argv[1]).read())\n"
    )
    engine = SparkEngine("sc://127.0.0.1:1")
    monkeypatch.setattr(engine, "_require_reachable", lambda: None)

    assert engine.run_job("echo", Nothing(), Nothing) == Nothing()
    assert "with mode 666" in caplog.text


@pytest.mark.parametrize("address", ["", "/nowhere/socket", "{server}"])
def test_a_job_runs_with_and_without_a_server(
    server: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str
) -> None:
    monkeypatch.setenv("FRAZIL_FORK_SERVER", address.format(server=server))
    monkeypatch.setattr("frazil.spark.engine.JOBS_DIR", tmp_path)
    (tmp_path / "echo.py").write_text(
        "import os, sys\nprint('a word')\nsys.stderr.write('another')\n"
        "open(sys.argv[2], 'w').write(open(sys.argv[1]).read())\n"
    )
    (tmp_path / "die.py").write_text("import os; print('last words', flush=True); os.kill(0, 9)\n")
    engine = SparkEngine("sc://127.0.0.1:1")
    monkeypatch.setattr(engine, "_require_reachable", lambda: None)

    assert engine.run_job("echo", Nothing(), Nothing) == Nothing()
    with pytest.raises(JobFailedError, match=r"(?s)killed by SIGKILL.*last words"):
        engine.run_job("die", Nothing(), Nothing)


def test_the_server_is_the_stacks_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_HOME", "/srv/frazil")
    monkeypatch.delenv("FRAZIL_FORK_SERVER", raising=False)
    assert fork_server_address() == Path("/srv/frazil/stack/clients.sock")

    monkeypatch.setenv("FRAZIL_HOME", f"/srv/{'deep/' * 30}")
    deep = fork_server_address()
    assert deep is not None
    assert deep.parent == Path(tempfile.gettempdir())
    monkeypatch.setenv("FRAZIL_HOME", f"/srv/{'deep/' * 31}")
    assert fork_server_address() not in {None, deep}

    monkeypatch.setenv("FRAZIL_FORK_SERVER", "")
    assert fork_server_address() is None
