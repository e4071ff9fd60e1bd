"""Reasons why Frazil cannot write a table as another engine left it, from its metadata alone."""

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform

from frazil.ledger.recovery_point import WriteObstacle, require_writable
from frazil.streams.table_properties import list_wrong_properties

FORMAT_VERSION = 2


def list_obstacles(table: Table) -> tuple[WriteObstacle, ...]:
    """List what keeps Frazil from writing the table, whatever columns the stream has."""
    name = ".".join(table.name())
    checks = (_check_version, _check_properties, _check_layout)
    return tuple(obstacle for check in checks for obstacle in check(table, name))


def require_writable_table(table: Table) -> None:
    """Raise if Frazil cannot write the table.

    Raises:
        IncompatibleTableError: with every reason, and how to remove it.
    """
    require_writable(".".join(table.name()), list_obstacles(table))


def _check_version(table: Table, name: str) -> Iterator[WriteObstacle]:
    version = table.metadata.format_version
    if version == FORMAT_VERSION:
        return
    lower = f"`ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '2')`"
    yield WriteObstacle(
        f"its Iceberg format version is {version}, Frazil writes {FORMAT_VERSION}",
        lower
        if version < FORMAT_VERSION
        else "Iceberg cannot lower a format version: register the table's newest metadata file of "
        "version 2 in the catalog again, or set another table.name in the stream file",
    )


def _check_properties(table: Table, name: str) -> Iterator[WriteObstacle]:
    """Check the properties with which no batch can be written."""
    for wrong in list_wrong_properties(table.properties, table.location()):
        if wrong.stops_batches:
            yield WriteObstacle(
                f"property {wrong.key} is {wrong.value}: it {wrong.reason}",
                f"`ALTER TABLE {name} UNSET TBLPROPERTIES ('{wrong.key}')`",
            )


def _check_layout(table: Table, name: str) -> Iterator[WriteObstacle]:
    """Check partition spec and sort order for transforms that only newer engines know."""
    for field in table.spec().fields:
        if isinstance(field.transform, UnknownTransform):
            yield WriteObstacle(
                f"partition field {field.name} has an unknown transform",
                f"`ALTER TABLE {name} DROP PARTITION FIELD {field.name}`",
            )
    if any(isinstance(field.transform, UnknownTransform) for field in table.sort_order().fields):
        fix = f"`ALTER TABLE {name} WRITE UNORDERED`"
        yield WriteObstacle("its sort order has an unknown transform", fix)
