"""Import what every task imports, once for all of them: name this module in Airflow's settings.

    AIRFLOW__CORE__MP_START_METHOD=forkserver
    AIRFLOW__CORE__MP_FORKSERVER_PRELOAD=frazil_airflow.preloaded

Airflow's fork server then imports it, its LocalExecutor's workers are forks of that process, and
each task is a fork of a worker. No connection or thread is opened here: neither survives a fork.
"""

from sqlalchemy.orm import configure_mappers

from frazil.spark.preloading import preload

MODULES = (
    "airflow.executors.local_executor",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "confluent_kafka.admin",
    "fastavro",
    "frazil.ingest.checking",
    "frazil.ingest.pipeline",
    "frazil.observability.watch",
    "frazil.spark.engine",
    "frazil.workspace",
    "frazil_airflow.dag_loading",
    "frazil_airflow.dag_runs",
    "frazil_airflow.freshness_watch",
    "frazil_airflow.tasks",
    "google.protobuf.descriptor_pb2",
    "jinja2.ext",
    "numpy.typing",
    "pyiceberg.avro.decoder_fast",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "rich.console",
    "stamina",
    "supervisor.xmlrpc",
)

preload(MODULES)
configure_mappers()  # of PyIceberg's SQL catalog; otherwise each task configures them
