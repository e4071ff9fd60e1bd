"""Import what every task imports, once for all tasks; open no connection and start no thread.

AIRFLOW__SCHEDULER__MP_START_METHOD=forkserver
AIRFLOW__SCHEDULER__MP_FORKSERVER_PRELOAD=frazil_airflow.preloaded
"""

from sqlalchemy.orm import configure_mappers

from frazil.spark.preloading import preload

MODULES = (
    "airflow.executors.local_executor",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "confluent_kafka.admin",
    "frazil.ingest.checking",
    "frazil.ingest.pipeline",
    "frazil.maintenance.compaction",
    "frazil.maintenance.orphans",
    "frazil.maintenance.row_expiry",
    "frazil.maintenance.snapshot_expiry",
    "frazil.observability.timeline_table",
    "frazil.observability.watch",
    "frazil.spark.engine",
    "frazil.state_tables.merge",
    "frazil.workspace",
    "frazil_airflow.dag_loading",
    "frazil_airflow.dag_runs",
    "frazil_airflow.freshness_watch",
    "frazil_airflow.params",
    "frazil_airflow.record_trigger",
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
)

preload(MODULES)
configure_mappers()  # of PyIceberg's SQL catalog; otherwise each task configures them
