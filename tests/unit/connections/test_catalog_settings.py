"""A catalog connection reaches PyIceberg and Spark alike, or a setting is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.connections.catalog_settings import complete_properties, read_type, to_spark_catalog
from frazil.errors import ConfigurationError
from frazil.iceberg.catalog import require_branches

REST = {"type": "rest", "uri": "https://c"}
GLUE = {"type": "glue"}
JDBC = "org.apache.iceberg.jdbc.JdbcCatalog"
DELEGATION = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
ADLS = "a.dfs.core.windows.net"
ARN = "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake"


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("sqlite:////x/c.db", {"uri": "jdbc:sqlite:file:/x/c.db"}),
        ("postgresql://h/db", {"uri": "jdbc:postgresql://h/db"}),
        (
            "postgresql+psycopg2://me:p%40ss@h:5433/db?sslmode=verify-full&sslrootcert=/ca.pem",
            {
                "uri": "jdbc:postgresql://h:5433/db?sslmode=verify-full&sslrootcert=/ca.pem",
                "jdbc.user": "me",
                "jdbc.password": "p@ss",
            },
        ),
        (
            "postgresql://h/db?sslkey=/k&sslpassword=s3cret",
            {"uri": "jdbc:postgresql://h/db?sslkey=/k", "jdbc.sslpassword": "s3cret"},
        ),
        (
            "postgresql://me@[::1]:5433/db?connect_timeout=3&target_session_attrs=read-write",
            {
                "uri": "jdbc:postgresql://[::1]:5433/db?connectTimeout=3&targetServerType=primary",
                "jdbc.user": "me",
            },
        ),
        (
            "mysql+pymysql://me:s3cret@h:3306/db?charset=utf8mb4",
            {
                "uri": "jdbc:mysql://h:3306/db?characterEncoding=UTF-8",
                "jdbc.user": "me",
                "jdbc.password": "s3cret",
            },
        ),
    ],
)
def test_an_address_of_a_database_becomes_jdbcs(uri: str, options: dict[str, str]) -> None:
    found = to_spark_catalog("c", {"type": "sql", "uri": uri})

    assert found == {"catalog-impl": JDBC, "jdbc.schema-version": "V1", **options}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"token": "t"}, {"token": "t"}),
        (
            {
                "credential": "id:secret",
                "scope": "PRINCIPAL_ROLE:ALL",
                "oauth2-server-uri": "https://id/token",
                "audience": "a",
            },
            {
                "credential": "id:secret",
                "scope": "PRINCIPAL_ROLE:ALL",
                "oauth2-server-uri": "https://id/token",
                "audience": "a",
                "token-exchange-enabled": "false",
            },
        ),
        ({"header.X-Tenant": "t", "warehouse": "w"}, {"header.X-Tenant": "t", "warehouse": "w"}),
        (
            {
                "rest.sigv4-enabled": "true",
                "rest.signing-name": "glue",
                "rest.signing-region": "eu-west-1",
                "client.access-key-id": "k",
                "client.secret-access-key": "s",
            },
            {
                "rest.auth.type": "sigv4",
                "rest.auth.sigv4.delegate-auth-type": "none",
                "rest.signing-name": "glue",
                "rest.signing-region": "eu-west-1",
                "rest.access-key-id": "k",
                "rest.secret-access-key": "s",
                "s3.access-key-id": "k",
                "s3.secret-access-key": "s",
            },
        ),
        (
            {"s3.signer": "S3V4RestSigner", "s3.signer.uri": "https://signer"},
            {"s3.remote-signing-enabled": "true", "signer.uri": "https://signer"},
        ),
    ],
    ids=["token", "OAuth 2", "header", "SigV4", "remote signing"],
)
def test_a_rest_catalog_is_opened_in_the_same_way(
    given: dict[str, str], options: dict[str, str]
) -> None:
    found = to_spark_catalog("c", REST | given)

    assert found == {"type": "rest", "uri": "https://c", **DELEGATION, **options}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (
            {"s3.region": "eu", "s3.access-key-id": "k", "s3.secret-access-key": "s"},
            {"client.region": "eu", "s3.access-key-id": "k", "s3.secret-access-key": "s"},
        ),
        (
            {"s3.endpoint": "http://m:9000"},
            {"s3.endpoint": "http://m:9000", "s3.path-style-access": "true"},
        ),
        (
            {"s3.endpoint": "http://m:9000", "s3.force-virtual-addressing": "true"},
            {"s3.endpoint": "http://m:9000", "s3.path-style-access": "false"},
        ),
        ({"s3.path-style-access": "false"}, {"s3.path-style-access": "false"}),
        (
            {"s3.role-arn": "arn:r", "s3.role-session-name": "me", "s3.region": "eu"},
            {
                "client.region": "eu",
                "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
                "client.assume-role.arn": "arn:r",
                "client.assume-role.session-name": "me",
                "client.assume-role.region": "eu",
            },
        ),
        (
            {"gcs.project-id": "p", "gcs.oauth2.token": "t"},
            {"gcs.project-id": "p", "gcs.oauth2.token": "t"},
        ),
        (
            {"adls.account-name": "a", "adls.account-key": "k"},
            {
                "adls.auth.shared-key.account.name": "a",
                "adls.auth.shared-key.account.key": "k",
            },
        ),
        (
            {"adls.account-name": "a", "adls.sas-token": "s"},
            {"adls.auth.shared-key.account.name": "a", f"adls.sas-token.{ADLS}": "s"},
        ),
        (
            {"adls.sas-token": "s", "warehouse": f"abfss://c@{ADLS}/lake"},
            {
                f"adls.sas-token.{ADLS}": "s",
                "warehouse": f"abfss://c@{ADLS}/lake",
                "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
            },
        ),
        ({"s3.connect-timeout": "5", "py-io-impl": "x"}, {}),
    ],
)
def test_storage_is_reached_in_the_same_way(given: dict[str, str], options: dict[str, str]) -> None:
    assert to_spark_catalog("c", GLUE | given) == {"type": "glue", **options}


@pytest.mark.parametrize(
    ("scheme", "files"),
    [
        ("s3", S3_FILES),
        ("gs", "org.apache.iceberg.gcp.gcs.GCSFileIO"),
        ("abfss", "org.apache.iceberg.azure.adlsv2.ADLSFileIO"),
        ("file", None),
    ],
)
def test_a_warehouse_chooses_its_files(scheme: str, files: str | None) -> None:
    given = {"type": "sql", "uri": "sqlite:////c.db", "warehouse": f"{scheme}://w/x"}

    assert to_spark_catalog("c", given).get("io-impl") == files


def test_s3_tables_follow_from_their_arn() -> None:
    given = {"type": "s3tables", "warehouse": ARN}

    assert complete_properties(given) == {
        "type": "rest",
        "uri": "https://s3tables.eu-west-1.amazonaws.com/iceberg",
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": "eu-west-1",
        "s3.region": "eu-west-1",
        "warehouse": ARN,
    }
    found = to_spark_catalog("c", given)
    assert found["type"] == "rest"
    assert found["rest.auth.type"] == "sigv4"
    assert found["client.region"] == "eu-west-1"
    with pytest.raises(ConfigurationError, match="needs the ARN of a table bucket"):
        complete_properties(given | {"warehouse": "s3://lake"})


@pytest.mark.parametrize(
    ("given", "reason", "step"),
    [
        (REST | {"scop": "x"}, "settings that Spark would not get: scop", "`spark.NAME`"),
        (REST | {"ssl.cabundle": "/ca"}, "ssl.cabundle", "`pyiceberg.NAME`"),
        (REST | {"s3.sse.type": "kms"}, "s3.sse.type", "`spark.NAME`"),
        (GLUE | {"glue.access-key-id": "x"}, "glue.access-key-id", "AWS_ACCESS_KEY_ID"),
        (GLUE | {"uri": "http://c"}, "uri", "`pyiceberg.NAME`"),
        (GLUE | {"adls.client-secret": "x"}, "adls.client-secret", "`pyiceberg.NAME`"),
        ({"type": "nessie", "uri": "http://c"}, "its catalog type is not supported", "sql, rest"),
        (
            {"type": "sql", "uri": "oracle://h/db"},
            "names the database 'oracle', for which Spark has no catalog",
            "sqlite, postgresql or mysql",
        ),
        (
            {"type": "sql", "uri": "postgresql://h/db?gssencmode=require"},
            "options of its `uri` that Spark's driver would not get: gssencmode",
            "use only sslmode",
        ),
        (
            GLUE | {"s3.region": "a", "glue.region": "b"},
            "`glue.region` and another setting both give Spark's `client.region`",
            "remove one",
        ),
    ],
)
def test_what_spark_would_not_get_is_refused_by_name(
    given: dict[str, str], reason: str, step: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        to_spark_catalog("iceberg_default", given)

    assert "connection 'iceberg_default': " in caught.value.facts
    assert reason in caught.value.facts
    assert step in caught.value.next_step


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"uri": "https://c"}, "rest"),
        ({"uri": "thrift://h:9083"}, "hive"),
        ({"uri": "postgresql+psycopg2://h/db"}, "sql"),
        ({"uri": "https://c", "type": "glue"}, "glue"),
        ({"uri": "https://c", "wrapped.type": "sql"}, "sql"),
    ],
)
def test_a_type_is_inferred_from_the_address(given: dict[str, str], kind: str) -> None:
    assert read_type(given) == kind


KEYS = st.one_of(
    st.sampled_from(["token", "scope", "s3.region", "s3.endpoint", "client.role-arn", "echo"]),
    st.sampled_from(["glue.id", "gcs.project-id", "header.x", "s3.sse.key", "prefix", "uri"]),
    st.from_regex(r"(spark\.|pyiceberg\.)?[a-z]{2,5}[.-][a-z]{2,5}", fullmatch=True),
)


@given(
    given=st.dictionaries(KEYS, st.from_regex(r"v[0-9]{9}", fullmatch=True), max_size=5),
    kind=st.sampled_from(["rest", "glue", "hive"]),
)
def test_no_setting_is_dropped_silently(given: dict[str, str], kind: str) -> None:
    refused = ""
    try:
        found = to_spark_catalog("c", given | {"type": kind})
    except ConfigurationError as error:
        found, refused = {}, f"{error.facts} {error.next_step}"
    if refused:
        assert any(key in refused for key in given)
        return
    for key, value in given.items():
        is_python = key.startswith("pyiceberg.") or key == "echo"
        assert (value in found.values()) is not is_python


def test_nessie_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigurationError, match="is Nessie, which ignores the branches"):
        require_branches("lake", {"uri": "http://c", "nessie.is-nessie-catalog": "true"})

    require_branches("lake", {"uri": "http://c"})
