"""Iceberg tables through PyIceberg: load, create, read their history, translate its errors."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from traceback import walk_tb
from typing import TypeVar

import pydantic
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import Identifier

from frazil.connections.causes import explain_error
from frazil.connections.clients import CatalogPreset
from frazil.errors import (
    CatalogRejectedError,
    CatalogUnavailableError,
    ConfigurationError,
    FrazilError,
    IncompatibleTableError,
    MissingTableError,
    StorageError,
    hide_message,
    hide_partition_values,
)
from frazil.iceberg.commits import is_definite_conflict
from frazil.iceberg.file_io import ask_for_reason
from frazil.ledger import keys
from frazil.ledger.recovery_point import EMPTY_ARCHIVE, Archive, History, LedgerEntry
from frazil.ledger.usage import count_request

TABLE_DEFAULTS: Mapping[str, str] = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of new tables; a stream file may override all but the format version."""

HOT_DICTIONARY: Mapping[str, str] = {"write.parquet.dict-size-bytes": "32768"}
"""For batches: dictionaries are the costliest part of writing Parquet; compaction uses more."""

_DEFINITE = (
    ValidationError,
    NotInstalledError,
    pydantic.ValidationError,
)
"""Errors of the catalog's client that come again with every attempt."""
_RAISING = frozenset({"pyiceberg", "frazil"})
_DEFINITE_OF_SQL = frozenset({"ArgumentError", "NoSuchModuleError"})
"""The same of SQLAlchemy, by name: only catalogs in a database load it."""
_QUOTING = frozenset(
    {"InvalidHeader", "InvalidProxyURL", "InvalidSchema", "InvalidURL", "MissingSchema"}
)
"""The same of requests, for a setting that they quote: an address, or a header with a secret."""

_CLIENTS = frozenset(
    {"sqlalchemy", "requests", "pyiceberg", "botocore", "thrift", "hive_metastore"}
)
"""Packages of the clients of catalogs: an error of them is one of the catalog."""
_WITHOUT_REASON = "during HeadObject operation: No response body"
_AGAIN = "nothing was published, the next run plans the same range again"

parse("a = 1")  # the first call builds the grammar; two threads at once would corrupt it

COUNTED_FILES = "frazil.iceberg.file_io.CountedFileIO"
"""File access by PyArrow that counts requests. PyIceberg would choose PyArrow too, except for
Azure's schemes if `adlfs` is installed. A connection's own `py-io-impl` wins and is not counted."""


ANSWER_SECONDS = 180.0
"""PyIceberg's clients have no time limit. Linux tries for 127 s to connect, then says so."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class NewTable:
    """Schema, layout and properties of a table to create."""

    schema: Schema
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    sort_order: SortOrder = UNSORTED_SORT_ORDER
    properties: Mapping[str, str] | None = None


class TableStore:
    """One catalog's tables."""

    def __init__(self, preset: CatalogPreset) -> None:
        """Store the connection's preset; the first use opens the catalog."""
        self.preset = preset
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """Open the catalog once."""
        if self._catalog is None:
            doing = f"opening catalog {self.preset.name}"
            with translated_errors(doing):
                counted = {"py-io-impl": COUNTED_FILES, **self.preset.properties}
                catalog = self._ask(doing, lambda: load_catalog(self.preset.name, **counted))
            require_branches(self.preset.name, catalog.properties)
            self._catalog = catalog
        return self._catalog

    def probe(self) -> str:
        """List the catalog's namespaces, and describe how many there are.

        Raises:
            CatalogUnavailableError: the catalog did not answer.
        """
        doing = f"listing the namespaces of catalog {self.preset.name}"
        with translated_errors(doing):
            found = self._ask(doing, self.catalog.list_namespaces)
            return f"{len(found)} namespaces"

    def find(self, name: str) -> Table | None:
        """Load a table; None if there is none.

        Raises:
            CatalogUnavailableError: the catalog did not answer.
        """
        doing = f"loading table {name} from catalog {self.preset.name}"
        with self._translated(doing):
            count_request("catalog")
            catalog = self.catalog
            try:
                return self._ask(doing, lambda: catalog.load_table(name))
            except (NoSuchIcebergTableError, NoSuchPropertyException) as error:
                raise IncompatibleTableError(
                    f"{name} of catalog {self.preset.name} is not an Iceberg table: {error}",
                    "set another table.name in the stream file, or drop that table if it is unused",
                ) from error
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except (ValidationError, pydantic.ValidationError) as error:
                raise _unreadable_metadata(name, error) from error

    def _ask(self, doing: str, request: Callable[[], Result]) -> Result:
        """Send a request to the catalog server with a time limit; a local file needs none."""
        if self.preset.properties.get("uri", "").startswith("sqlite"):
            return request()
        return wait_for_answer(doing, request)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Translate errors; if S3's response gave no reason, send a request that returns one."""
        try:
            with translated_errors(doing):
                yield
        except StorageError as error:
            warehouse = self.preset.properties.get("warehouse", "")
            if _WITHOUT_REASON in str(error.__cause__) and "://" in warehouse:
                reason = ask_for_reason(self.preset.properties, warehouse)
                if reason is not None:
                    raise storage_error(doing, reason) from error
            raise

    def list_tables(self, parts: Sequence[re.Pattern[str]]) -> frozenset[str]:
        """List the tables whose namespaces and name match these patterns, part by part.

        Raises:
            CatalogUnavailableError: the catalog did not answer.
        """
        *levels, table = parts
        namespaces: list[Identifier] = [()]
        found: list[Identifier] = []
        with self._translated(f"listing the tables of catalog {self.preset.name}"):
            for level in levels:
                namespaces = [
                    child
                    for parent in namespaces
                    for child in self._list_children(parent, level.pattern)
                    if level.fullmatch(child[-1])
                ]
            for namespace in namespaces:
                count_request("catalog")
                with suppress(NoSuchNamespaceError):
                    found += self.catalog.list_tables(namespace)
        return frozenset(".".join(name) for name in found if table.fullmatch(name[-1]))

    def _list_children(self, parent: Identifier, name: str) -> list[Identifier]:
        """List the namespaces below another one; a plain name needs no request."""
        if name.isidentifier():
            return [(*parent, name)]
        count_request("catalog")
        return list(self.catalog.list_namespaces(parent))

    def load(self, name: str) -> Table:
        """Load a table.

        Raises:
            MissingTableError: there is no such table.
        """
        table = self.find(name)
        if table is None:
            raise missing_table(self, name)
        return table

    def create(self, name: str, new: NewTable) -> Table:
        """Create a table and its namespace; load the table if another process was faster."""
        with self._translated(f"creating table {name} in catalog {self.preset.name}"):
            namespace = name.rpartition(".")[0]
            try:
                self.catalog.create_namespace(namespace)
            except NamespaceAlreadyExistsError:
                pass
            except Exception as error:
                if not _lost_creation_race(error):
                    raise
            try:
                return self.catalog.create_table(
                    name,
                    schema=new.schema,
                    partition_spec=new.spec,
                    sort_order=new.sort_order,
                    properties={**TABLE_DEFAULTS, **(new.properties or {})},
                )
            except (TableAlreadyExistsError, CommitFailedException):
                return self.load(name)


def wait_for_answer(doing: str, request: Callable[[], Result]) -> Result:
    """Return what a request returns, if it ends within three minutes.

    The request must be safe to repeat: after the limit its thread keeps waiting until the server
    closes the connection or this process ends.

    Raises:
        CatalogUnavailableError: it did not end in time.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(request())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="catalog request", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if errors:
        raise errors[0]
    if not results:
        raise CatalogUnavailableError(
            f"{doing}: the catalog accepts connections and does not answer (for "
            f"{ANSWER_SECONDS:.0f} s)",
            "see its log, then run again; nothing was published, the next run plans the same range "
            "again",
        )
    return results[0]


def require_branches(name: str, properties: Mapping[str, str]) -> None:
    """Refuse a catalog that is known to ignore branches, by what its server configures.

    Nessie's REST catalog accepts a new branch of a table and does not store it, and an append to
    that branch replaces main.

    Raises:
        ConfigurationError: the catalog is Nessie.
    """
    if any(key.startswith("nessie.") for key in properties):
        raise ConfigurationError(
            f"catalog {name} is Nessie, which ignores the branches of a table: a staged batch "
            "would replace the table's rows",
            "use another catalog, such as Polaris, Lakekeeper, Glue or SQL (docs/connections.md)",
        )


def missing_table(store: TableStore, name: str) -> MissingTableError:
    """Build the error for a table that is not there."""
    return MissingTableError(
        f"catalog {store.preset.name} has no table {name}",
        "the first batch of its stream creates it: `frazil run STREAM`",
    )


def _unreadable_metadata(name: str, error: Exception) -> FrazilError:
    """Return the error for table metadata with a version, type or field that the client lacks.

    A response that is not JSON is not metadata: a proxy in front of the catalog sent it.
    """
    facts = f"table {name}: its metadata cannot be read: {_first_line(error)}"
    if "Invalid JSON" in str(error):
        return CatalogUnavailableError(facts, "`frazil doctor` checks the catalog; run again")
    return IncompatibleTableError(
        facts,
        "another engine wrote a newer format version or a type that Frazil does not know: remove "
        "it there, or set another table.name in the stream file",
    )


def _lost_creation_race(error: Exception) -> bool:
    """Return whether another process created the same namespace first."""
    return "UNIQUE constraint" in str(error) or "duplicate key" in str(error)


def read_history(
    table: Table, name: str, load_archive: Callable[[], Archive] = lambda: EMPTY_ARCHIVE
) -> History:
    """Return a table's snapshots and properties as the ledger's history."""
    entries = {
        snapshot.snapshot_id: LedgerEntry(
            snapshot_id=snapshot.snapshot_id,
            parent_id=snapshot.parent_snapshot_id,
            committed_at_ms=snapshot.timestamp_ms,
            summary=snapshot_summary(snapshot.summary),
            is_first=_is_first(snapshot),
        )
        for snapshot in table.metadata.snapshots
    }
    current = table.current_snapshot()
    return History(
        table=name,
        table_uuid=str(table.metadata.table_uuid),
        head=current.snapshot_id if current else None,
        entries=entries,
        properties=table.properties,
        load_archive=cache(load_archive),
    )


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is the bootstrap with which Frazil created the table.

    The sequence number is not enough: tables upgraded from format 1 have unnumbered snapshots.
    """
    if snapshot.sequence_number != 1:
        return False
    return snapshot_summary(snapshot.summary).get(keys.KIND) == keys.BOOTSTRAP


def snapshot_summary(summary: object) -> Mapping[str, str]:
    """Return a snapshot's summary as a mapping, including the key `operation`."""
    properties = getattr(summary, "additional_properties", {})
    operation = getattr(summary, "operation", None)
    return {"operation": getattr(operation, "value", ""), **properties}


@contextmanager
def translated_errors(doing: str) -> Iterator[None]:
    """Translate errors of the catalog and the storage into Frazil's, with what was being done."""
    doing = hide_partition_values(doing)  # it may name a data file
    try:
        yield
    except FrazilError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and type(error).__name__ not in _QUOTING:
            raise storage_error(doing, error) from error
        if _is_definite(error):
            cause = explain_error("catalog", error)
            known = f"{cause.sentence}: " if cause else ""
            raise CatalogRejectedError(
                f"{doing}: {known}{_describe_definite(error)}",
                "trying again does not help: check the table's properties and the settings of the "
                "catalog connection; `frazil doctor` checks both",
            ) from error
        if type(error).__module__.partition(".")[0] in _CLIENTS:
            raise catalog_error(doing, error) from error
        raise


_OF_SETTINGS = (
    *(ValueError, UnicodeEncodeError, TypeError, AttributeError),
    NotImplementedError,  # a client's, for a setting that it does not support
)
"""Classes, and no subclasses of ours, that a client raises for a setting or for a value."""


def _describe_definite(error: Exception) -> str:
    if type(error) in _OF_SETTINGS or type(error).__name__ in _QUOTING:
        return hide_message(error).facts
    return f"{type(error).__name__}: {_first_line(error)}"


def _is_definite(error: Exception) -> bool:
    """Return whether an error of the catalog's client comes again with every attempt."""
    if isinstance(error, _DEFINITE) or type(error).__name__ in _DEFINITE_OF_SQL | _QUOTING:
        return True
    if type(error) not in _OF_SETTINGS:
        return False
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    names = [package for name in frames if (package := name.partition(".")[0]) in _RAISING]
    return names[-1:] == ["pyiceberg"] and not is_definite_conflict(error)


def catalog_error(doing: str, error: Exception) -> CatalogUnavailableError:
    """Return the error for a catalog that cannot be used, with the cause if it is known."""
    cause = explain_error("catalog", error)
    detail = f"{type(error).__name__}: {_first_line(error)}"
    if cause is None:
        step = "`frazil doctor` checks the catalog"
        return CatalogUnavailableError(f"{doing}: {detail}", f"{step}; {_AGAIN}")
    return CatalogUnavailableError(
        f"{doing}: {cause.sentence} ({detail})", f"{cause.next_step}; {_AGAIN}"
    )


def storage_error(doing: str, error: OSError) -> FrazilError:
    """Return the error for an unreachable catalog, or for a storage that cannot be used."""
    if type(error).__module__.partition(".")[0] in _CLIENTS:
        return catalog_error(doing, error)
    cause = explain_error("storage", error)
    if cause is None:
        return StorageError(
            f"{doing}: the warehouse refused: {_first_line(error)}",
            f"check space and permissions of the warehouse; {_AGAIN}",
        )
    return StorageError(
        f"{doing}: {cause.sentence} ({_first_line(error)})", f"{cause.next_step}; {_AGAIN}"
    )


def _first_line(error: Exception) -> str:
    """Return the first line of an error; SQLAlchemy adds statements and links below it."""
    first = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return hide_partition_values(first)  # a path of a data file may contain values of rows


def dead_letters_name(table: str) -> str:
    """Return the name of a table's dead-letter table."""
    return table + keys.DEAD_LETTERS_SUFFIX
