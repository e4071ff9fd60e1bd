"""The connection of a cluster: what is understood, what is refused, and what Spark is told."""

import itertools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frazil.connections.clients import CatalogPreset
from frazil.connections.lookup import Connection, find_connection
from frazil.errors import ConfigurationError, SparkUnavailableError
from frazil.messages import Message
from frazil.spark.engine import SparkEngine
from frazil.spark.job_errors import encode_job_error, parse_job_error
from frazil.spark.submit import (
    SubmitEngine,
    choose_settings,
    list_masters,
    resolve_master,
    run_guarded,
    write_properties,
)
from frazil.workspace import Workspace

CATALOG = CatalogPreset("lake", {"type": "rest", "uri": "http://c:8181", "token": "t0ken"})


def connect(
    host: str | None = "spark://127.0.0.1", port: int | None = 1, **extra: str
) -> Connection:
    return Connection("spark_default", host=host, port=port, extra=extra, conn_type="spark")


@pytest.mark.parametrize(
    ("page", "masters"),
    [
        ("submit.md", ["spark://master.example.org:7077"]),
        ("scale.md", ["k8s://https://kubernetes.example.org:6443", "yarn"]),
    ],
)
def test_the_connections_of_the_pages_are_understood(
    page: str, masters: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    found = []
    for written in re.findall(r"AIRFLOW_CONN_SPARK_DEFAULT='(.*?)'", text, re.DOTALL):
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", written)
        found.append(SubmitEngine(find_connection("spark_default"), CATALOG).master)

    assert found == masters


def test_a_connection_of_another_type_gives_its_scheme() -> None:
    kubernetes = Connection("spark_default", host="https://k", port=6443, conn_type="k8s")

    assert resolve_master(kubernetes) == "k8s://https://k:6443"


@pytest.mark.parametrize(
    ("connection", "facts"),
    [
        pytest.param(connect(host=None), "has no host", id="no master"),
        pytest.param(
            connect(**{"deploy-mode": "cluster"}),
            "deploy-mode: only client",
            id="a driver elsewhere",
        ),
        pytest.param(connect(keytab="eA=="), "'keytab' is not supported", id="Kerberos"),
        pytest.param(
            connect(**{"executor-wait-seconds": "soon"}),
            "executor-wait-seconds is not a number",
            id="a word",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(connection: Connection, facts: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SubmitEngine(connection, CATALOG)

    assert facts in refused.value.facts


def test_a_silent_master_is_named_before_anything_starts() -> None:
    with pytest.raises(SparkUnavailableError) as refused:
        SubmitEngine(connect("spark://127.0.0.1:1,127.0.0.1", 2), CATALOG).run_job(
            "stage_batch", Message(), Message
        )

    assert "127.0.0.1:1: " in refused.value.facts
    assert "127.0.0.1:2: " in refused.value.facts


KUBERNETES = {"spark.kubernetes.container.image": "spark:4.1.3"}


@pytest.mark.parametrize(
    ("connection", "options"),
    [
        (connect("spark://127.0.0.1", None), ["--master", "spark://127.0.0.1"]),
        (
            connect("k8s://https://127.0.0.1", 6443, namespace="ingest", **KUBERNETES),
            [
                *("--master", "k8s://https://127.0.0.1:6443"),
                *("--conf", "spark.kubernetes.namespace=ingest"),
            ],
        ),
        (connect("yarn", None, queue="night"), ["--master", "yarn", "--queue", "night"]),
    ],
    ids=["standalone", "Kubernetes", "YARN"],
)
def test_the_command_of_each_kind_of_cluster(
    connection: Connection,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = tmp_path / "told"
    fake = tmp_path / "spark-submit"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\necho "{{}}" > $(tail -n 1 {told})\n')
    fake.chmod(0o755)
    monkeypatch.setattr("frazil.spark.submit.find_binary", lambda _: str(fake))
    monkeypatch.setattr("frazil.spark.submit.check_listens", lambda *_: None)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    SubmitEngine(connection, CATALOG).run_job("stage_batch", Message(), Message)

    words = told.read_text().splitlines()
    pairs = list(itertools.pairwise(words))
    assert [
        pair for pair in zip(options[::2], options[1::2], strict=True) if pair not in pairs
    ] == []
    assert words[words.index("--deploy-mode") + 1] == "client"
    assert Path(words[-3]).name == "stage_batch.py"
    settings = choose_settings(connection, CATALOG)
    assert {k: v for k, v in connection.extra.items() if k.startswith("spark.")}.items() <= (
        settings.items()
    )


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("spark://a:7077,b", [("a", 7077), ("b", 7077)]),
        ("k8s://https://k:6443", [("k", 6443)]),
        ("k8s://k", [("k", 443)]),
        ("k8s://http://k", [("k", 80)]),
        ("yarn", []),
        ("local[2]", []),
    ],
)
def test_a_master_is_asked_at_its_address(master: str, addresses: list[tuple[str, int]]) -> None:
    assert list_masters(master) == addresses


def test_yarn_without_its_settings_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)

    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR, YARN_CONF_DIR"):
        SubmitEngine(connect("yarn", None), CATALOG).probe()


@pytest.mark.parametrize(
    ("remote", "described"),
    [
        ("", ""),
        ("/;token=s3cret", " with a token, by TLS"),
        ("/;use_ssl=true;token=s3cret", " with a token, by TLS"),
        ("/;use_ssl=true", ", by TLS"),
    ],
    ids=["plain", "token", "both", "TLS"],
)
def test_a_connect_server_is_described_without_its_token(remote: str, described: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"sc://127.0.0.1:{server.getsockname()[1]}"

        text = SparkEngine(address + remote).probe()

    assert text == address + described


def test_a_program_that_is_no_spark_submit_is_refused() -> None:
    engine = SubmitEngine(connect("local[2]", None, **{"spark-binary": "sh"}), CATALOG)

    with pytest.raises(ConfigurationError, match="`spark-binary` is not one of Spark's programs"):
        engine.run_job("stage_batch", Message(), Message)


def test_the_driver_gets_the_catalog_with_its_secrets_and_the_connections_word_counts() -> None:
    extra = {"spark.log.level": "INFO", "queue": "night"}

    settings = choose_settings(connect(**extra), CATALOG)

    assert settings["spark.sql.catalog.lake.uri"] == "http://c:8181"
    assert settings["spark.sql.catalog.lake.token"] == "t0ken"
    assert settings["spark.log.level"] == "INFO"
    assert "queue" not in settings
    assert "token" in settings["spark.redaction.regex"]


def test_properties_survive_what_java_takes_for_syntax() -> None:
    told = write_properties({"a b": "c:\\d = #1!\n2"})

    assert told == "a\\ b=c\\:\\\\d\\ \\=\\ \\#1\\!\\n2\n"


def test_the_stream_file_chooses_the_engine(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://cluster", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    batch = work.stream.batch.model_copy(update={"engine": "submit"})
    stream = work.stream.model_copy(update={"batch": batch})

    engine = Workspace(stream, work.directory, "run-1").engine

    assert isinstance(engine, SubmitEngine)
    assert engine.master == "spark://cluster:7077"
    assert isinstance(work.engine, SparkEngine)


def test_settings_are_in_a_file_that_only_this_user_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "spark-submit"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import os, shutil, sys\n"
        "settings = sys.argv[sys.argv.index('--properties-file') + 1]\n"
        "assert 't0ken' in open(settings).read() and 't0ken' not in ' '.join(sys.argv)\n"
        "shutil.copy2(settings, os.environ['SEEN'])\n"
        "open(sys.argv[-1], 'w').write('{}')\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr("frazil.spark.submit.find_binary", lambda _: str(fake))
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))

    SubmitEngine(connect("local[2]", None), CATALOG).run_job("stage_batch", Message(), Message)

    assert stat.S_IMODE(seen.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR


def test_a_command_ends_when_whoever_waits_for_it_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = f"import os,time; open({str(pid_file)!r},'w').write(str(os.getpid())); time.sleep(60)"
    command = [sys.executable, "-c", program]
    waiting = (
        "import os; from frazil.spark.submit import run_guarded; "
        f"run_guarded({command!r}, os.environ)"
    )
    with subprocess.Popen([sys.executable, "-c", waiting]) as process:
        while not pid_file.exists() or not pid_file.read_text():
            time.sleep(0.05)
        process.kill()

    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_commands_end_is_passed_on() -> None:
    ended = run_guarded([sys.executable, "-c", "print('said'); exit(3)"], os.environ)
    killed = run_guarded(
        [sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})"], os.environ
    )

    assert (ended.code, ended.output) == (3, "said\n")
    assert killed.code == 128 + signal.SIGKILL


def test_a_cluster_that_gives_no_executor_is_unavailable() -> None:
    text = encode_job_error(
        TimeoutError("no executor works for this job: none of spark://c for 9 s")
    )

    error = parse_job_error("stage_batch", text)

    assert isinstance(error, SparkUnavailableError)
    assert "workers" in error.next_step
