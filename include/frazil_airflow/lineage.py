"""OpenLineage: what a published batch or a merge read and wrote, for Airflow's provider.

The provider calls a task's method after it has run, if a transport is configured; nothing of it is
imported otherwise. Names follow OpenLineage's conventions, so that lineage of other tools meets it:
a topic by its first bootstrap server, a table by its location.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlparse

from frazil.ingest.messages import Published
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.state_tables.messages import MergeCounts, Merged
from frazil.streams.column_types import format_type

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, JobFacet, RunFacet
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet
    from pyiceberg.table import Table

    from frazil.streams.models import Stream
    from frazil.workspace import Workspace

    Lineage = OperatorLineage[InputDataset | OutputDataset, RunFacet | JobFacet]

Name = tuple[str, str]
"""Namespace and name of a dataset."""


def describe_lineage(done: Published | Merged) -> "Lineage | None":
    """Describe what was read and written: names, offsets or snapshots, columns, counts.

    None for a merge that had nothing to do.
    """
    from frazil.workspace import open_workspace  # noqa: PLC0415 - heavy, and rare

    work = open_workspace(done.stream, "lineage")
    return (
        _describe_batch(work, done) if isinstance(done, Published) else _describe_merge(work, done)
    )


def _describe_batch(work: "Workspace", published: Published) -> "Lineage":
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional

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


def _describe_merge(work: "Workspace", merged: Merged) -> "Lineage | None":
    """Describe the change table that a merge read, and the state table that it wrote."""
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import InputDataset  # noqa: PLC0415 - optional
    from openlineage.client.facet_v2 import input_statistics_input_dataset  # noqa: PLC0415 - optional

    if merged.counts is None:
        return None
    stream = work.stream
    changes = work.store.load(stream.table.name)
    name, columns = name_location(changes.location()), _list_columns(changes)
    version = _describe_version(stream, stream.table.name, merged.change_snapshot, columns)
    counted = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=merged.counts.changes
    )
    read = InputDataset(*name, facets=version, inputFacets={"inputStatistics": counted})
    written = _describe_state(work, merged, merged.counts, dict.fromkeys(columns, name))
    return OperatorLineage(inputs=[read], outputs=[written])


def _describe_state(
    work: "Workspace", merged: Merged, counts: MergeCounts, sources: Mapping[str, Name]
) -> "OutputDataset":
    """Describe a merged state table; `sources` are the tables that columns come from."""
    from openlineage.client import facet_v2 as facets  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415 - optional

    lineage, stream = facets.column_lineage_dataset, work.stream
    state = work.store.load(merged.table)
    columns = _list_columns(state)
    traced = {
        name: lineage.Fields([lineage.InputField(*sources[name], name)])
        for name in columns
        if name in sources
    }
    # Not beside each other: a facet has a field `_deleted` of its own.
    properties = {"counts": counts.model_dump(), "rebuilt": merged.rebuilt}
    facet = facets.DatasetFacet().with_additional_properties(**properties)
    described: dict[str, DatasetFacet] = {
        **_describe_version(stream, merged.table, merged.snapshot_id, columns),
        "columnLineage": lineage.ColumnLineageDatasetFacet(traced),
        "frazil_merge": cast("DatasetFacet", facet),
    }
    counted = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=counts.count_written(marks=stream.table.deletes == "mark")
    )
    return OutputDataset(
        *name_location(state.location()),
        facets=described,
        outputFacets={"outputStatistics": counted},
    )


def _list_columns(table: "Table") -> dict[str, str]:
    """Return the types of a table's columns without `_kafka`, as stream files write them."""
    from frazil.iceberg.table_schema import to_columns  # noqa: PLC0415 - heavy, and rare

    fields = (field for field in table.schema().fields if field.name != KAFKA_COLUMN)
    return {column.name: format_type(column.type) for column in to_columns(fields)}


def _describe_version(
    stream: "Stream", name: str, snapshot_id: int | None, columns: Mapping[str, str]
) -> "dict[str, DatasetFacet]":
    """Describe a snapshot of a table: its name in the catalog, columns and id."""
    from openlineage.client import facet_v2 as facets  # noqa: PLC0415 - optional

    catalog = f"iceberg://{stream.table.connection}"
    identifier = facets.symlinks_dataset.Identifier(catalog, name, "TABLE")
    fields = [facets.schema_dataset.SchemaDatasetFacetFields(*each) for each in columns.items()]
    return {
        "schema": facets.schema_dataset.SchemaDatasetFacet(fields),
        "symlinks": facets.symlinks_dataset.SymlinksDatasetFacet([identifier]),
        "storage": facets.storage_dataset.StorageDatasetFacet("iceberg", "parquet"),
        "version": facets.dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshot_id)),
    }


def _describe_table(
    work: "Workspace", published: Published, topics: Mapping[str, Name]
) -> "OutputDataset":
    from openlineage.client import facet_v2 as facets  # noqa: PLC0415 - optional
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415 - optional

    from frazil.iceberg.table_view import TableView  # noqa: PLC0415 - heavy, and rare
    from frazil.schemas.inferred_columns import with_columns  # noqa: PLC0415 - heavy, and rare

    view = TableView(work.store, published.table)
    stream, table = with_columns(work, view).stream, view.table
    batch = {"batch_id": published.batch_id, "epoch": published.epoch}
    facet = facets.DatasetFacet().with_additional_properties(**batch)
    columns = {column.name: format_type(column.type) for column in stream.parsed_columns}
    described: dict[str, DatasetFacet] = {
        **_describe_version(stream, published.table, published.snapshot_id, columns),
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
