"""One connection serves librdkafka and Java: each setting reaches both, or is refused by name."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import ConfigurationError
from frazil.kafka.client_settings import (
    JAVA_PREFIX,
    LIBRDKAFKA_ONLY,
    LIBRDKAFKA_PREFIX,
    MSK_IAM,
    RENAMED,
    SAME,
    SET_BY_FRAZIL,
    to_librdkafka,
    to_spark_options,
    translate_settings,
)
from frazil.kafka.cluster import KafkaLog

OAUTH = "org.apache.kafka.common.security.oauthbearer"
BROKERS = {"bootstrap.servers": "k:9093"}
LOGIN = {"sasl.username": "jane", "sasl.password": 'a"b\\c\nd'}
OIDC = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "s3cret",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example.org/token",
}
KERBEROS = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.principal": "frazil@EXAMPLE.ORG"}
IAM = {"sasl.mechanism": MSK_IAM, "aws.region": "eu-west-1"}


def java(config: Mapping[str, str]) -> dict[str, str]:
    """Translate for Java; the brokers are always the same."""
    options = to_spark_options(BROKERS | dict(config))
    assert options.pop("kafka.bootstrap.servers") == "k:9093"
    return {key.removeprefix("kafka."): value for key, value in options.items()}


def jaas(config: Mapping[str, str]) -> str:
    return java({"security.protocol": "SASL_SSL", **config})["sasl.jaas.config"]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({"client.rack": "zone-1"}, {"client.rack": "zone-1"}),
        ({"log_level": "0", "debug": "all"}, {}),
        ({"socket.timeout.ms": "5"}, {"request.timeout.ms": "5"}),
        ({"java.max.poll.records": "5000"}, {"max.poll.records": "5000"}),
        ({"librdkafka.ssl.curves.list": "P-256"}, {}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        (
            {"security.protocol": "SSL", "java.ssl.truststore.location": "/t.jks"},
            {"security.protocol": "SSL", "ssl.truststore.location": "/t.jks"},
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
        ),
        ({"group.id": "mine", "acks": "all"}, {}),
    ],
)
def test_java_gets(config: dict[str, str], options: dict[str, str]) -> None:
    assert java(config) == options


@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_login_becomes_jaas_that_no_password_can_leave(
    key: str, mechanism: str, module: str
) -> None:
    options = java({"security.protocol": "SASL_SSL", key: mechanism, **LOGIN})

    assert (options["sasl.mechanism"], options["security.protocol"]) == (mechanism, "SASL_SSL")
    assert options["sasl.jaas.config"] == (
        f"org.apache.kafka.common.security.{module} required "
        'username="jane" password="a\\"b\\\\c\\nd";'
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {**OIDC, "sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "a=1,b=2"},
            (
                f'{OAUTH}.OAuthBearerLoginModule required clientId="me" clientSecret="s3cret" '
                'scope="kafka" extension_a="1" extension_b="2";'
            ),
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": "principal=jane scope=a,b lifeSeconds=60",
            },
            (
                f'{OAUTH}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="jane" '
                'unsecuredLoginListClaim_scope=",a,b" unsecuredLoginScopeClaimName="scope" '
                'unsecuredLoginLifetimeSeconds="60";'
            ),
        ),
        (
            {**KERBEROS, "sasl.kerberos.keytab": "/k.keytab"},
            (
                'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" '
                'storeKey="true" keyTab="/k.keytab" principal="frazil@EXAMPLE.ORG";'
            ),
        ),
        (
            KERBEROS,
            (
                'com.sun.security.auth.module.Krb5LoginModule required useTicketCache="true" '
                'principal="frazil@EXAMPLE.ORG";'
            ),
        ),
        (
            {"sasl.mechanism": "PLAIN", **LOGIN, "java.sasl.jaas.config": "mine"},
            "mine",
        ),
    ],
    ids=["OIDC", "unsecured tokens", "keytab", "ticket cache", "Java's own line"],
)
def test_each_mechanism_has_its_jaas_line(config: dict[str, str], line: str) -> None:
    assert jaas(config) == line


def test_oidc_and_kerberos_have_settings_beside_the_jaas_line() -> None:
    oidc = java({"security.protocol": "SASL_SSL", **OIDC})
    kerberos = {"sasl.kerberos.service.name": "broker", **KERBEROS}

    assert oidc["sasl.login.callback.handler.class"] == f"{OAUTH}.OAuthBearerLoginCallbackHandler"
    assert oidc["sasl.oauthbearer.token.endpoint.url"] == "https://id.example.org/token"
    options = java({"security.protocol": "SASL_PLAINTEXT", **kerberos})
    assert options["sasl.kerberos.service.name"] == "broker"


def test_amazons_iam_signs_tokens_for_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def sign(region: str) -> tuple[str, int]:
        return f"token of {region}", 61_000

    provider = SimpleNamespace(generate_auth_token=sign)
    module = SimpleNamespace(MSKAuthTokenProvider=provider)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)

    config = {"bootstrap.servers": "k:9098", "security.protocol": "SASL_SSL", **IAM}
    settings = translate_settings(config)

    native = dict(settings.librdkafka)
    assert native.pop("oauth_cb")("") == ("token of eu-west-1", 61.0)
    assert native == {
        "bootstrap.servers": "k:9098",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    assert settings.java["sasl.mechanism"] == "AWS_MSK_IAM"
    assert settings.java["sasl.jaas.config"] == (
        "software.amazon.msk.auth.iam.IAMLoginModule required;"
    )
    assert settings.java["sasl.client.callback.handler.class"] == (
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    )


SASL = {"security.protocol": "SASL_SSL"}
TLS = {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("config", "reason", "step"),
    [
        ({"max.pol.records": "1"}, "unknown settings: max.pol.records", "`java.NAME`"),
        ({"fetch.min.byte": "1"}, "fetch.min.byte", "write `fetch.min.bytes` instead"),
        (
            {"sasl.jaas.config": "x", **SASL, "sasl.mechanism": "PLAIN", **LOGIN},
            "unknown settings: sasl.jaas.config",
            "set `sasl.username` and `sasl.password`",
        ),
        ({"ssl.truststore.location": "/t"}, "ssl.truststore.location", "`ssl.ca.location`"),
        ({"sasl.mechanism": "PLAIN", **LOGIN}, "no effect: sasl.mechanism, sasl.pass", "set the"),
        ({"ssl.ca.pem": "x"}, "PLAINTEXT these settings have no effect: ssl.ca.pem", "set the"),
        ({**SASL, **KERBEROS, **LOGIN}, "GSSAPI these settings have no effect: sasl.pa", "set"),
        ({**TLS, "sasl.username": "x"}, "SSL these settings have no effect: sasl.user", "set"),
        (
            {"security.protocol": "TLS"},
            "protocol is unknown",
            "SASL_PLAINTEXT, SASL_SSL, SSL",
        ),
        ({**SASL, "sasl.mechanism": "DIGEST"}, "sasl.mechanism is not supported", "PLAIN, SCRAM"),
        ({**SASL, "sasl.mechanism": "PLAIN"}, "PLAIN needs `sasl.username`", "or the connection's"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "no source of tokens", "to `oidc`"),
        ({**SASL, **OIDC, "sasl.oauthbearer.grant.type": "jwt"}, "oauthbearer.grant.type", "java."),
        ({**SASL, "sasl.mechanism": MSK_IAM}, "AWS_MSK_IAM needs `aws.region`", "set it"),
        ({**SASL, **IAM}, "needs the package aws-msk-iam-sasl-signer-python", "install it"),
        (
            {**TLS, "enable.ssl.certificate.verification": "false"},
            "Spark's Java client cannot do",
            "`ssl.ca.location`",
        ),
        ({**TLS, "ssl.cipher.suites": "X"}, "unknown settings: ssl.cipher.suites", "librdkafka."),
        (
            {"socket.timeout.ms": "1", "request.timeout.ms": "2"},
            "`socket.timeout.ms` and `request.timeout.ms` are two names of one setting",
            "remove one",
        ),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "X"}, "two names", "remove one"),
    ],
)
def test_a_setting_that_one_client_would_not_get_is_refused_by_name(
    config: dict[str, str], reason: str, step: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        translate_settings(BROKERS | config)

    assert caught.value.facts.startswith("Kafka at k:9093: ")
    assert reason in caught.value.facts
    assert step in caught.value.next_step


def test_what_java_alone_knows_does_not_reach_librdkafka() -> None:
    given: dict[str, str | int | float | bool] = {
        "bootstrap.servers": "k:9092",
        "java.max.poll.records": "5000",
    }

    # librdkafka itself refuses what it does not know.
    with pytest.raises(KafkaException, match=r"java\.max\.poll\.records"):
        AdminClient(given)
    assert AdminClient(to_librdkafka({k: str(v) for k, v in given.items()})) is not None
    assert KafkaLog({k: str(v) for k, v in given.items()}) is not None


def test_settings_of_consumers_that_share_the_connection_are_named_as_unused() -> None:
    config = {**BROKERS, "group.id": "mine", "acks": "all", "auto.offset.reset": "earliest"}

    assert translate_settings(config).unused == ("acks", "auto.offset.reset", "group.id")


def test_kerberos_names_the_build_that_it_needs() -> None:
    with pytest.raises(ConfigurationError, match="No provider for SASL mechanism GSSAPI") as caught:
        KafkaLog({**BROKERS, "security.protocol": "SASL_PLAINTEXT", **KERBEROS})

    assert "--no-binary confluent-kafka" in caught.value.next_step


@pytest.mark.parametrize("key", sorted((SAME | RENAMED.keys()) - {"bootstrap.servers"}))
def test_librdkafka_knows_each_setting_that_both_clients_get(key: str) -> None:
    values = {"client.id": "me", "client.rack": "r", "client.dns.lookup": "use_all_dns_ips"}
    config = {**BROKERS, key: values.get(key, "true" if key == "check.crcs" else "1000")}

    assert AdminClient({"log_level": 0, **to_librdkafka(config)}) is not None
    assert java({key: config[key]}) == {RENAMED.get(key, key): config[key]}


NAMES = st.one_of(
    st.sampled_from(sorted(SAME | RENAMED.keys() | LIBRDKAFKA_ONLY | SET_BY_FRAZIL)),
    st.sampled_from([*LOGIN, *OIDC, *KERBEROS, *IAM, "security.protocol", "ssl.ca.pem"]),
    st.sampled_from(["ssl.keystore.type", "sasl.jaas.config", "acks", "linger.ms", "https.ca.pem"]),
    st.from_regex(r"(java\.|librdkafka\.)?[a-z]{1,6}\.[a-z]{1,6}", fullmatch=True),
)
PROTOCOLS = st.sampled_from(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])


@given(
    config=st.dictionaries(NAMES, st.from_regex(r"v[0-9]{12}", fullmatch=True), max_size=6),
    protocol=PROTOCOLS,
    mechanism=st.sampled_from(["PLAIN", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]),
)
def test_no_setting_is_dropped_silently(
    config: dict[str, str], protocol: str, mechanism: str
) -> None:
    """Each value reaches the clients that its table names, or the error names its key."""
    config = {**config, "bootstrap.servers": "k:9093", "security.protocol": protocol}
    if protocol.startswith("SASL"):
        config |= {"sasl.mechanism": mechanism}
        config |= LOGIN if mechanism in {"PLAIN", "SCRAM-SHA-512"} else {}
        config |= OIDC if mechanism == "OAUTHBEARER" else {}
    try:
        settings = translate_settings(config)
    except ConfigurationError as error:
        text = f"{error.facts} {error.next_step}"
        assert any(key in text or key.removesuffix(".pem") in text for key in config)
        return
    native, spark = str(dict(settings.librdkafka)), str(dict(settings.java))
    for key, value in config.items():
        if key in SET_BY_FRAZIL or key in settings.unused:
            assert key in settings.unused
        elif key.startswith(JAVA_PREFIX):
            assert value in spark
            assert key not in native
        elif key.startswith(LIBRDKAFKA_PREFIX) or key in LIBRDKAFKA_ONLY:
            assert value in native
        elif value.startswith("v"):
            assert value in native
            assert value in spark
    assert settings.java["security.protocol"] == protocol


def test_files_reach_java_by_content(tmp_path: Path) -> None:
    text = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(text)

    options = java({**TLS, "ssl.ca.location": str(tmp_path / "ca.pem")})

    assert options["ssl.truststore.type"] == "PEM"
    assert options["ssl.truststore.certificates"] == text
    assert java({**TLS, "ssl.ca.pem": text}) == options
