"""Spark jobs through spark-submit: the same files, with a driver of their own, on a cluster.

The connection is Airflow's `spark_default`, read as Airflow's own Spark provider reads it. The
driver runs here (client mode), because request and result are files of this machine and the job
ends with its task. Settings travel in a file that only this user may read: a command line is
everybody's.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from frazil.connections import CatalogPreset, Connection, home_dir, is_secret
from frazil.errors import ConfigurationError, SparkUnavailableError
from frazil.ledger.usage import count_job
from frazil.spark.engine import JOBS_DIR, Engine, JobExit, check_listens, run_process, write_output

SPARK_CONNECTION = "spark_default"
BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")
WAIT_VARIABLE = "FRAZIL_EXECUTOR_WAIT_SECONDS"
CPU_SUFFIX = ".cpu"
"""Beside the result a job leaves the CPU time of its executors, ms."""

_OF_CONNECT = frozenset({"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"})
"""PySpark leaves them behind in a process that had a session of Spark Connect."""
_STANDALONE = "spark://"
_STANDALONE_PORT = 7077
_KNOWN_EXTRA = ("deploy-mode", "executor-wait-seconds", "namespace", "queue", "spark-binary")
_REDACTED = (
    "(?i)secret|password|passphrase|token|credential|access.?key|api.?key|jaas|authorization|"
    "cookie|header[.]"
)
_DEFAULTS: Mapping[str, str] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.redaction.regex": _REDACTED,
}


class SubmitEngine(Engine):
    """Run each job as an application of its own on the cluster of one connection."""

    def __init__(
        self,
        connection: Connection,
        catalog: CatalogPreset,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the connection and the catalog whose secrets the driver needs.

        Raises:
            ConfigurationError: the connection says something that cannot be done.
        """
        validate_extra(connection)
        self.master = resolve_master(connection)
        self._connection = connection
        self._catalog = catalog
        self._environment = dict(environment or {})

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run the driver in a process group of its own, which ends with this task."""
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
        """Let the driver run on this interpreter and find Frazil's modules."""
        given = {k: v for k, v in os.environ.items() if k not in _OF_CONNECT}
        modules = [str(JOBS_DIR), str(JOBS_DIR.parent / "include"), given.get("PYTHONPATH", "")]
        own = {
            "PATH": f"{Path(sys.executable).parent}:{given.get('PATH', os.defpath)}",
            "PYTHONPATH": ":".join(filter(None, modules)),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        wait = self._connection.extra.get("executor-wait-seconds")
        return {**given, **own, **({WAIT_VARIABLE: wait} if wait else {}), **self._environment}

    def _require_reachable(self) -> None:
        """Ask a standalone master's port first: its client would try for a minute."""
        if not self.master.startswith(_STANDALONE):
            return
        reasons = []
        for address in self.master.removeprefix(_STANDALONE).split(","):
            host, _, port = address.partition(":")
            try:
                check_listens(host, int(port or _STANDALONE_PORT))
            except OSError as error:
                reasons.append(f"{address}: {error}")
            else:
                return
        raise SparkUnavailableError(
            f"Spark master of connection {SPARK_CONNECTION}: {'; '.join(reasons)}",
            "start the master, or correct the connection's host and port; nothing was staged, the "
            "next run tries the same range again",
        )


def run_guarded(command: list[str], environment: Mapping[str, str]) -> JobExit:
    """Run a command that ends with this process, however that ends."""
    waiting, held = os.pipe()
    try:
        attended = [sys.executable, "-m", "frazil.spark.parent_guard", *command]
        return run_process(attended, environment, stdin=waiting)
    finally:
        os.close(waiting)
        os.close(held)


def resolve_master(connection: Connection) -> str:
    """Give the master's address as Airflow's Spark provider does.

    The host may be the whole address; else the connection's type is its scheme.

    Raises:
        ConfigurationError: there is no host.
    """
    host, scheme = connection.host, connection.conn_type or "spark"
    if not host:
        raise ConfigurationError(
            f"connection {connection.id!r} has no host",
            "set its host to the master, as spark://master.example.org, and its port",
        )
    is_whole = scheme == "spark" and ("://" in host or not connection.port)
    master = host if is_whole else f"{scheme}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def validate_extra(connection: Connection) -> None:
    """Refuse what this engine would ignore in silence.

    Raises:
        ConfigurationError: names the keys and what is understood.
    """
    unknown = [k for k in connection.extra if k not in _KNOWN_EXTRA and not _is_setting(k)]
    mode = connection.extra.get("deploy-mode", "client")
    wait = connection.extra.get("executor-wait-seconds", "1")
    wrong = [f"extra {key!r} is not understood" for key in unknown]
    if mode != "client":
        wrong.append(f"deploy-mode {mode!r}: the driver reads and writes files of this machine")
    if not wait.isdecimal():
        wrong.append(f"executor-wait-seconds {wait!r} is no number of seconds")
    if wrong:
        raise ConfigurationError(
            f"connection {connection.id!r}: {'; '.join(wrong)}",
            f"its extra may have {', '.join(_KNOWN_EXTRA)} and Spark's own settings (spark.…); "
            "docs/submit.md explains each",
        )


def _is_setting(key: str) -> bool:
    return key.startswith("spark.")


def list_options(connection: Connection) -> Iterator[str]:
    """Yield what Airflow's provider makes options of."""
    if queue := connection.extra.get("queue"):
        yield from ("--queue", queue)
    if namespace := connection.extra.get("namespace"):
        yield from ("--conf", f"spark.kubernetes.namespace={namespace}")


def choose_settings(connection: Connection, catalog: CatalogPreset) -> dict[str, str]:
    """Choose Spark's settings: ours, the catalog with its secrets, then the connection's."""
    settings = {**_DEFAULTS, **catalog.spark_conf(), **list_secrets(catalog)}
    if jars := ",".join(str(jar) for jar in find_jars()):
        settings["spark.jars"] = jars
    return {**settings, **{k: v for k, v in connection.extra.items() if _is_setting(k)}}


def list_secrets(catalog: CatalogPreset) -> dict[str, str]:
    """Give the catalog's settings that only a driver of our own may have."""
    prefix = f"spark.sql.catalog.{catalog.name}"
    return {f"{prefix}.{k}": v for k, v in catalog.properties.items() if is_secret(k, v)}


def find_jars() -> list[Path]:
    """List the jars that the embedded stack fetched; elsewhere Spark's defaults name them."""
    folder = Path(os.environ.get("FRAZIL_JARS") or home_dir() / "jars") / "spark"
    return sorted(folder.glob("*.jar"))


def find_binary(connection: Connection) -> str:
    """Find the program, first beside this interpreter.

    Raises:
        ConfigurationError: the extra names another program, or it is not installed.
    """
    name = connection.extra.get("spark-binary", BINARIES[0])
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if name not in BINARIES or found is None:
        raise ConfigurationError(
            f"connection {connection.id!r}: no program {name!r}",
            f"`spark-binary` is one of {', '.join(BINARIES)}; `make setup` installs the first",
        )
    return found


def write_properties(settings: Mapping[str, str]) -> str:
    """Write a Java properties file."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in settings.items())


def _escape(text: str) -> str:
    """Escape what Java's reader takes for syntax."""
    for sign in ("\\", "=", ":", " ", "#", "!"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def read_executors_cpu_ms(result: Path) -> int | None:
    """Read what the job left of its executors' CPU time; None if it ended before."""
    path = result.with_suffix(CPU_SUFFIX)
    return int(path.read_text()) if path.is_file() else None
