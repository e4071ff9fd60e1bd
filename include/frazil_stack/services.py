"""The services of the stack: command, environment and order of starting."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frazil.environment import FORK_SOCKET, choose_socket_path, python_path
from frazil.failpoints import VARIABLE as FAILPOINT_VARIABLE
from frazil_stack.airflow_environment import API_SERVER_SETTINGS, airflow_environment
from frazil_stack.credentials import AirflowKeys
from frazil_stack.jars import jar_files, registry_program
from frazil_stack.java import Java, archive_option
from frazil_stack.ports import LOOPBACK, Ports
from frazil_stack.settings import HOME_VARIABLE, STREAMS_VARIABLE, PartName, StackSettings

SERVICE_VARIABLE = "FRAZIL_STACK_SERVICE"
"""Set in every process of a stack, like FRAZIL_HOME: `down` finds the processes by both."""

SUPERVISOR_SERVICE = "supervisor"

# Settings of another Airflow or Spark on this machine must not affect this one, and a failpoint
# that a shell still exports must not kill every run.
_EXCLUDED_PREFIXES = (
    "AIRFLOW__",
    "AIRFLOW_HOME",
    "SPARK_",
    "PYSPARK_",
    "PYTHONPATH",
    "PYTHONHOME",
    FAILPOINT_VARIABLE,
)
SERVICE_PARTS: Mapping[str, PartName] = {
    "kafka": "kafka",
    "registry": "registry",
    "spark_connect": "spark",
    "spark_clients": "spark",
    "airflow_api_server": "airflow",
    "airflow_scheduler": "airflow",
    "airflow_dag_processor": "airflow",
    "airflow_triggerer": "airflow",
}
"""Every service and its part, in the order of starting."""
_PORTS: Mapping[str, frozenset[str]] = {
    "kafka": frozenset({"kafka", "kafka_controller"}),
    "registry": frozenset({"registry"}),
    "spark_connect": frozenset({"spark_connect"}),
    "airflow_api_server": frozenset({"airflow"}),
}
CLIENT_LIBRARIES = (
    "frazil.ingest.error_budget",
    "frazil.ingest.messages",
    "frazil.failpoints",
    "frazil.quality.sql",
    "frazil.state_tables.merge_rules",
    "frazil.state_tables.messages",
    "frazil.streams.change_events",
    "frazil.streams.routes",
    "frazil_spark.decode.sources",
    "frazil_spark.decode.values",
    "frazil_spark.fast_path.writer",
    "frazil_spark.job",
    "frazil_spark.metrics",
    "frazil_spark.session_settings",
    "frazil_spark.unavailable_values",
    "google.protobuf.json_format",
    "numpy.typing",
    "pandas",
    "pyarrow.json",
    "pyarrow.parquet",
    "pydantic",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.observation",
    "pyspark.sql.connect.readwriter",
    "pyspark.sql.connect.session",
    "pyspark.sql.functions",
    "yaml",
)
"""What the jobs of each batch import: staging it, and merging it into a state table."""
# Else setproctitle overwrites /proc/<pid>/environ, by which `down` finds the processes; no threads.
_CLIENTS_ENVIRONMENT = {"SPT_NOENV": "1", "OPENBLAS_NUM_THREADS": "1"}
_DEFAULT_STOP_SECONDS = 20
# The scheduler would wait for its running tasks without a limit. Killing a task is safe: nothing
# of a batch is visible before its one commit, and the next `up` runs the task again.
# The first Spark server of a home writes its class archive when it ends (`frazil_stack.java`).
_STOP_SECONDS: Mapping[str, int] = {"airflow_scheduler": 8, "spark_connect": 60}
LONGEST_STOP_SECONDS = max(_DEFAULT_STOP_SECONDS, *_STOP_SECONDS.values())


@dataclass(frozen=True)
class Service:
    """One supervised program."""

    name: str
    part: PartName
    priority: int
    directory: Path
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    stop_seconds: int


@dataclass(frozen=True)
class StackPlan:
    """The inputs of rendering."""

    settings: StackSettings
    ports: Ports
    java: Java
    keys: AirflowKeys


def ports_of(service: str) -> frozenset[str]:
    """Return the names of the ports on which a service listens."""
    return _PORTS.get(service, frozenset())


def build_services(plan: StackPlan) -> tuple[Service, ...]:
    """Return all services in the order of starting."""
    settings = plan.settings
    airflow = airflow_environment(settings, plan.ports, plan.keys)
    commands: Mapping[str, tuple[Path, tuple[str, ...], Mapping[str, str]]] = {
        "kafka": (settings.kafka, kafka_command(plan, "kafka.Kafka"), {}),
        "registry": (settings.registry, registry_command(plan), registry_environment(plan)),
        "spark_connect": (settings.spark, _spark_command(plan), _spark_environment(settings)),
        "spark_clients": (settings.spark, _clients_command(settings), _CLIENTS_ENVIRONMENT),
        "airflow_api_server": (
            settings.airflow,
            _airflow(settings, "api-server"),
            {**airflow, **API_SERVER_SETTINGS},
        ),
        "airflow_scheduler": (
            settings.airflow,
            _airflow(settings, "scheduler", "--skip-serve-logs"),
            airflow,
        ),
        "airflow_dag_processor": (settings.airflow, _airflow(settings, "dag-processor"), airflow),
        "airflow_triggerer": (
            settings.airflow,
            _airflow(settings, "triggerer", "--skip-serve-logs"),
            airflow,
        ),
    }
    base = service_environment(plan)
    return tuple(
        Service(
            name=name,
            part=part,
            priority=10 * (index + 1),
            directory=commands[name][0],
            command=commands[name][1],
            environment={**base, **commands[name][2], SERVICE_VARIABLE: name},
            stop_seconds=_STOP_SECONDS.get(name, _DEFAULT_STOP_SECONDS),
        )
        for index, (name, part) in enumerate(SERVICE_PARTS.items())
    )


def service_environment(plan: StackPlan) -> dict[str, str]:
    """Return the variables of every service: the stack, Java, Spark's settings, no proxy."""
    settings = plan.settings
    local = ",".join(filter(None, (os.environ.get("no_proxy"), LOOPBACK, "localhost")))
    return {
        HOME_VARIABLE: str(settings.home),
        STREAMS_VARIABLE: str(settings.streams),
        "PATH": f"{settings.bin}:{plan.java.home / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "JAVA_HOME": str(plan.java.home),
        "SPARK_CONF_DIR": str(settings.stack / "spark"),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(settings.spark),
        # Spark's Python workers and Airflow import the project's own modules.
        "PYTHONPATH": python_path(),
        "no_proxy": local,
        "NO_PROXY": local,
    }


def supervisor_environment(settings: StackSettings) -> dict[str, str]:
    """Return the user's environment without settings of other Airflow and Spark installations."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_EXCLUDED_PREFIXES)}
    return {
        **kept,
        HOME_VARIABLE: str(settings.home),
        SERVICE_VARIABLE: SUPERVISOR_SERVICE,
    }


def kafka_command(plan: StackPlan, main_class: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a class of Kafka with the stack's configuration."""
    settings = plan.settings
    return (
        str(plan.java.executable),
        "-Xmx512m",
        "-Xms64m",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={settings.home / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{settings.templates / 'kafka-log4j2.properties'}",
        "-cp",
        f"{settings.jars / 'kafka'}/*",
        main_class,
        *(arguments or (str(settings.stack / "kafka.properties"),)),
    )


def registry_command(plan: StackPlan) -> tuple[str, ...]:
    """Return the command of the schema registry."""
    return (
        str(plan.java.executable),
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={plan.settings.home / 'tmp'}",
        "-jar",
        str(registry_program(plan.settings)),
    )


def registry_environment(plan: StackPlan) -> dict[str, str]:
    """Return the registry's settings: loopback only, schemas on disk instead of in memory."""
    return {
        "QUARKUS_HTTP_HOST": LOOPBACK,
        "QUARKUS_HTTP_PORT": str(plan.ports.registry),
        "QUARKUS_LOG_LEVEL": "WARN",
        "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{plan.settings.registry / 'schemas'}",
    }


def _spark_command(plan: StackPlan) -> tuple[str, ...]:
    """Return the command of the Spark Connect server; the wheel has no start script for it.

    The class archive needs a class path without non-empty folders, so the jars are named.
    """
    settings = plan.settings
    jars = jar_files(settings, "spark")
    return (
        str(settings.bin / "spark-submit"),
        "--properties-file",
        str(settings.stack / "spark" / "spark-defaults.conf"),
        "--driver-class-path",
        ":".join(map(str, jars)),
        "--conf",
        f"spark.driver.defaultJavaOptions={archive_option(settings, plan.java, jars)}",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--name",
        "frazil",
        "--driver-memory",
        settings.spark_memory,
        "spark-internal",
    )


def _spark_environment(settings: StackSettings) -> dict[str, str]:
    """Set a missing settings folder: the command names the properties file itself."""
    return {"SPARK_CONF_DIR": str(settings.stack / "spark" / "none")}


def _clients_command(settings: StackSettings) -> tuple[str, ...]:
    """Return the command of the fork server of Spark's clients."""
    socket = str(choose_socket_path(settings.stack, FORK_SOCKET))
    return (
        str(settings.bin / "python"),
        "-m",
        "frazil.spark.fork_server",
        socket,
        *CLIENT_LIBRARIES,
    )


def _airflow(settings: StackSettings, *words: str) -> tuple[str, ...]:
    """Return the command of one of Airflow's components."""
    return (str(settings.bin / "airflow"), *words)
