"""Settings of a catalog connection, translated from PyIceberg's names to those of Spark.

A connection is written once, in PyIceberg's names. Each setting is passed to both PyIceberg and
Iceberg's Java library, unless a table below limits it to one of them; an unknown setting is an
error that names it. Settings named `pyiceberg.NAME` or `spark.NAME` are passed to only one of them.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from frazil.connections.lookup import has_bare_password, has_password
from frazil.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

PYICEBERG_PREFIX = "pyiceberg."
SPARK_PREFIX = "spark."
WRAPPED = "wrapped."
"""Prefix of `type` for a catalog behind `py-catalog-impl`; PyIceberg refuses both together."""

S3_TABLES = "s3tables"
"""Amazon's S3 Tables: a REST catalog whose address and signature follow from the bucket's ARN."""

TYPES = ("sql", "rest", "glue", "hive", S3_TABLES)

_SAME_STORAGE = (
    *("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
    *("s3.path-style-access", "client.region"),
    *("gcs.project-id", "gcs.oauth2.token", "gcs.oauth2.token-expires-at", "gcs.service.host"),
    "adls.token",
)
_SAME: Mapping[str, tuple[str, ...]] = {
    "sql": (),
    "rest": (
        *("uri", "prefix", "token", "credential", "scope", "oauth2-server-uri", "audience"),
        *("resource", "rest.signing-name", "rest.signing-region", "namespace-separator"),
        *("view-endpoints-supported", "snapshot-loading-mode", "scan-planning-mode"),
        "rest-page-size",
    ),
    "glue": ("glue.id", "glue.endpoint", "glue.skip-archive"),
    "hive": ("uri",),
}
"""Settings of each type with one name and one meaning in both libraries."""

_RENAMED: Mapping[str, str] = {
    "s3.region": "client.region",
    "glue.region": "client.region",
    "client.role-arn": "client.assume-role.arn",
    "s3.role-arn": "client.assume-role.arn",
    "client.role-session-name": "client.assume-role.session-name",
    "s3.role-session-name": "client.assume-role.session-name",
    "s3.proxy-uri": "http-client.proxy-endpoint",
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
"""PyIceberg's name → the name in Iceberg's Java library for the same setting."""

_ADDRESS = re.compile(r"(uri|url|endpoint|proxy)$", re.IGNORECASE)
"""Settings that hold an address; in others an @ behind a colon, as in an ARN, is no password."""

_PYICEBERG_ONLY: frozenset[str] = frozenset(
    {
        *("py-io-impl", "py-catalog-impl", "downcast-ns-timestamp-to-us-on-write"),
        *("echo", "pool_pre_ping", "init_catalog_tables", "rest.sigv4.max-retries"),
        *("s3.connect-timeout", "s3.request-timeout", "s3.resolve-region"),
        *("s3.retry-strategy-impl", "glue.max-retries", "glue.retry-mode"),
        *("gcs.access", "gcs.consistency", "gcs.cache-timeout", "gcs.session-kwargs"),
    }
)
"""How PyIceberg works inside, for which the Java library has no setting."""

_GLUE_KEYS = frozenset(
    {f"glue.{n}" for n in ("access-key-id", "secret-access-key", "session-token", "profile-name")}
)
"""Credentials of Glue alone, which the Java library takes from its environment."""

_AMAZON_KEYS = frozenset(
    {"client.access-key-id", "client.secret-access-key", "client.session-token"}
)
"""Credentials of all services: Java has them for S3 and for signed requests, not for Glue."""

_HEADER = "header."
_DELEGATION = "header.X-Iceberg-Access-Delegation"
_FILE_IO: Mapping[str, str] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "org.apache.iceberg.aws.s3.S3FileIO"),
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    **dict.fromkeys(("abfs", "abfss"), "org.apache.iceberg.azure.adlsv2.ADLSFileIO"),
}
"""Scheme of the warehouse → the Java library's access to its files."""

_POSTGRES_OPTIONS: Mapping[str, str] = {
    **{n: n for n in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "options")},
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "target_session_attrs": "targetServerType",
}
DATABASES = frozenset({"sqlite", "postgresql", "mysql"})
_SESSIONS = {"read-write": "primary", "any": "any", "primary": "primary"}
_MYSQL_OPTIONS: Mapping[str, str] = {"charset": "characterEncoding"}
_CHARSETS = {"utf8mb4": "UTF-8", "utf8": "UTF-8"}
_OPTIONS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "sqlite": ({}, {}),
    "postgresql": (_POSTGRES_OPTIONS, _SESSIONS),
    "mysql": (_MYSQL_OPTIONS, _CHARSETS),
}
"""Database → options of its address for Python and for Java, and Java's words for their values."""
_ADLS_HOST = ".dfs.core.windows.net"


def to_spark_catalog(connection_id: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of Spark's catalog, without the prefix of its name.

    Raises:
        ConfigurationError: a setting is unknown, or Spark cannot have it; the error names it.
    """
    return _Translation(connection_id, properties).run()


def complete_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return PyIceberg's properties: without those of Spark alone, with what a preset implies."""
    given = {k: v for k, v in properties.items() if not k.startswith(SPARK_PREFIX)}
    own = {k.removeprefix(PYICEBERG_PREFIX): v for k, v in given.items()}
    if own.get("s3.path-style-access", "").lower() == "false":
        own.setdefault("s3.force-virtual-addressing", "true")
    if own.get("type") == S3_TABLES:
        region = read_region(own.get("warehouse", ""))
        own |= {
            "type": "rest",
            "uri": own.get("uri", f"https://s3tables.{region}.amazonaws.com/iceberg"),
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": region,
        }
        own.setdefault("s3.region", region)
    return own


def read_type(properties: Mapping[str, str]) -> str:
    """Return a catalog's type; inferred from the address, as by PyIceberg, if none is named."""
    scheme = properties.get("uri", "").partition("://")[0].partition("+")[0].lower()
    inferred = "sql" if scheme in DATABASES else {"thrift": "hive"}.get(scheme, "rest")
    return properties.get("type") or properties.get(f"{WRAPPED}type") or inferred


def read_region(arn: str) -> str:
    """Return the region of an ARN such as `arn:aws:s3tables:eu-west-1:111122223333:bucket/lake`.

    Raises:
        ConfigurationError: it is not the ARN of a table bucket.
    """
    parts = arn.split(":")
    if len(parts) < 6 or parts[2] != S3_TABLES or not parts[3]:  # noqa: PLR2004 - parts of an ARN
        raise ConfigurationError(
            f"a catalog of type {S3_TABLES} needs the ARN of a table bucket as `warehouse`",
            "set it to arn:aws:s3tables:REGION:ACCOUNT:bucket/NAME",
        )
    return parts[3]


def read_database_url(connection: str, uri: str) -> "URL":
    """Read the address of a catalog in a database, as PyIceberg's SQLAlchemy does.

    Raises:
        ConfigurationError: it is no address; the error does not show it: it may have a password.
    """
    from sqlalchemy.engine import make_url  # noqa: PLC0415 - takes 0.2 s
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"{connection}: its `uri` is not the address of a database",
            "write it as postgresql+psycopg2://host:5432/db, with login and password in fields of "
            "their own",
        ) from None


class _Translation:
    """One translation: each rule removes the settings it handles; the rest is refused."""

    def __init__(self, connection_id: str, properties: Mapping[str, str]) -> None:
        self._connection = f"connection {connection_id!r}"
        own_python = [k for k in properties if k.startswith(PYICEBERG_PREFIX)]
        self._own_spark = {
            k.removeprefix(SPARK_PREFIX): v
            for k, v in properties.items()
            if k.startswith(SPARK_PREFIX)
        }
        given = {k: v for k, v in properties.items() if k not in own_python}
        complete = complete_properties(given)
        self.kind = read_type(complete)
        self._left = {k.removeprefix(WRAPPED): v for k, v in complete.items()}
        self._left.pop("type", None)
        self._spark: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Return Spark's properties.

        Raises:
            ConfigurationError: a setting is left that no rule handles.
        """
        rules: dict[str, Callable[[], None]] = {
            "sql": self._translate_sql,
            "rest": self._translate_rest,
            "glue": self._translate_glue,
            "hive": lambda: None,
        }
        if self.kind not in rules:
            raise self._make_error(
                "its catalog type is not supported", f"use one of {', '.join(TYPES)}"
            )
        self._validate_no_passwords()
        rules[self.kind]()
        self._spark.setdefault("type", self.kind)
        if self.kind == "sql":
            del self._spark["type"]
        self._translate_credentials()
        self._translate_storage()
        for key in list(self._left):
            if key in _PYICEBERG_ONLY:
                del self._left[key]
            elif key in _SAME[self.kind] or key in _SAME_STORAGE or key == "warehouse":
                self._spark[key] = self._left.pop(key)
        if self._left:
            raise self._make_error(
                f"settings that Spark would not get: {', '.join(sorted(self._left))}",
                "correct their names, or write `pyiceberg.NAME` for PyIceberg alone and "
                "`spark.NAME` for Spark's catalog alone (docs/connections.md)",
            )
        return self._spark | self._own_spark

    def _translate_sql(self) -> None:
        self._spark["catalog-impl"] = "org.apache.iceberg.jdbc.JdbcCatalog"
        self._spark |= self._read_address(self._left.pop("uri", ""))
        self._spark["jdbc.schema-version"] = "V1"

    def _read_address(self, uri: str) -> dict[str, str]:
        """Translate a SQLAlchemy URL into JDBC's address, user and password."""
        url = read_database_url(self._connection, uri)
        dialect = url.get_backend_name()
        if dialect not in _OPTIONS:
            raise self._make_error(
                f"its `uri` names the database {dialect!r}, for which Spark has no catalog",
                "use sqlite, postgresql or mysql, such as postgresql+psycopg2://user@host:5432/db",
            )
        names, values = _OPTIONS[dialect]
        unknown = sorted(url.query.keys() - names.keys())
        if unknown:
            raise self._make_error(
                f"options of its `uri` that Spark's driver would not get: {', '.join(unknown)}",
                f"use only {', '.join(names)}" if names else "remove them",
            )
        if dialect == "sqlite":
            return {"uri": f"jdbc:sqlite:file:{url.database or ''}"}
        repeated = sorted(name for name, value in url.query.items() if not isinstance(value, str))
        if repeated:
            raise self._make_error(
                f"options of its `uri` that are there twice: {', '.join(repeated)}", "remove one"
            )
        given = {name: str(value) for name, value in url.query.items()}
        if given.get("target_session_attrs", "any") not in _SESSIONS:
            raise self._make_error(
                "`target_session_attrs` of its `uri` may choose a server that is read-only",
                f"use {', '.join(_SESSIONS)}",
            )
        # Spark shows an address, and hides the values of keys with `password`.
        secrets = {"jdbc.password": url.password, "jdbc.sslpassword": given.pop("sslpassword", "")}
        pairs = "&".join(
            f"{names[k]}={quote(values.get(v, v), safe='/')}" for k, v in given.items()
        )
        host = f"[{url.host}]" if ":" in (url.host or "") else url.host or ""
        place = f"{host}{f':{url.port}' if url.port else ''}/{quote(url.database or '', safe='')}"
        found = {"uri": f"jdbc:{dialect}://{place}{'?' if pairs else ''}{pairs}"}
        if url.username:
            found["jdbc.user"] = url.username
        return found | {key: str(secret) for key, secret in secrets.items() if secret}

    def _translate_rest(self) -> None:
        for key in [k for k in self._left if k.startswith(_HEADER)]:
            self._spark[key] = self._left.pop(key)
        # PyIceberg requests credentials for each table by default, Spark only with this setting.
        self._spark.setdefault(_DELEGATION, "vended-credentials")
        if "credential" in self._left:
            # Few servers support token exchange, which Java would use: log in again instead.
            self._spark["token-exchange-enabled"] = "false"
        if self._left.pop("rest.sigv4-enabled", "false").lower() == "true":
            has_token = "token" in self._left or "credential" in self._left
            self._spark["rest.auth.type"] = "sigv4"
            self._spark["rest.auth.sigv4.delegate-auth-type"] = "oauth2" if has_token else "none"
            for key in ("access-key-id", "secret-access-key", "session-token"):
                if f"client.{key}" in self._left:
                    self._spark[f"rest.{key}"] = self._left[f"client.{key}"]
        if self._left.pop("s3.signer", ""):
            self._spark["s3.remote-signing-enabled"] = "true"
            for key, name in (
                ("s3.signer.uri", "signer.uri"),
                ("s3.signer.endpoint", "signer.endpoint"),
            ):
                if key in self._left:
                    self._spark[name] = self._left.pop(key)

    def _translate_glue(self) -> None:
        """Refuse keys of Glue alone: the Java library takes them from the environment."""
        own = self._left.keys() & (_GLUE_KEYS | _AMAZON_KEYS)
        if own:
            raise self._make_error(
                f"settings that Spark would not get: {', '.join(sorted(own))}",
                "give Spark's machines a role or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and "
                "write these as `pyiceberg.NAME`",
            )

    def _translate_credentials(self) -> None:
        """Translate renamed settings, roles, and the credentials of all of Amazon's services."""
        for key, name in _RENAMED.items():
            if key in self._left:
                value = self._left.pop(key)
                if self._spark.setdefault(name, value) != value:
                    raise self._make_error(
                        f"`{key}` and another setting both give Spark's `{name}`, with different "
                        "values",
                        "remove one of them",
                    )
        if "client.assume-role.arn" in self._spark:
            factory = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
            self._spark["client.factory"] = factory
            region = self._spark.get("client.region") or self._left.get("client.region", "")
            if not region:
                raise self._make_error(
                    "`s3.role-arn` or `client.role-arn` without a region, which Spark needs",
                    "set `s3.region` or `client.region`",
                )
            self._spark["client.assume-role.region"] = region
        for key in ("access-key-id", "secret-access-key", "session-token"):
            if f"client.{key}" in self._left:  # credentials of all of Amazon's services
                self._spark[f"s3.{key}"] = self._left.pop(f"client.{key}")

    def _translate_storage(self) -> None:
        """Translate how the files of the warehouse are addressed and opened."""
        virtual = self._left.pop("s3.force-virtual-addressing", None)
        is_given = "s3.path-style-access" in self._left
        if virtual is not None and not is_given:
            self._spark["s3.path-style-access"] = "false" if virtual.lower() == "true" else "true"
        elif "s3.endpoint" in self._left and not is_given:
            self._spark["s3.path-style-access"] = "true"  # as PyArrow does for other endpoints
        if "adls.sas-token" in self._left:
            self._spark[f"adls.sas-token.{self._find_adls_host()}"] = self._left.pop(
                "adls.sas-token"
            )
        scheme = self._left.get("warehouse", "").partition("://")[0]
        if self.kind != "rest" and scheme in _FILE_IO:
            self._spark["io-impl"] = _FILE_IO[scheme]

    def _find_adls_host(self) -> str:
        """Return the host of the storage account, by which Java finds the account's token."""
        place = self._left.get("warehouse", "").partition("://")[2].partition("/")[0]
        account = self._spark.get("adls.auth.shared-key.account.name", "")
        host = place.rpartition("@")[2] if "@" in place else account and account + _ADLS_HOST
        if not host:
            raise self._make_error(
                "`adls.sas-token` without an account, which Spark needs",
                "set `adls.account-name`, or name the account in `warehouse`, such as "
                f"abfss://container@account{_ADLS_HOST}/lake",
            )
        return host

    def _validate_no_passwords(self) -> None:
        """Check that no address has a password: Spark shows addresses, it hides values by key."""
        shown = [k for k, v in self._left.items() if k != "uri" or self.kind != "sql"]
        found = sorted(
            k
            for k in shown
            if has_password(self._left[k])
            or (_ADDRESS.search(k) and has_bare_password(self._left[k]))
        )
        if found:
            raise self._make_error(
                f"a password in the address of {', '.join(found)}, which Spark would show",
                "write login and password in fields of their own; a proxy with a password cannot "
                "be used by Spark",
            )

    def _make_error(self, facts: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"{self._connection}: {facts}", next_step)
