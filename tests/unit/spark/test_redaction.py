"""Which settings and texts Spark redacts, and that all shipped settings files do it alike."""

import re
from pathlib import Path

import pytest

from frazil.connections.lookup import is_secret
from frazil.spark.redaction import REDACTION

STACK = Path(__file__).parents[3] / "include" / "stack"


@pytest.mark.parametrize("name", ["spark-defaults.conf", "compose/spark-defaults.conf"])
def test_the_shipped_settings_redact(name: str) -> None:
    lines = (STACK / name).read_text().splitlines()

    assert [
        f"{key} {value}" for key, value in REDACTION.items() if f"{key} {value}" not in lines
    ] == []
    assert not any("\\" in value for value in REDACTION.values())


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("kafka.sasl.jaas.config", True),
        ("kafka.ssl.keystore.key", True),
        ("spark.sql.catalog.lake.jdbc.password", True),
        ("spark.sql.catalog.lake.credential", True),
        ("spark.sql.catalog.lake.token", True),
        ("spark.sql.catalog.lake.s3.secret-access-key", True),
        ("spark.sql.catalog.lake.header.X-Tenant", True),
        ("spark.sql.catalog.lake.adls.auth.shared-key.account.key", True),
        ("spark.sql.catalog.lake.adls.sas-token.account", True),
        ("spark.sql.catalog.lake.uri", False),
        ("kafka.bootstrap.servers", False),
        ("kafka.ssl.truststore.certificates", False),
    ],
)
def test_a_secret_setting_is_hidden(key: str, hidden: bool) -> None:  # noqa: FBT001
    text = f'options {{\n  key: "{key}"\n  value: "s3cret \\"x\\" end"\n}}\nisolation: "keeps"'

    assert bool(re.search(REDACTION["spark.redaction.regex"], key)) is hidden
    redacted = re.sub(REDACTION["spark.sql.redaction.string.regex"], "***", text)
    assert ("s3cret" in redacted, "end" in redacted) == (not hidden, not hidden)
    assert 'isolation: "keeps"' in redacted


def test_what_is_secret_here_is_hidden_there() -> None:
    names = ("password", "token", "credential", "access-key", "jaas", "cookie", "api-key")

    assert all(is_secret(name, "x") for name in names)
    assert all(re.search(REDACTION["spark.redaction.regex"], name) for name in names)
