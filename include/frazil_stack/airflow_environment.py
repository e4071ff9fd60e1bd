"""Airflow's configuration as environment variables; there is no airflow.cfg."""

import json
from collections.abc import Mapping

from frazil.environment import shipped_path
from frazil_stack.credentials import LOGINS_FILE, AirflowKeys, list_users
from frazil_stack.ports import LOOPBACK, Ports
from frazil_stack.settings import CATALOG_NAME, StackSettings

_NO_PORT = "1"
_PARALLELISM = "12"
API_SERVER_SETTINGS = dict.fromkeys(
    (
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC",
    ),
    "frazil_stack.airflow_local.API_DATABASE_ARGUMENTS",
)
"""Settings of the API server that differ from those of Airflow's other processes."""


def airflow_environment(settings: StackSettings, ports: Ports, keys: AirflowKeys) -> dict[str, str]:
    """Return the variables that Airflow's four processes and their tasks need."""
    return {
        "AIRFLOW_HOME": str(settings.airflow),
        "PYTHONUNBUFFERED": "1",
        # Else setproctitle overwrites /proc/<pid>/environ, by which `down` finds the processes.
        "SPT_NOENV": "1",
        # Else glibc keeps an arena per thread: about 100 MB in the four processes.
        "MALLOC_ARENA_MAX": "2",
        "GX_ANALYTICS_ENABLED": "false",
        "SCARF_ANALYTICS": "false",
        **_core(settings, ports, keys),
        **_pace(settings),
        **_logging(settings),
        **connection_environment(settings, ports),
    }


def airflow_url(ports: Ports) -> str:
    """Return the address of the UI and the REST API."""
    return f"http://{LOOPBACK}:{ports.airflow}"


def registry_url(ports: Ports) -> str:
    """Return the address of the schema registry's Confluent API."""
    return f"http://{LOOPBACK}:{ports.registry}/apis/ccompat/v7"


def catalog_properties(settings: StackSettings) -> dict[str, str]:
    """Return the properties for `pyiceberg.catalog.load_catalog`."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{settings.catalog_file}",
        "warehouse": settings.warehouse,
    }


def connection_environment(settings: StackSettings, ports: Ports) -> dict[str, str]:
    """Return the default connections as AIRFLOW_CONN variables in JSON."""
    connections: Mapping[str, Mapping[str, object]] = {
        "KAFKA": {
            "conn_type": "kafka",
            "extra": {"bootstrap.servers": f"{LOOPBACK}:{ports.kafka}"},
        },
        "ICEBERG": {
            "conn_type": "iceberg",
            "extra": {"catalog": CATALOG_NAME, **catalog_properties(settings)},
        },
        "SCHEMA_REGISTRY": {"conn_type": "http", "host": registry_url(ports)},
        "SPARK_CONNECT": {
            "conn_type": "spark_connect",
            "host": f"sc://{LOOPBACK}",
            "port": ports.spark_connect,
        },
        "SPARK": {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
        },
    }
    return {
        f"AIRFLOW_CONN_{name}_DEFAULT": json.dumps(content) for name, content in connections.items()
    }


def _core(settings: StackSettings, ports: Ports, keys: AirflowKeys) -> dict[str, str]:
    """Return the settings of folders, database, addresses and keys."""
    home = settings.airflow
    arguments = "frazil_stack.airflow_local.DATABASE_ARGUMENTS"
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(shipped_path("dags")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": _PARALLELISM,
        # Not more tasks are queued than can run: a batch's last step overtakes waiting tasks.
        "AIRFLOW__CORE__DEFAULT_POOL_TASK_SLOT_COUNT": _PARALLELISM,
        "AIRFLOW__CORE__FERNET_KEY": keys.fernet,
        "AIRFLOW__CORE__AUTH_MANAGER": (
            "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": list_users(),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / LOGINS_FILE),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{airflow_url(ports)}/execution/",
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "frazil_stack.airflow_local.local_host_name",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": arguments,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": arguments,
        # Not in [core]: the triggerer would preload them too.
        "AIRFLOW__SCHEDULER__MP_START_METHOD": "forkserver",
        "AIRFLOW__SCHEDULER__MP_FORKSERVER_PRELOAD": "frazil_airflow.preloaded",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(ports.airflow),
        "AIRFLOW__API__BASE_URL": airflow_url(ports),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": keys.api,
        "AIRFLOW__API_AUTH__JWT_SECRET": keys.jwt,
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def _pace(settings: StackSettings) -> dict[str, str]:
    """Return the intervals and limits of the scheduler and the DAG processor."""
    return {
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        # After a crash its tasks run again within a minute; the default is five.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # A new stream file adds DAGs to an unchanged DAG file: parse DAG files at this interval.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": settings.dag_scan_seconds,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": settings.dag_scan_seconds,
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    }


def _logging(settings: StackSettings) -> dict[str, str]:
    """Return the settings of logs.

    The two log servers are off: they would listen on every interface, and all processes share one
    folder of logs. The API server still requests the log of a running task from one, so the port
    is set to an unused one: on the default port another Airflow may answer.
    """
    logs = settings.airflow / "logs"
    return {
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(logs),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(logs / "dag_processor"),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": _NO_PORT,
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": _NO_PORT,
        "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
    }
