"""Values for Airflow's chart, and the manifest of Spark Connect, beside the compose file.

`airflow_chart_keys.json` lists the keys of the chart's `values.schema.json` in the sections that
the values use; with the whole schema the values were validated once (docs/deploy.md).
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from frazil.connections.clients import (
    find_catalog,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
)
from frazil.kafka.client_settings import to_spark_options, translate_settings
from frazil.spark.engine import SparkEngine

PROJECT = Path(__file__).parents[2]
HELM = PROJECT / "include/stack/helm"
VALUES = yaml.safe_load((HELM / "values.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((HELM / "spark-connect.yaml").read_text()))
CHART = json.loads((Path(__file__).parent / "airflow_chart_keys.json").read_text())
PAGE = (PROJECT / "docs/deploy.md").read_text()
AIRFLOW = re.search(
    "^apache-airflow==(.*)$", (PROJECT / "requirements.txt").read_text(), re.MULTILINE
)


def unknown_keys(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the keys that the chart does not have."""
    known = CHART["keys"].get(".".join(path))
    for key, value in values.items():
        if known is not None and key not in known:
            yield ".".join((*path, key))
        elif isinstance(value, dict):
            yield from unknown_keys(value, (*path, key))


def test_the_chart_has_every_key() -> None:
    assert list(unknown_keys(VALUES)) == []
    assert list(unknown_keys({**VALUES, "dagprocessor": {}})) == ["dagprocessor"]
    assert list(unknown_keys({"logs": {"persistense": {}}})) == ["logs.persistense"]


def test_each_section_of_the_configuration_is_airflows() -> None:
    told = [(section, key) for section, keys in VALUES["config"].items() for key in keys]
    script = (
        "import json, sys; from airflow.configuration import conf; "
        "print(json.dumps([pair for pair in json.loads(sys.argv[1]) "
        "if pair[1] not in conf.configuration_description.get(pair[0], {}).get('options', {})]))"
    )
    command = [sys.executable, "-c", script, json.dumps(told)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=quiet())

    # Airflow reads these two for each of its processes, and lists them for [core] alone.
    both = [["scheduler", "mp_start_method"], ["scheduler", "mp_forkserver_preload"]]
    assert json.loads(run.stdout.splitlines()[-1]) == both


def test_nothing_needs_the_scripts_of_airflows_own_image() -> None:
    for name in ("scheduler", "dagProcessor", "triggerer"):
        section = VALUES[name]
        assert section["logGroomerSidecar"] == {"enabled": False}
        assert section["livenessProbe"]["command"][-1].startswith("exec airflow jobs check ")
    assert VALUES["scheduler"]["startupProbe"] == VALUES["scheduler"]["livenessProbe"]


def quiet() -> dict[str, str]:
    return {**os.environ, "AIRFLOW_HOME": "/nonexistent", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def test_versions_are_those_of_the_project() -> None:
    assert AIRFLOW is not None
    assert VALUES["airflowVersion"] == AIRFLOW[1]
    deployment = MANIFESTS[0]["spec"]["template"]["spec"]
    compose = (PROJECT / "docker-compose.yaml").read_text()
    image = deployment["containers"][0]["image"].rpartition("/")[2]
    assert f"image: {image}" in compose
    airflow = VALUES["images"]["airflow"]
    assert f"image: {airflow['repository'].rpartition('/')[2]}:{airflow['tag']}" in compose


def test_the_service_leads_to_the_server_whose_token_is_a_secret() -> None:
    deployment, service, proxy = MANIFESTS
    pod = deployment["spec"]["template"]
    container, tls = pod["spec"]["containers"]
    environment = {each["name"]: each for each in container["env"]}

    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert {p["targetPort"] for p in service["spec"]["ports"]} <= {p["name"] for p in tls["ports"]}
    ports = {port["containerPort"] for each in (container, tls) for port in each["ports"]}
    written = proxy["data"]["spark-connect.conf"]
    assert {int(port) for port in re.findall(r"(?:listen |:)(\d+)", written)} == ports
    assert "secretKeyRef" in environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"]["valueFrom"]


@pytest.mark.parametrize("name", ["values.yaml", "spark-connect.yaml"])
def test_what_the_files_expect_is_created_on_the_page(name: str) -> None:
    text = (HELM / name).read_text()
    named = set(
        re.findall(
            r"(?:[sS]ecretName|secretRef|configMap|secretKeyRef|name)\b\W+(frazil-[\w-]+)", text
        )
    )
    named |= set(re.findall(r"\w+SecretName: (frazil-[\w-]+)", text))
    images = {"frazil-airflow", "frazil-spark"}

    assert len(named - images) >= 2
    assert [each for each in sorted(named - images) if each not in PAGE] == []


CONNECTIONS = re.findall(r"^AIRFLOW_CONN_(\w+)=(\{.*\})$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("name", "written"), CONNECTIONS, ids=[name for name, _ in CONNECTIONS])
def test_a_connection_of_the_page_is_understood_by_each_client(
    name: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", written)
    connection = name.lower()

    if connection == "kafka_default":
        config = find_kafka_config(connection)
        signer = SimpleNamespace(MSKAuthTokenProvider=None)  # Amazon's package, for MSK alone
        monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
        assert translate_settings(config).unused == ()
        assert to_spark_options(config)["kafka.bootstrap.servers"] in written
    elif connection == "iceberg_default":
        assert "spark.sql.catalog.lake" in find_catalog(connection).spark_conf()
    elif connection == "spark_connect_default":
        assert SparkEngine(find_spark_remote(connection))._describe().endswith("token, by TLS")  # noqa: SLF001
    else:
        assert find_registry_config(connection)["url"].startswith("https://")
