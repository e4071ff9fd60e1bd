"""The engine that runs each Spark job by spark-submit, as an application on a cluster.

The connection is Airflow's `spark_default`, read like Airflow's Spark provider reads it. The driver
runs on this machine (client mode), because request and result are local files and the job ends with
its task. Settings are passed in a file that only this user can read, because every user of the
machine can see a command line.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from frazil.connections.addresses import (
    join_addresses,
    split_address,
    validate_no_login,
    validate_unused_fields,
)
from frazil.connections.clients import CatalogPreset
from frazil.connections.lookup import Connection
from frazil.environment import home_dir, python_path
from frazil.errors import ConfigurationError, SparkUnavailableError
from frazil.ledger.usage import count_job
from frazil.spark.engine import Engine, JobExit, check_listens, run_process, write_output
from frazil.spark.redaction import REDACTION

SPARK_CONNECTION = "spark_default"
BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")
WAIT_VARIABLE = "FRAZIL_EXECUTOR_WAIT_SECONDS"
CPU_SUFFIX = ".cpu"
"""Suffix of the file beside the result in which a job writes its executors' CPU time in ms."""

_OF_CONNECT = frozenset({"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"})
"""PySpark sets these variables in a process that used Spark Connect."""
_STANDALONE = "spark://"
_STANDALONE_PORT = 7077
_KUBERNETES = "k8s://"
_YARN = "yarn"
_YARN_FOLDERS = frozenset({"HADOOP_CONF_DIR", "YARN_CONF_DIR"})
_KNOWN_EXTRA = ("deploy-mode", "executor-wait-seconds", "namespace", "queue", "spark-binary")
_DEFAULTS: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    **REDACTION,
}


class SubmitEngine(Engine):
    """Run each job as an application of its own on the cluster of one connection."""

    def __init__(
        self,
        connection: Connection,
        catalog: CatalogPreset,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Store the connection, and the catalog with the secrets for the driver.

        Raises:
            ConfigurationError: the connection has a setting that is not supported.
        """
        validate_extra(connection)
        self.master = resolve_master(connection)
        self._connection = connection
        self._catalog = catalog
        self._environment = dict(environment or {})

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run the driver in a process group of its own, which ends with this process."""
        _, script, request, result = command
        settings = Path(request).with_name("spark.properties")
        settings.touch(mode=0o600)
        settings.write_text(write_properties(choose_settings(self._connection, self._catalog)))
        options = [
            *("--master", self.master, "--deploy-mode", "client"),
            *("--name", f"frazil {Path(script).stem}"),
            *("--properties-file", str(settings), "--load-spark-defaults"),
            *list_options(self._connection),
        ]
        submit = [find_binary(self._connection), *options, script, request, result]
        ended = run_guarded(submit, self._build_environment())
        count_job(ended.cpu_ms, read_executors_cpu_ms(Path(result)))
        return write_output(ended)

    def _build_environment(self) -> dict[str, str]:
        """Return an environment in which the driver uses this interpreter and Frazil's modules."""
        given = {k: v for k, v in os.environ.items() if k not in _OF_CONNECT}
        own = {
            "PATH": f"{Path(sys.executable).parent}:{given.get('PATH', os.defpath)}",
            "PYTHONPATH": ":".join(filter(None, (python_path(), given.get("PYTHONPATH")))),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        wait = self._connection.extra.get("executor-wait-seconds")
        return {**given, **own, **({WAIT_VARIABLE: wait} if wait else {}), **self._environment}

    def _describe(self) -> str:
        return f"{self.master} by {find_binary(self._connection)}"

    def _require_reachable(self) -> None:
        """Check that a master's port is open: its client would retry for a minute or more."""
        if self.master == _YARN and not _YARN_FOLDERS & {*os.environ, *self._environment}:
            raise ConfigurationError(
                f"connection {self._connection.id!r}: YARN's address is in none of "
                f"{', '.join(sorted(_YARN_FOLDERS))}",
                "set HADOOP_CONF_DIR, for all Airflow workers, to the folder with yarn-site.xml",
            )
        reasons = []
        for host, port in list_masters(self.master):
            try:
                check_listens(host, port)
            except OSError as error:
                reasons.append(f"{host}:{port}: {error}")
            else:
                return
        if reasons:
            raise SparkUnavailableError(
                f"Spark master of connection {self._connection.id}: {'; '.join(reasons)}",
                "start the master, or correct the connection's host and port; nothing was staged, "
                "the next run tries the same range again",
            )


def list_masters(master: str) -> list[tuple[str, int]]:
    """List host and port of standalone masters or of a Kubernetes API server; empty for others."""
    if master.startswith(_STANDALONE):
        addresses = master[len(_STANDALONE) :].split(",")
        return [split_address(address, _STANDALONE_PORT) for address in addresses]
    if not master.startswith(_KUBERNETES):
        return []
    address = master.removeprefix(_KUBERNETES)
    return [split_address(address, 80 if address.startswith("http://") else 443)]


def run_guarded(command: list[str], environment: Mapping[str, str]) -> JobExit:
    """Run a command that ends with this process, even if that is killed."""
    reader, writer = os.pipe()  # the guard reads until this process, the only writer, ends
    try:
        guarded = [sys.executable, "-m", "frazil.spark.parent_guard", *command]
        return run_process(guarded, environment, stdin=reader)
    finally:
        os.close(reader)
        os.close(writer)


def resolve_master(connection: Connection) -> str:
    """Return the master's address, composed like Airflow's Spark provider does.

    The host may be the whole address; otherwise the connection type is the scheme.

    Raises:
        ConfigurationError: the connection has no host.
    """
    host, scheme = connection.host, connection.conn_type or "spark"
    if not host:
        raise ConfigurationError(
            f"connection {connection.id!r} has no host",
            "set its host to the master, for example spark://master.example.org, and its port",
        )
    validate_unused_fields(connection, "login", "password", "schema")
    validate_no_login(connection, "host", host)
    is_whole = scheme == "spark" and ("://" in host or not connection.port)
    master = host if is_whole else f"{scheme}://{host}"
    if not master.startswith((_STANDALONE, _KUBERNETES)):
        return f"{master}:{connection.port}" if connection.port else master
    kind = next(each for each in (_STANDALONE, _KUBERNETES) if master.startswith(each))
    return kind + join_addresses(connection, master.removeprefix(kind), connection.port)


def validate_extra(connection: Connection) -> None:
    """Check the extra for keys and values that this engine does not support.

    Raises:
        ConfigurationError: there is one.
    """
    unknown = [k for k in connection.extra if k not in _KNOWN_EXTRA and not _is_setting(k)]
    mode = connection.extra.get("deploy-mode", "client")
    wait = connection.extra.get("executor-wait-seconds", "1")
    problems = [f"extra {key!r} is not supported" for key in unknown]
    if mode != "client":
        problems.append("deploy-mode: only client, because the driver uses local files")
    if not wait.isdecimal():
        problems.append("executor-wait-seconds is not a number of seconds")
    if problems:
        raise ConfigurationError(
            f"connection {connection.id!r}: {'; '.join(problems)}",
            f"use only {', '.join(_KNOWN_EXTRA)} and Spark's own settings (spark.…) in its extra; "
            "docs/submit.md explains them",
        )


def _is_setting(key: str) -> bool:
    return key.startswith("spark.")


def list_options(connection: Connection) -> Iterator[str]:
    """Yield the options that Airflow's provider derives from the connection's extra."""
    if queue := connection.extra.get("queue"):
        yield from ("--queue", queue)
    if namespace := connection.extra.get("namespace"):
        yield from ("--conf", f"spark.kubernetes.namespace={namespace}")


def choose_settings(connection: Connection, catalog: CatalogPreset) -> dict[str, str]:
    """Return Spark's settings: defaults, then the catalog's, then the connection's."""
    settings = {**_DEFAULTS, **catalog.spark_conf()}
    if jars := ",".join(str(jar) for jar in find_jars()):
        settings["spark.jars"] = jars
    return {**settings, **{k: v for k, v in connection.extra.items() if _is_setting(k)}}


def find_jars() -> list[Path]:
    """List the jars of the embedded stack; without it Spark's defaults name the jars."""
    folder = Path(os.environ.get("FRAZIL_JARS") or home_dir() / "jars") / "spark"
    return sorted(folder.glob("*.jar"))


def find_binary(connection: Connection) -> str:
    """Find spark-submit beside this interpreter, else on PATH.

    Raises:
        ConfigurationError: `spark-binary` is not allowed, or the program is not installed.
    """
    name = connection.extra.get("spark-binary", BINARIES[0])
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.is_file() else shutil.which(name)
    if name not in BINARIES or found is None:
        raise ConfigurationError(
            f"connection {connection.id!r}: its `spark-binary` is not one of Spark's programs, "
            "or is not installed here",
            f"set `spark-binary` to one of {', '.join(BINARIES)}; `make setup` installs the first",
        )
    return found


def write_properties(settings: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in settings.items())


def _escape(text: str) -> str:
    """Escape the characters that are syntax in Java properties files."""
    for sign in ("\\", "=", ":", " ", "#", "!"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def read_executors_cpu_ms(result: Path) -> int | None:
    """Read the CPU time in ms that the job wrote for its executors; None if there is none."""
    path = result.with_suffix(CPU_SUFFIX)
    return int(path.read_text()) if path.is_file() else None
