"""Reasons why Frazil cannot write a table as another engine left it, from its metadata alone."""

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.transforms import UnknownTransform

from frazil.ledger.recovery_point import WriteObstacle, require_writable
from frazil.streams.column_types import FieldError
from frazil.streams.table_properties import validate_property

FORMAT_VERSION = 2
_OF_MAINTENANCE = frozenset({"gc.enabled", "history.expire.max-ref-age-ms"})
"""Properties with which batches can be written; expiry reports them itself."""


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
    """Check the properties by the rules for stream files, except those of maintenance."""
    for key, value in sorted(table.properties.items()):
        if key.startswith("frazil.") or key in _OF_MAINTENANCE:
            continue
        fix = f"`ALTER TABLE {name} UNSET TBLPROPERTIES ('{key}')`"
        if key == "encryption.key-id":
            yield WriteObstacle(f"property {key}: Frazil cannot read encrypted files", fix)
        try:
            validate_property(key, value)
        except FieldError as error:
            yield WriteObstacle(f"property {key} is {value}: it {error}", fix)


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
