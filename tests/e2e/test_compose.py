"""docker-compose.yaml, read by the loader that `docker compose` itself uses.

No image runs here: what the loader refuses, what the file promises, and what its parts agree on.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.connections.clients import find_catalog, find_kafka_config, find_spark_remote

PROJECT = Path(__file__).parents[2]
COMPOSE_FILE = PROJECT / "docker-compose.yaml"
COMPOSE_CONFIG = PROJECT / "include/stack/compose"
REQUIRED = sorted(set(re.findall(r"\$\{(\w+):\?", COMPOSE_FILE.read_text())))
GO_MISSING = "the compose loader is a Go program: install Go 1.21 or newer (https://go.dev/dl)"
OLDEST_GO = 21
ENDS_BY_ITSELF = {"s3-init", "airflow-init"}

Services = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the loader; a desk without Go skips, CI without Go fails."""
    if not has_go():
        # Where Go is missing no compose file can be loaded; CI has it, so there it is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(GO_MISSING)  # no Go, no loader
    program = tmp_path_factory.mktemp("go") / "composeloader"
    module = PROJECT / "tests/project/compose_loader"
    subprocess.run(["go", "build", "-o", program, "."], cwd=module, check=True)
    return program


def has_go() -> bool:
    """Return whether there is a Go that fetches the version which the module asks for."""
    if shutil.which("go") is None:
        return False
    told = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"go1\.(\d+)", told)
    return version is not None and int(version[1]) >= OLDEST_GO


@pytest.fixture(scope="session")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill in an env file as a user does."""
    path = tmp_path_factory.mktemp("env") / ".env"
    subprocess.run([sys.executable, COMPOSE_CONFIG / "make_env.py", path], check=True)
    return path


@pytest.fixture(scope="session")
def services(loader: Path, env_file: Path) -> Services:
    """Load the project: service name → normalised service."""
    loaded = run_loader(loader, COMPOSE_FILE, env_file)
    assert loaded.returncode == 0, loaded.stderr
    content: Services = json.loads(loaded.stdout)["services"]
    return content


def run_loader(loader: Path, file: Path, env: Path) -> subprocess.CompletedProcess[str]:
    """Load a compose file with the variables of one env file and nothing else."""
    command = [str(loader), "-env-file", str(env), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def read_env(path: Path) -> dict[str, str]:
    """Read the names and values of an env file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def airflow_settings() -> set[str]:
    """Return the environment name of every option that the installed Airflow describes.

    Options of `[core]` for multiprocessing may stand in a component's section too, says the
    description of `mp_start_method`.
    """
    import airflow  # noqa: PLC0415 - it reads its settings when it is imported

    path = Path(airflow.__file__).parent / "config_templates" / "config.yml"
    sections = yaml.safe_load(path.read_text())
    options = {(name, option) for name, body in sections.items() for option in body["options"]}
    per_component = {
        option for name, option in options if name == "core" and option.startswith("mp_")
    }
    options |= {(c, o) for c in ("scheduler", "triggerer", "dag_processor") for o in per_component}
    return {f"AIRFLOW__{section.upper()}__{option.upper()}" for section, option in options}


def test_every_part_of_the_stack_is_a_service(services: Services) -> None:
    airflow = {f"airflow-{p}" for p in ("apiserver", "scheduler", "dag-processor", "triggerer")}
    parts = {"postgres", "kafka", "s3", "catalog", "spark-connect"}

    assert set(services) == airflow | parts | ENDS_BY_ITSELF


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("line", ["", "{name}=\n"], ids=["missing", "empty"])
def test_nothing_starts_without_a_secret(
    loader: Path, env_file: Path, tmp_path: Path, name: str, line: str
) -> None:
    others = {n: v for n, v in read_env(env_file).items() if n != name}
    env = tmp_path / "env"
    env.write_text(line.format(name=name) + "".join(f"{n}={v}\n" for n, v in others.items()))

    loaded = run_loader(loader, COMPOSE_FILE, env)

    assert loaded.returncode == 1
    assert f"required variable {name} is missing a value: create .env with" in loaded.stderr


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        pytest.param("shm_size:", "shm_sise:", "shm_sise", id="unknown key"),
        pytest.param("[s3-data:/data]", "[s4-data:/data]", "undefined volume", id="volume"),
        pytest.param(':9092"]', ':909x"]', "909x", id="port"),
        pytest.param("{s3: {cond", "{s4: {cond", "undefined service", id="service"),
        pytest.param("service_healthy", "service_happy", "must be one of", id="condition"),
        pytest.param("memory: 3g", "memory: plenty", "plenty", id="memory"),
    ],
)
def test_a_broken_copy_is_refused(
    loader: Path, env_file: Path, tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    text = COMPOSE_FILE.read_text()
    assert old in text
    broken = tmp_path / "docker-compose.yaml"
    broken.write_text(text.replace(old, new))

    loaded = run_loader(loader, broken, env_file)

    assert loaded.returncode == 1
    assert complaint in loaded.stderr


def test_published_ports_answer_this_machine_only(services: Services) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert len(ports) == 6
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_no_service_sees_a_secret_that_it_does_not_need(services: Services, env_file: Path) -> None:
    holders = {
        name: {s for s, body in services.items() if value in json.dumps(body)}
        for name, value in read_env(env_file).items()
    }

    assert holders["POSTGRES_PASSWORD"] == {"postgres"}
    assert holders["CATALOG_DB_PASSWORD"] == {"postgres", "catalog"}
    assert holders["AIRFLOW_ADMIN_PASSWORD"] == {"airflow-init"}
    assert holders["AIRFLOW_APPROVER_PASSWORD"] == {"airflow-init"}
    assert {"s3", "catalog", "spark-connect"} < holders["S3_SECRET_KEY"]
    assert all(holders.values())


def test_every_mounted_path_is_in_the_project(services: Services) -> None:
    mounts = [volume for service in services.values() for volume in service.get("volumes", [])]
    sources = {Path(mount["source"]) for mount in mounts if mount["type"] == "bind"}

    assert sources == {PROJECT / "include/streams", COMPOSE_CONFIG / "postgres-init.sh"}
    assert all(source.exists() for source in sources)


@pytest.mark.parametrize("folder", ["postgresql/data", "kafka/data", "/data", "auth", "state"])
def test_what_must_outlive_a_container_is_a_named_volume(services: Services, folder: str) -> None:
    mounts = [volume for service in services.values() for volume in service.get("volumes", [])]
    found = {mount["type"] for mount in mounts if mount["target"].endswith(folder)}

    assert found == {"volume"}


def test_services_are_limited_watched_and_restarted(services: Services) -> None:
    for name, service in services.items():
        ends = name in ENDS_BY_ITSELF
        assert int(service["deploy"]["resources"]["limits"]["memory"]) >= 2**28, name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == ("on-failure:3" if ends else "unless-stopped"), name
        assert ("healthcheck" in service) is not ends, name


def test_who_waits_waits_for_a_fact_that_will_be_reported(services: Services) -> None:
    waits = [
        (needed, how["condition"])
        for service in services.values()
        for needed, how in service.get("depends_on", {}).items()
    ]

    assert len(waits) > 10
    for needed, condition in waits:
        ends = needed in ENDS_BY_ITSELF
        assert condition == ("service_completed_successfully" if ends else "service_healthy")


def test_every_airflow_setting_exists_in_the_installed_airflow(services: Services) -> None:
    used = {n for s in services.values() for n in s.get("environment") or {} if "AIRFLOW__" in n}
    known = airflow_settings()

    assert len(used) > 10
    assert used - known == set()
    assert "AIRFLOW__CORE__SQL_ALCHEMY_CONN" not in known


def test_airflow_connections_lead_to_the_services(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in services["airflow-scheduler"]["environment"].items():
        monkeypatch.setenv(name, value)

    assert find_kafka_config("kafka_default") == {"bootstrap.servers": "kafka:19092"}
    assert find_spark_remote("spark_connect_default") == "sc://spark-connect:15002"
    assert find_catalog("iceberg_default").properties["uri"] == "http://catalog:8181"


def test_spark_and_pyiceberg_are_shown_the_same_catalog(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = services["airflow-scheduler"]["environment"]["AIRFLOW_CONN_ICEBERG_DEFAULT"]
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", connection)
    lines = (COMPOSE_CONFIG / "spark-defaults.conf").read_text().splitlines()
    of_server = dict(line.split() for line in lines if line.startswith("spark.sql.catalog."))

    assert of_server == find_catalog("iceberg_default").spark_conf()
