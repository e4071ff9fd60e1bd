"""Host, port and schema of a connection: each reaches the clients, or is refused by name."""

import json
from collections.abc import Callable

import pytest

from frazil.connections.clients import (
    find_catalog,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
)
from frazil.connections.lookup import find_connection, has_password
from frazil.errors import ConfigurationError, FrazilError
from frazil.spark.submit import list_masters, resolve_master

Fields = dict[str, object]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fields], str]:
    """Return the address that a client gets from a connection."""

    def find(client: str, fields: Fields) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(fields))
        match client:
            case "kafka":
                return find_kafka_config("c")["bootstrap.servers"]
            case "registry":
                return find_registry_config("c")["url"]
            case "connect":
                return find_spark_remote("c")
            case "submit":
                return resolve_master(find_connection("c"))
        found = find_catalog("c")
        return found.properties["uri"]

    return find


WEB = {"type": "rest", "warehouse": "lake"}
POSTGRES = "postgresql+psycopg2://"
SQL = {"type": "sql", "warehouse": "file:///lake"}


@pytest.mark.parametrize(
    ("client", "fields", "address"),
    [
        ("kafka", {"host": "k"}, "k:9092"),
        ("kafka", {"host": "k", "port": "9093"}, "k:9093"),
        ("kafka", {"host": "a,b", "port": 9093}, "a:9093,b:9093"),
        ("kafka", {"host": "a:1, b:2", "port": 9093}, "a:1,b:2"),
        ("kafka", {"host": "k:9093", "port": 9093}, "k:9093"),
        ("kafka", {"host": "::1", "port": 9093}, "[::1]:9093"),
        ("kafka", {"extra": {"bootstrap.servers": "[::1]:9093,k"}}, "[::1]:9093,k:9092"),
        ("kafka", {"extra": {"metadata.broker.list": "k:1"}}, "k:1"),
        ("registry", {"host": "r", "port": 8081}, "http://r:8081"),
        ("registry", {"host": "https://r:8081", "port": 8081}, "https://r:8081"),
        ("registry", {"host": "r", "port": 8081, "schema": "https"}, "https://r:8081"),
        ("registry", {"host": "https://r/path", "port": 8081}, "https://r:8081/path"),
        ("registry", {"host": "http://a:1,http://b:2"}, "http://a:1,http://b:2"),
        ("registry", {"host": "::1", "port": 8081}, "http://[::1]:8081"),
        ("connect", {"host": "s"}, "sc://s"),
        ("connect", {"host": "sc://s:15003", "port": 15003}, "sc://s:15003"),
        ("connect", {"host": "sc://s/;use_ssl=true", "port": 1}, "sc://s:1/;use_ssl=true"),
        ("connect", {"host": "::1", "port": 15003}, "sc://[::1]:15003"),
        ("submit", {"host": "spark://m", "port": 7077}, "spark://m:7077"),
        ("submit", {"host": "spark://m:7077", "port": 7077}, "spark://m:7077"),
        ("submit", {"host": "spark://a:1,b", "port": 2}, "spark://a:1,b:2"),
        ("submit", {"host": "spark://[::1]:7077"}, "spark://[::1]:7077"),
        ("submit", {"host": "k8s://https://k:6443"}, "k8s://https://k:6443"),
        ("submit", {"conn_type": "spark", "host": "yarn"}, "yarn"),
        (
            "catalog",
            {"host": "https://c.example", "port": 8181, "extra": WEB},
            "https://c.example:8181",
        ),
        (
            "catalog",
            {"conn_type": "https", "host": "c", "port": 1, "schema": "api/catalog", "extra": WEB},
            "https://c:1/api/catalog",
        ),
        (
            "catalog",
            {"host": "thrift://h", "port": 9083, "extra": WEB | {"type": "hive"}},
            "thrift://h:9083",
        ),
        (
            "catalog",
            {
                "host": "postgresql+psycopg2://db",
                "port": 5432,
                "schema": "cat",
                "login": "me",
                "password": "p@/#[x",
                "extra": SQL,
            },
            "postgresql+psycopg2://me:p%40%2F%23%5Bx@db:5432/cat",
        ),
        ("catalog", {"host": "https://c", "extra": WEB | {"uri": "https://c"}}, "https://c"),
        ("catalog", {"host": "sqlite:////x/c.db", "extra": SQL}, "sqlite:////x/c.db"),
        (
            "catalog",
            {"host": f"{POSTGRES}h?sslmode=require", "port": 5, "schema": "d", "extra": SQL},
            f"{POSTGRES}h:5/d?sslmode=require",
        ),
        ("catalog", {"host": f"{POSTGRES}h:5/d", "schema": "d", "extra": SQL}, f"{POSTGRES}h:5/d"),
        (
            "catalog",
            {"host": "h", "port": 5, "schema": "d", "extra": SQL | {"uri": f"{POSTGRES}h:5/d"}},
            f"{POSTGRES}h:5/d",
        ),
        *(
            ("catalog", {**fields, "extra": WEB | {"uri": "http://c:1/p/"}}, "http://c:1/p/")
            for fields in (
                {"host": "c"},
                {"host": "c", "port": 1, "schema": "p"},
                {"host": "http://c:1"},
                {"host": "http://c:1/p"},
            )
        ),
        ("catalog", {"host": "https://c/", "extra": WEB | {"uri": "https://c"}}, "https://c"),
        ("kafka", {"extra": {"bootstrap.servers": "a:1,, b:2,"}}, "a:1,b:2"),
        ("kafka", {"host": "a:1,", "team_name": "t", "conn_id": "c"}, "a:1"),
        ("connect", {"host": "sc://s:1;token=a"}, "sc://s:1/;token=a"),
    ],
)
def test_an_address_is_whole(
    read: Callable[[str, Fields], str], client: str, fields: Fields, address: str
) -> None:
    assert read(client, fields) == address


@pytest.mark.parametrize(
    ("client", "fields", "reason"),
    [
        *(
            (client, {"host": "h", "port": port}, "its port")
            for client in ("kafka", "registry", "connect", "submit")
            for port in ("x", True, [1], 1.5, -1, "9" * 6)
        ),
        *(
            (client, {"host": host, "extra": WEB if client == "catalog" else {}}, "not a host and")
            for client in ("kafka", "registry", "connect", "catalog")
            for host in (
                "http://h:99999",
                "http://h:abc",
                "http://[::1",
                "http://h h",
                "http://['h']",
            )
        ),
        ("kafka", {"host": "k:1", "port": 2}, "has the port 1, and its port is 2"),
        ("kafka", {"host": "k", "schema": "x"}, "its schema would have no effect"),
        ("kafka", {"host": "k", "username": "u"}, "unknown fields: username"),
        ("registry", {"host": "r", "schema": "ftp"}, "its schema would have no effect"),
        ("registry", {"host": "http://r", "schema": "https"}, "its schema would have no effect"),
        ("registry", {"host": "r", "extra": {"url": "http://s"}}, "its host and `url`"),
        ("registry", {"host": "r", "password": "p"}, "a password without a login"),
        ("registry", {"host": "r", "login": "u", "extra": {"token": "t"}}, "name two users"),
        (
            "registry",
            {"host": "r", "login": "u", "extra": {"basic.auth.user.info": "v:w"}},
            "name two users",
        ),
        ("connect", {"host": "s", "schema": "x"}, "its schema would have no effect"),
        ("submit", {"host": "spark://m", "login": "u"}, "its login would have no effect"),
        ("submit", {"host": "spark://m", "schema": "x"}, "its schema would have no effect"),
        ("catalog", {"host": "c.example", "extra": WEB}, "its host has no scheme"),
        ("catalog", {"port": 1, "extra": WEB | {"uri": "http://c"}}, "its port would have no"),
        *(
            ("catalog", {**fields, "extra": WEB | {"uri": "http://c:1/p"}}, "another address")
            for fields in (
                {"host": "http://d"},
                {"host": "c", "port": 2},
                {"host": "http://c", "port": 2},
                {"host": "c", "schema": "q"},
                {"host": "http://c:1/pp"},
            )
        ),
        ("catalog", {"host": "c", "port": 1, "extra": WEB | {"uri": "http://c"}}, "another"),
        ("catalog", {"extra": WEB | {"uri": "https://u:planted@c"}}, "a password in the address"),
        (
            "catalog",
            {"extra": WEB | {"uri": "https://c", "s3.proxy-uri": "http://u:planted@p"}},
            "a password in the address of s3.proxy-uri",
        ),
        ("catalog", {"extra": WEB | {"uri": "http://c", "catalog": "spark_catalog"}}, "name"),
        (
            "catalog",
            {"extra": SQL | {"uri": "postgresql://u:planted@h:x/db"}},
            "not the address of a",
        ),
        ("catalog", {"extra": {"type": "glue", "client.access-key-id": "a"}}, "client.access-key"),
        ("catalog", {"extra": WEB | {"uri": "http://c", "adls.sas-token": "s"}}, "an account"),
        (
            "catalog",
            {"extra": WEB | {"uri": "http://c", "adls.connection-string": "s"}},
            "adls.connection-string",
        ),
        ("catalog", {"host": f"{POSTGRES}h:5/d", "schema": "e", "extra": SQL}, "`schema` differ"),
        ("catalog", {"host": f"{POSTGRES}h:5/d", "port": 6, "extra": SQL}, "`port` differ"),
        ("catalog", {"host": "thrift://h", "schema": "d", "extra": WEB}, "its schema would have"),
        ("catalog", {"host": "https://h/a", "schema": "d", "extra": WEB}, "its schema would have"),
        (
            "catalog",
            {"extra": SQL | {"uri": f"{POSTGRES}h/d?sslmode=a&sslmode=b"}},
            "that are there twice: sslmode",
        ),
        ("kafka", {"host": "k", "uri": "kafka://k"}, "unknown fields: uri"),
        ("catalog", {"login": "u", "extra": SQL}, "not the address of a database"),
        ("catalog", {"extra": {"type": "dynamodb", "warehouse": "s3://w"}}, "not supported"),
    ],
)
def test_what_would_be_lost_is_refused(
    read: Callable[[str, Fields], str], client: str, fields: Fields, reason: str
) -> None:
    with pytest.raises(FrazilError) as refused:
        read(client, fields)

    assert isinstance(refused.value, ConfigurationError), refused.value
    assert reason in refused.value.facts
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("spark://a:1,b", [("a", 1), ("b", 7077)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("k8s://https://k", [("k", 443)]),
        ("k8s://http://k", [("k", 80)]),
        ("yarn", []),
    ],
)
def test_masters_are_listed(master: str, found: list[tuple[str, int]]) -> None:
    assert list_masters(master) == found


@pytest.mark.parametrize(
    "extra",
    [
        {"client.role-arn": "arn:aws:iam::111122223333:role/f@prod", "client.region": "r"},
        {"scope": "PRINCIPAL_ROLE:lake@prod"},
        {"audience": "urn:app:lake@prod"},
        {"warehouse": "project:lake@v2"},
        {"warehouse": "file:/home/jane@corp.example/lake"},
    ],
)
def test_an_at_sign_outside_addresses_is_no_password(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]
) -> None:
    document = {"extra": WEB | {"uri": "https://c"} | extra}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(document))

    assert find_catalog("c").spark_conf()


@pytest.mark.parametrize("key", ["uri", "s3.endpoint", "s3.proxy-uri", "oauth2-server-uri"])
def test_a_password_before_a_host_without_a_scheme_is_refused(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    extra = WEB | {"uri": "https://c", key: "u:planted@h/api"}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"extra": extra}))

    with pytest.raises(ConfigurationError, match=f"a password in the address of {key}") as caught:
        find_catalog("c").spark_conf()
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("password", ["p#x", "p/x", "p[x", "p%2Fx", "p?x", "p:x"])
def test_a_password_in_an_address_reaches_java_as_python_reads_it(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    uri = f"postgresql+psycopg2://u:{password}@h/db?application_name=a%26sslmode%3Ddisable"
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"extra": SQL | {"uri": uri}}))

    found = find_catalog("c").spark_conf()

    assert found["spark.sql.catalog.lake.uri"] == (
        "jdbc:postgresql://h/db?ApplicationName=a%26sslmode%3Ddisable"
    )
    assert found["spark.sql.catalog.lake.jdbc.password"] == password.replace("%2F", "/")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://u:p@h", True),
        ("postgresql://u:p/x@h/d", True),
        ("hdfs://nn:8020/user/me@REALM/w", False),
        ("https://h:80?at=me@x", False),
        ("https://me@h:80/", False),
    ],
)
def test_a_password_in_an_address_is_noticed(address: str, *, found: bool) -> None:
    assert has_password(address) is found
