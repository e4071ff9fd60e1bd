"""What surrounds docker-compose.yaml: Dockerfile, example of `.env`, jars and small scripts."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from frazil import __version__

PROJECT = Path(__file__).parents[2]
COMPOSE_CONFIG = PROJECT / "include/stack/compose"
COMPOSE = (PROJECT / "docker-compose.yaml").read_text()
DOCKERFILE = (PROJECT / "Dockerfile").read_text()
EXAMPLE = (PROJECT / ".env.example").read_text()

SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|FERNET|(ACCESS|API)_KEY|CLUSTER_ID")
LOOKS_RANDOM = re.compile(
    r"\b[0-9a-f]{24,}\b|\b(?=[\w+-]*[0-9])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])[\w+-]{22,}=*"
)


def values_of(env: str) -> dict[str, str]:
    """Read the names and values of an env file."""
    return dict(re.findall(r"^(\w+)=(.*)$", env, re.MULTILINE))


def images() -> list[str]:
    """Return every image that a service names or a build stage starts from."""
    stages = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    named = re.findall(r"^ +image: (\S+)", COMPOSE, re.MULTILINE)
    return named + [base for base in bases if base not in stages]


def is_pinned(image: str) -> bool:
    """Tell a full version from a moving tag; PostgreSQL's full version has two numbers."""
    name, _, tag = image.partition(":")
    numbers = 2 if name == "postgres" else 3
    return bool(re.match(rf"v?\d+(\.\d+){{{numbers - 1}}}(-|@|[.]dev\d+\Z|\Z)", tag))


def written_secrets(text: str) -> list[str]:
    """Find values that stand in the file itself instead of in `.env`."""
    bare = re.sub(r"\$\{[^}]*\}|\$\w+", "", text)
    pairs = re.findall(r"^[ \t]*(\w+)[:=][ \t]*([^\s#]+)", bare, re.MULTILINE)
    named = [f"{k}={v}" for k, v in pairs if SECRET_NAME.search(k) and not k.endswith("_FILE")]
    return named + re.findall(r"://\w+:[^@\s/]+@", bare) + LOOKS_RANDOM.findall(bare)


def make_env(target: Path) -> subprocess.CompletedProcess[str]:
    """Run the script that writes `.env`."""
    command = [sys.executable, str(COMPOSE_CONFIG / "make_env.py"), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_init(folder: Path) -> None:
    """Run airflow-init's script; the `airflow` it finds notes its words."""
    airflow = folder / "airflow"
    airflow.write_text(f'#!/bin/sh\necho "$1 $2" >>{folder}/said')
    airflow.chmod(0o755)
    environment = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords"),
        "AIRFLOW_ADMIN_PASSWORD": "chosen",
        "AIRFLOW_APPROVER_PASSWORD": "other",
        "FRAZIL_STREAMS": str(folder),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT / "include"),
    }
    script = str(COMPOSE_CONFIG / "init_airflow.py")
    subprocess.run([sys.executable, script], env=environment, check=True)


def test_the_example_names_what_compose_requires_and_holds_no_value() -> None:
    required = re.findall(r"\$\{(\w+):\?", COMPOSE)

    assert len(set(required)) == 11
    assert values_of(EXAMPLE) == dict.fromkeys(required, "")


def test_the_example_shows_every_number_with_its_default() -> None:
    shown = re.findall(r"^# (\w+)=(\d+)$", EXAMPLE, re.MULTILINE)

    assert dict(shown) == dict(re.findall(r"\$\{(\w+):-(\d+)\}", COMPOSE))


def test_a_made_env_file_is_complete_private_and_fit_for_its_users(tmp_path: Path) -> None:
    made = make_env(tmp_path / ".env")

    values = values_of((tmp_path / ".env").read_text())
    assert made.returncode == 0
    assert values.keys() == values_of(EXAMPLE).keys()
    assert len(set(values.values())) == len(values)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    Fernet(values["AIRFLOW_FERNET_KEY"])
    assert re.fullmatch(r"[\w][\w-]{21}", values["KAFKA_CLUSTER_ID"])
    assert all(re.fullmatch(r"[0-9a-f]{64}", v) for n, v in values.items() if "PASSWORD" in n)


def test_an_env_file_that_exists_keeps_what_it_says_and_gets_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# mine\nS3_SECRET_KEY=mine")

    added = make_env(tmp_path / ".env")
    once = (tmp_path / ".env").read_text()
    again = make_env(tmp_path / ".env")

    assert added.returncode == 0
    assert "AIRFLOW_APPROVER_PASSWORD" in added.stdout
    assert once.startswith("# mine\nS3_SECRET_KEY=mine\n")
    assert values_of(once).keys() == values_of(EXAMPLE).keys()
    assert (again.returncode, (tmp_path / ".env").read_text()) == (1, once)
    assert "nothing was changed" in again.stderr


def test_every_image_carries_a_full_version() -> None:
    assert len(images()) > 6
    assert [image for image in images() if not is_pinned(image)] == []


@pytest.mark.parametrize("image", ["postgres:17", "apache/kafka:latest", "a/b:4.1", "a/b"])
def test_a_moving_tag_is_noticed(image: str) -> None:
    assert not is_pinned(image)


def test_our_images_carry_our_version() -> None:
    assert set(re.findall(r"image: frazil-\w+:(\S+)", COMPOSE)) == {__version__}


def test_kafka_and_iceberg_have_the_versions_of_the_embedded_stack() -> None:
    jars = (PROJECT / "include/stack/ivy.xml").read_text()
    ours = (COMPOSE_CONFIG / "ivy.xml").read_text()
    kafka = re.findall(r"apache/kafka:(\S+)", COMPOSE)

    assert re.findall(r'"kafka_2.13" rev="([\d.]+)"', jars) == kafka
    runtime = re.findall(r'"iceberg-spark-runtime-[\d._]+" rev="([\d.]+)"', jars)
    assert re.findall(r'"iceberg-aws-bundle" rev="([\d.]+)"', ours) == runtime != []


def test_no_file_holds_a_secret() -> None:
    texts = {path.name: path.read_text() for path in COMPOSE_CONFIG.iterdir() if path.is_file()}
    texts |= {"docker-compose.yaml": COMPOSE, "Dockerfile": DOCKERFILE, ".env.example": EXAMPLE}

    found = {name: written_secrets(text) for name, text in texts.items()}

    assert {name: secrets for name, secrets in found.items() if secrets} == {}


@pytest.mark.parametrize(
    "line",
    ["POSTGRES_PASSWORD: hunter2", "ENV SECRET=x\nTOKEN=x", "U: pg://a:b@db/c", "X: " + "9fa1" * 8],
)
def test_a_secret_in_a_file_is_noticed(line: str) -> None:
    assert written_secrets(line) != []


def test_the_dockerfile_copies_what_exists_and_nothing_else_gets_in() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in lines for source in line.split()}
    ignore = (PROJECT / ".dockerignore").read_text().splitlines()

    assert [source for source in sources if not (PROJECT / source).exists()] == []
    assert {s.split("/")[0] for s in sources} == {w[1:] for w in ignore if w.startswith("!")}
    assert "*" in ignore


def test_no_container_of_ours_runs_as_root() -> None:
    users = {"": "root"}
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        base, _, name = stage.split()[:3]
        users[name] = (re.findall(r"^USER (\S+)", stage, re.MULTILINE) or [users.get(base)])[-1]
    built = set(re.findall(r"target: (\w+)\}", COMPOSE))

    assert built == {"airflow", "spark", "catalog"}
    assert {users[target] for target in built} == {"frazil", "iceberg"}


@pytest.mark.parametrize(
    ("part", "code"), [("metadatabase", 0), ("scheduler", 1), ("triggerer", 1), ("no_such", 1)]
)
def test_a_health_check_passes_only_for_a_healthy_part(part: str, code: int) -> None:
    class Airflow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(
                b'{"metadatabase": {"status": "healthy"}, "triggerer": {"status": null},'
                b' "scheduler": {"status": "unhealthy"}}'
            )

    server = HTTPServer(("127.0.0.1", 0), Airflow)
    threading.Thread(target=server.handle_request).start()
    command = [sys.executable, str(COMPOSE_CONFIG / "check_health.py"), part]
    environment = {"AIRFLOW_URL": f"http://127.0.0.1:{server.server_port}"}

    checked = subprocess.run(command, env=environment, capture_output=True, check=False)

    server.server_close()
    assert checked.returncode == code


def test_only_the_scheduler_preloads_the_modules_of_tasks() -> None:
    sources = (COMPOSE, (PROJECT / "include/frazil_stack/airflow_environment.py").read_text())

    for source in sources:
        assert dict(re.findall(r'AIRFLOW__(\w+__MP_\w+)"?: "?([\w.]+)', source)) == {
            "SCHEDULER__MP_START_METHOD": "forkserver",
            "SCHEDULER__MP_FORKSERVER_PRELOAD": "frazil_airflow.preloaded",
        }


def test_airflow_gets_its_database_and_passwords(tmp_path: Path) -> None:
    run_init(tmp_path)

    assert (tmp_path / "said").read_text() == "db migrate\n"
    passwords = json.loads((tmp_path / "passwords").read_text())
    assert passwords == {"admin": "chosen", "approver": "other"}
