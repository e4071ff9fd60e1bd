"""The source table in PostgreSQL, read in transactions that see one snapshot and cannot write."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ

from frazil.connections.causes import explain_error
from frazil.connections.lookup import find_connection
from frazil.errors import (
    ConfigurationError,
    ConnectionMissingError,
    DatabaseUnavailableError,
    FrazilError,
    TargetError,
    hide_literals,
)
from frazil.messages import name_field
from frazil.state_tables.source_check_rules import Row, parse_lsn
from frazil.state_tables.source_values import (
    Pairing,
    Pairings,
    SourceColumn,
    Text,
    digest,
    may_be_in_source,
    read_source,
)

Keyed: TypeAlias = "tuple[Row, tuple[Text, ...]]"
"""A row, and the texts of its key."""
OLDEST = 140_000
"""PostgreSQL 14: before it, EXTRACT returns a floating-point number."""
_ROWS = 5_000
"""Rows of one fetch, and keys of one look-up."""
_ALL_DIGITS = "SET LOCAL extra_float_digits = 1"
"""A role or a database may have a setting by which floating-point numbers are rounded."""
_FACTS = """SELECT current_database(), current_user, pg_is_in_recovery(),
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
       ELSE pg_current_wal_insert_lsn() END::text"""
_TABLE = """SELECT c.oid::bigint, n.nspname, c.relname, c.relkind, row_security_active(c.oid),
  has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = %s AND c.relname = %s"""
# The base of a domain may be a domain itself.
_COLUMNS = """SELECT a.attname, COALESCE(e.typname, b.typname),
  format_type(a.atttypid, a.atttypmod), COALESCE(e.typtype, b.typtype) = 'e', e.oid IS NOT NULL
  FROM pg_attribute a CROSS JOIN LATERAL (
    WITH RECURSIVE bases AS (SELECT t.* FROM pg_type t WHERE t.oid = a.atttypid
      UNION ALL SELECT t.* FROM bases JOIN pg_type t ON t.oid = bases.typbasetype)
    SELECT * FROM bases WHERE typtype <> 'd') b
  LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
  WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_SLOTS = """SELECT count(*), count(*) FILTER (WHERE active) FROM pg_replication_slots
  WHERE slot_type = 'logical' AND database = current_database()"""
_OF_POSTGRES = frozenset(
    {
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl"),
        *("connect_timeout", "application_name", "options", "target_session_attrs"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    }
)
_PLAIN, _PARTITIONED = "r", "p"


@dataclass(frozen=True)
class SourceTable:
    """A table as PostgreSQL's catalog describes it."""

    schema: str
    name: str
    is_plain: bool
    columns: tuple[SourceColumn, ...]

    @property
    def text(self) -> str:
        """Return its name with the schema."""
        return f"{self.schema}.{self.name}"


class SourceSnapshot:
    """One read-only transaction; all its answers are of the LSN at which it began."""

    def __init__(self, connection: Any, name: str) -> None:  # noqa: ANN401 - it has no stubs
        """Begin the transaction."""
        self._connection = connection
        self._name = name
        self._cursors = count(1)
        with connection.cursor() as cursor:
            cursor.execute(_ALL_DIGITS)
        self.database, self.user, self.is_standby, lsn = self._ask(_FACTS)[0]
        self.lsn = parse_lsn(lsn)

    def _ask(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, arguments or None)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def find_table(self, schema: str, name: str) -> SourceTable:
        """Describe a table.

        Raises:
            TargetError: there is no such table, or it is none that can be compared.
            ConfigurationError: the user may not read it, or not all of its rows.
        """
        said = f"connection {self._name!r}: {schema}.{name} in database {self.database}"
        found = self._ask(_TABLE, schema, name)
        if not found:
            raise TargetError(
                f"{said} does not exist",
                "correct the database (`schema`) of the connection, or set "
                f"{name_field('table')} to SCHEMA.NAME",
            )
        oid, schema, name, kind, is_filtered, may_read = found[0]
        if kind not in {_PLAIN, _PARTITIONED}:
            raise TargetError(f"{said} is not a table", f"set {name_field('table')} to SCHEMA.NAME")
        if not may_read:
            grant = f"GRANT USAGE ON SCHEMA {schema} TO …; GRANT SELECT ON {schema}.{name} TO …"
            raise ConfigurationError(f"{said}: user {self.user} may not read it", f"`{grant}`")
        if is_filtered:
            raise ConfigurationError(
                f"{said}: row-level security may hide rows from user {self.user}",
                "use a user with BYPASSRLS: a connector reads all rows",
            )
        columns = tuple(SourceColumn(*each) for each in self._ask(_COLUMNS, oid))
        return SourceTable(schema, name, kind == _PLAIN, columns)

    def read_rows(self, table: SourceTable, pairings: Pairings) -> Iterator[list[Keyed]]:
        """Read all rows by a server-side cursor, in batches."""
        yield from self._read(self._select(table, pairings), pairings, {}, has_parts=False)

    def find_rows(
        self, table: SourceTable, pairings: Pairings, keys: Iterable[tuple[Text, ...]]
    ) -> Iterator[list[Keyed]]:
        """Read the rows of these keys, by the index of the key where its types allow it."""
        names = [f"k{index}" for index in range(len(pairings.keys))]
        left = [self._double_percents(_look_up(pairing)) for pairing in pairings.keys]
        lists = [
            sql.SQL("{}::{}[]").format(
                sql.Placeholder(name), sql.Identifier(pairing.lookup_type or "text")
            )
            for name, pairing in zip(names, pairings.keys, strict=True)
        ]
        query = sql.SQL("{} WHERE ({}) IN (SELECT * FROM unnest({}))").format(
            self._double_percents(self._select(table, pairings)),
            sql.SQL(", ").join(left),
            sql.SQL(", ").join(lists),
        )
        wanted = [key for key in keys if may_be_in_source(pairings.keys, key)]
        for start in range(0, len(wanted), _ROWS):
            part = wanted[start : start + _ROWS]
            given = dict(zip(names, map(list, zip(*part, strict=True)), strict=True))
            yield from self._read(query, pairings, given, has_parts=True)

    def _double_percents(self, part: sql.Composable) -> sql.SQL:
        """Return a part of a query with parameters: psycopg2 takes each `%` of it for one."""
        return sql.SQL(part.as_string(self._connection).replace("%", "%%"))

    def _select(self, table: SourceTable, pairings: Pairings) -> sql.Composed:
        only = sql.SQL("ONLY" if table.is_plain else "")  # a child table has a topic of its own
        columns = [sql.SQL("xmin::text::bigint"), *(_expression(each) for each in pairings.all)]
        name = sql.Identifier(table.schema, table.name)
        return sql.SQL("SELECT {} FROM {} {}").format(sql.SQL(", ").join(columns), only, name)

    def _read(
        self,
        query: sql.Composed,
        pairings: Pairings,
        given: Mapping[str, object],
        *,
        has_parts: bool,
    ) -> Iterator[list[Keyed]]:
        with self._connection.cursor(f"verify_{next(self._cursors)}") as cursor:
            cursor.execute(query, given or None)
            while fetched := cursor.fetchmany(_ROWS):
                versions, *columns = zip(*fetched, strict=True)
                texts = [read_source(*each) for each in zip(pairings.all, columns, strict=True)]
                yield digest_rows(texts, versions, len(pairings.keys), has_parts=has_parts)

    def find_missing_connector(self) -> str:
        """Return why no connector may be sending this database's changes; empty if one is."""
        if self.is_standby:
            return ""  # its slots are on the primary
        slots, active = self._ask(_SLOTS)[0]
        if active:
            return ""
        what = "no logical replication slot" if not slots else "no active logical replication slot"
        return f"database {self.database} has {what}: no connector reads its changes"


def digest_rows(
    columns: Sequence[Sequence[Text]],
    versions: Iterable[int],
    ids: int,
    *,
    has_parts: bool,
) -> list[Keyed]:
    """Return digests of rows, given their columns as texts; the first `ids` are the key."""
    rows: list[Keyed] = []
    for version, texts in zip(versions, zip(*columns, strict=True), strict=True):
        key = texts[:ids]
        parts = tuple(digest([text], 8) for text in texts[ids:]) if has_parts else ()
        rows.append((Row(digest(key), digest(texts[ids:]), int(version), parts), key))
    return rows


def _expression(pairing: Pairing) -> sql.Composed:
    name = sql.Identifier(pairing.source.name)
    return sql.SQL(pairing.sql).format(c=name)


def _look_up(pairing: Pairing) -> sql.Composable:
    """Return what a key is compared by: its column, or the text of it."""
    if pairing.lookup_type:
        return sql.Identifier(pairing.source.name)
    return _expression(pairing)


@dataclass(frozen=True)
class SourceDatabase:
    """A PostgreSQL database; `config` are the arguments of `psycopg2.connect`."""

    name: str
    config: Mapping[str, str]

    @contextmanager
    def open(self) -> Iterator[SourceSnapshot]:
        """Open a transaction that sees one snapshot and cannot write.

        Raises:
            DatabaseUnavailableError: the server does not answer, or refuses the login.
            ConfigurationError: its release is too old.
        """
        with self._translated(), closing(psycopg2.connect(**self.config)) as connection:
            if connection.server_version < OLDEST:
                raise ConfigurationError(
                    f"connection {self.name!r}: PostgreSQL {connection.server_version // 10_000} "
                    "is too old to compare times exactly",
                    f"use PostgreSQL {OLDEST // 10_000} or newer",
                )
            connection.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
            yield SourceSnapshot(connection, self.name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except FrazilError:
            raise
        except psycopg2.Error as error:
            cause = explain_error("database", error)
            said = (str(error).strip().splitlines() or [""])[0]
            facts = cause.sentence if cause else f"{type(error).__name__}: {hide_literals(said)}"
            raise DatabaseUnavailableError(
                f"connection {self.name!r}: {facts}",
                cause.next_step if cause else "see the server's log, then run again",
            ) from error


def find_postgres_config(connection_id: str) -> dict[str, str]:
    """Return the arguments of `psycopg2.connect` for a source database.

    Host, port, login, password and schema (the database) are those of Airflow's PostgreSQL
    connections; the extra may have libpq's settings of TLS and of waiting.

    Raises:
        ConnectionMissingError: the connection, its host or its database are missing.
        ConfigurationError: it is of another kind, or has a setting that would not be used.
    """
    connection = find_connection(connection_id)
    if connection.conn_type not in {None, "postgres", "postgresql"}:
        raise ConfigurationError(
            f"connection {connection_id!r} is of type {connection.conn_type}, not postgres",
            "name the connection of the source's PostgreSQL",
        )
    unknown = sorted(connection.extra.keys() - _OF_POSTGRES)
    if unknown:
        raise ConfigurationError(
            f"connection {connection_id!r}: unknown settings: {', '.join(unknown)}",
            f"use only {', '.join(sorted(_OF_POSTGRES))}",
        )
    if not connection.host or not connection.schema:
        raise ConnectionMissingError(
            f"connection {connection_id!r} has no {'host' if connection.schema else 'database'}",
            "set its host, port, login and password, and the database as its schema",
        )
    given = {
        "host": connection.host,
        "dbname": connection.schema,
        "port": str(connection.port or ""),
        "user": connection.login,
        "password": connection.password,
    }
    standard = {"connect_timeout": "10", "application_name": "frazil"}
    return {**standard, **connection.extra, **{k: v for k, v in given.items() if v}}
