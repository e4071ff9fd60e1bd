"""OpenLineage: the topic and the table of a published batch, for Airflow's provider.

The provider calls a task's method after it has run, if a transport is configured; nothing of it is
imported otherwise. Names follow OpenLineage's conventions, so that lineage of other tools meets it:
a topic by its first bootstrap server, a table by its location.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlparse

from frazil.ingest.messages import Published
from frazil.streams.column_types import format_type

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, JobFacet, RunFacet
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet

    from frazil.streams.models import Stream
    from frazil.workspace import Workspace

    Lineage = OperatorLineage[InputDataset | OutputDataset, RunFacet | JobFacet]

Name = tuple[str, str]
"""Namespace and name of a dataset."""


def describe_lineage(published: Published) -> "Lineage":
    """Describe what a published batch read and wrote: names, offsets, snapshot, columns, counts."""
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional

    from frazil.workspace import open_workspace  # noqa: PLC0415 - heavy, and rare

    work = open_workspace(published.stream, "lineage")
    servers = work.kafka_config.get("bootstrap.servers", "")
    topics = {topic: name_topic(servers, topic) for topic in published.ranges}
    inputs: list[InputDataset | OutputDataset] = [
        _describe_topic(published, topic, name) for topic, name in topics.items()
    ]
    return OperatorLineage(inputs=inputs, outputs=[_describe_table(work, published, topics)])


def name_topic(bootstrap_servers: str, topic: str) -> Name:
    """Return namespace and name of a topic: `kafka://host:port` of the first server, and itself."""
    first = bootstrap_servers.partition(",")[0].rpartition("://")[2]  # without SASL_SSL://
    return f"kafka://{first.strip()}", topic


def name_location(location: str) -> Name:
    """Return namespace and name of a table by its location, as `s3://bucket` and the path in it."""
    parsed = urlparse(location)
    if parsed.scheme in {"", "file"}:
        return "file", parsed.path
    scheme = "s3" if parsed.scheme in {"s3a", "s3n"} else parsed.scheme
    return f"{scheme}://{parsed.netloc}", parsed.path.strip("/")


def _describe_topic(published: Published, topic: str, name: Name) -> "InputDataset":
    from openlineage.client.event_v2 import InputDataset  # noqa: PLC0415 - optional
    from openlineage.client.facet_v2 import (  # noqa: PLC0415 - optional
        DatasetFacet,
        input_statistics_input_dataset,
    )

    ranges = {str(p): list(pair) for p, pair in published.ranges[topic].items()}
    counted: dict[str, InputDatasetFacet] = {}
    if len(published.ranges) == 1:
        read = published.rows_written + published.rows_quarantined + published.rows_skipped
        counted["inputStatistics"] = (
            input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=read)
        )
    return InputDataset(
        *name,
        facets={"frazil_offsets": DatasetFacet().with_additional_properties(ranges=ranges)},  # type: ignore[dict-item]
        inputFacets=counted,
    )


def _describe_table(
    work: "Workspace", published: Published, topics: Mapping[str, Name]
) -> "OutputDataset":
    from openlineage.client import facet_v2 as facets  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415 - optional

    from frazil.schemas.inferred_columns import with_columns  # noqa: PLC0415 - heavy, and rare

    stream = with_columns(work).stream
    table = work.store.load(published.table)
    batch = {"batch_id": published.batch_id, "epoch": published.epoch}
    facet = facets.DatasetFacet().with_additional_properties(**batch)
    identifier = facets.symlinks_dataset.Identifier(
        f"iceberg://{stream.table.connection}", published.table, "TABLE"
    )
    columns = [
        facets.schema_dataset.SchemaDatasetFacetFields(column.name, format_type(column.type))
        for column in stream.parsed_columns
    ]
    described: dict[str, DatasetFacet] = {
        "schema": facets.schema_dataset.SchemaDatasetFacet(columns),
        "symlinks": facets.symlinks_dataset.SymlinksDatasetFacet([identifier]),
        "storage": facets.storage_dataset.StorageDatasetFacet("iceberg", "parquet"),
        "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet(
            str(published.snapshot_id)
        ),
        "columnLineage": _trace_columns(stream, topics),
        "frazil_batch": cast("DatasetFacet", facet),
    }
    counted = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=published.rows_written
    )
    return OutputDataset(
        *name_location(table.location()),
        facets=described,
        outputFacets={"outputStatistics": counted},
    )


def _trace_columns(stream: "Stream", topics: Mapping[str, Name]) -> "ColumnLineageDatasetFacet":
    """Trace each column to the field of the value that it reads, or to the whole value or key."""
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage  # noqa: PLC0415

    fields = {
        column.name: column.field if stream.value.is_flat else "value"
        for column in stream.value.parsed_columns
    }
    fields |= dict.fromkeys(stream.key.typed_columns, "key")
    return lineage.ColumnLineageDatasetFacet(
        {
            name: lineage.Fields([lineage.InputField(*topic, field) for topic in topics.values()])
            for name, field in fields.items()
        }
    )
