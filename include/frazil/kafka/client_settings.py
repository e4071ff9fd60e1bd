"""Settings of one Kafka connection, translated for its two clients: librdkafka and Java.

A connection is written once, in librdkafka's names. Python uses librdkafka, Spark uses Kafka's Java
client. Each setting is passed to both, unless a table below limits it to one of them; an unknown
setting is an error that names it. `librdkafka.NAME` and `java.NAME` are passed to only one client.
"""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.errors import ConfigurationError
from frazil.kafka.pem_files import read_certificates, read_client_key

JAVA_PREFIX = "java."
LIBRDKAFKA_PREFIX = "librdkafka."

MSK_IAM = "AWS_MSK_IAM"
"""Amazon's mechanism for IAM; librdkafka reaches it by OAUTHBEARER with a signed token."""

SAME: frozenset[str] = frozenset(
    {
        *("bootstrap.servers", "client.id", "client.rack", "client.dns.lookup"),
        *("metadata.max.age.ms", "connections.max.idle.ms", "request.timeout.ms"),
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
        *("retry.backoff.ms", "retry.backoff.max.ms"),
        *("socket.connection.setup.timeout.ms", "check.crcs"),
        *("fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"),
    }
)
"""Settings with one name and one meaning in both clients."""

RENAMED: Mapping[str, str] = {
    "socket.timeout.ms": "request.timeout.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}
"""librdkafka's name → Java's name for the same setting."""

LIBRDKAFKA_ONLY: frozenset[str] = frozenset(
    {
        *("debug", "log_level", "log.connection.close", "log.queue", "log.thread.name"),
        *("statistics.interval.ms", "enable.random.seed", "allow.auto.create.topics"),
        *("socket.keepalive.enable", "socket.nagle.disable", "socket.max.fails"),
        *("broker.address.family", "broker.address.ttl"),
        *("api.version.request", "api.version.request.timeout.ms", "api.version.fallback.ms"),
        *("broker.version.fallback", "message.max.bytes", "receive.message.max.bytes"),
        *("max.in.flight", "max.in.flight.requests.per.connection", "metadata.recovery.strategy"),
        *("topic.metadata.refresh.interval.ms", "topic.metadata.refresh.fast.interval.ms"),
        *("topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms"),
        *("topic.blacklist", "queued.min.messages", "queued.max.messages.kbytes"),
        *("fetch.error.backoff.ms", "fetch.queue.backoff.ms", "coordinator.query.interval.ms"),
        *("sasl.kerberos.kinit.cmd", "client.software.name", "client.software.version"),
    }
)
"""Log output, buffers and timing of librdkafka, for which the Java client has no setting."""

SET_BY_FRAZIL: frozenset[str] = frozenset(
    {
        *("group.id", "group.instance.id", "group.protocol", "auto.offset.reset"),
        *("enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store"),
        *("enable.partition.eof", "isolation.level", "session.timeout.ms"),
        *("heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy"),
    }
)
"""Settings of consumers that share the connection; Frazil reads exact offsets, without a group."""

_PRODUCER = frozenset({"acks", "compression.type", "enable.idempotence", "linger.ms", "retries"})
"""Settings of producers that share the connection; Frazil writes nothing to Kafka."""

_OWN = frozenset({"aws.region", "aws.profile", "aws.role.arn", "aws.session.name"})
"""Settings of Frazil for Amazon's IAM, known to no client."""

_WITHOUT_EFFECT = SET_BY_FRAZIL | _PRODUCER | _OWN

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_OAUTH_CONFIG = "sasl.oauthbearer.config"
_IAM = "software.amazon.msk.auth.iam"
_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_SECURITY = (
    *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", _UNSECURED),
    *(_OAUTH_CONFIG, "sasl.oauthbearer.method", "sasl.oauthbearer.client.id"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"),
    *("sasl.oauthbearer.token.endpoint.url", "https.ca.location", "https.ca.pem"),
    *("sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab"),
    *("sasl.kerberos.min.time.before.relogin", "ssl.ca.location", "ssl.ca.pem"),
    *("ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"),
    *("ssl.key.password", "ssl.keystore.location", "ssl.keystore.password"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
)
"""Settings that the functions below translate."""


@dataclass(frozen=True)
class ClientSettings:
    """One connection's settings for each client.

    `unused` names settings of other consumers and producers that share the connection.
    """

    librdkafka: Mapping[str, Any]
    java: Mapping[str, str]
    unused: tuple[str, ...] = ()


def translate_settings(config: Mapping[str, str]) -> ClientSettings:
    """Translate a connection's settings for both clients.

    Raises:
        ConfigurationError: a setting is unknown, has no effect with the others, or would reach
            only one client; the error names it.
    """
    given = {k: v for k, v in config.items() if not k.startswith((JAVA_PREFIX, LIBRDKAFKA_PREFIX))}
    own_java = _select(config, JAVA_PREFIX)
    translation = _Translation(_unify_names(given), own_java)
    java = translation.run()
    unused = tuple(sorted(given.keys() & (SET_BY_FRAZIL | _PRODUCER)))
    native: dict[str, Any] = {k: v for k, v in given.items() if k not in _WITHOUT_EFFECT}
    if translation.mechanism == MSK_IAM:
        native = {k: v for k, v in native.items() if _ALIASES.get(k, k) != "sasl.mechanism"}
        native |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _sign_tokens(given)}
    native |= _select(config, LIBRDKAFKA_PREFIX)
    return ClientSettings(native, java | own_java, unused)


_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}


def _unify_names(given: Mapping[str, str]) -> dict[str, str]:
    """Replace second names of settings by their first.

    Raises:
        ConfigurationError: two names of one setting have different values.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, value in given.items():
        first = _ALIASES.get(name, name)
        meaning = RENAMED.get(first, first)
        if meaning in found and found[meaning][1] != value:
            raise ConfigurationError(
                f"Kafka at {given.get('bootstrap.servers', '?')}: `{found[meaning][0]}` and "
                f"`{name}` are two names of one setting, with different values",
                "remove one of them",
            )
        found[meaning] = (name, value)
    return {_ALIASES.get(name, name): value for name, value in given.items()}


def to_librdkafka(config: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for confluent-kafka's clients; see `translate_settings`."""
    return dict(translate_settings(config).librdkafka)


def to_spark_options(config: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source; see `translate_settings`."""
    return {f"kafka.{key}": value for key, value in translate_settings(config).java.items()}


def _select(config: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}


class _Translation:
    """One translation to Java: each rule removes the settings it handles; the rest is refused."""

    def __init__(self, given: Mapping[str, str], own_java: Mapping[str, str]) -> None:
        self._left = dict(given)
        self._own_java = own_java
        self._java: dict[str, str] = {}
        self._at = f"Kafka at {given.get('bootstrap.servers', '?')}"
        self.protocol = given.get("security.protocol", "PLAINTEXT").upper()
        self.mechanism = given.get("sasl.mechanism", "GSSAPI")

    def run(self) -> dict[str, str]:
        """Return Java's settings.

        Raises:
            ConfigurationError: a setting is left that no rule handles.
        """
        for key in list(self._left):
            if key in SAME or key in RENAMED:
                self._java[RENAMED.get(key, key)] = self._left.pop(key)
            elif key in LIBRDKAFKA_ONLY | SET_BY_FRAZIL | _PRODUCER:
                del self._left[key]
        if "security.protocol" in self._left:
            self._java["security.protocol"] = self.protocol
            del self._left["security.protocol"]
        if self.protocol not in _PROTOCOLS:
            raise self._make_error(
                "its security.protocol is unknown",
                f"use one of {', '.join(sorted(_PROTOCOLS))}",
            )
        if self.protocol.startswith("SASL_"):
            self._translate_login()
        if self.protocol.endswith("SSL"):
            self._translate_tls()
        self._validate_rest()
        return self._java

    def _translate_login(self) -> None:
        self._left.pop("sasl.mechanism", None)
        self._java["sasl.mechanism"] = self.mechanism
        if "sasl.jaas.config" in self._own_java:
            own = [k for k in self._left if k.startswith("sasl.") or k == _UNSECURED]
            for key in own:
                del self._left[key]
            return
        rules: dict[str, Callable[[], None]] = {
            **dict.fromkeys(_LOGIN_MODULES, self._translate_password),
            "OAUTHBEARER": self._translate_token,
            "GSSAPI": self._translate_kerberos,
            MSK_IAM: self._translate_iam,
        }
        if self.mechanism not in rules:
            raise self._make_error(
                "its sasl.mechanism is not supported",
                f"use one of {', '.join(rules)}",
            )
        rules[self.mechanism]()

    def _translate_password(self) -> None:
        options = {
            "username": self._require("sasl.username", "or the connection's login"),
            "password": self._require("sasl.password", "or the connection's password"),
        }
        self._set_jaas(_LOGIN_MODULES[self.mechanism], options)

    def _translate_token(self) -> None:
        method = self._left.pop("sasl.oauthbearer.method", "default").lower()
        if method == "oidc":
            self._translate_oidc()
        elif self._left.pop(_UNSECURED, "false").lower() == "true":
            claims = _read_claims(self._left.pop(_OAUTH_CONFIG, ""), self._make_error)
            self._set_jaas(f"{_OAUTH}.OAuthBearerLoginModule", claims)
        else:
            raise self._make_error(
                "sasl.mechanism OAUTHBEARER names no source of tokens",
                "set `sasl.oauthbearer.method` to `oidc` with `sasl.oauthbearer.client.id`, "
                "`.client.secret` and `.token.endpoint.url`",
            )

    def _translate_oidc(self) -> None:
        options = {
            "clientId": self._require("sasl.oauthbearer.client.id", "or the connection's login"),
            "clientSecret": self._require(
                "sasl.oauthbearer.client.secret", "or the connection's password"
            ),
        }
        scope = self._left.pop("sasl.oauthbearer.scope", "")
        options |= {"scope": scope} if scope else {}
        for pair in filter(None, self._left.pop("sasl.oauthbearer.extensions", "").split(",")):
            name, _, value = pair.strip().partition("=")
            options[f"extension_{name}"] = value
        authorities = read_certificates(self._left, "https.ca", self._at)
        if authorities:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
        url = self._require("sasl.oauthbearer.token.endpoint.url")
        self._java["sasl.oauthbearer.token.endpoint.url"] = url
        handler = f"{_OAUTH}.OAuthBearerLoginCallbackHandler"
        self._java["sasl.login.callback.handler.class"] = handler
        self._set_jaas(f"{_OAUTH}.OAuthBearerLoginModule", options)

    def _translate_kerberos(self) -> None:
        for key in ("sasl.kerberos.service.name", "sasl.kerberos.min.time.before.relogin"):
            if key in self._left:
                self._java[key] = self._left.pop(key)
        self._java.setdefault("sasl.kerberos.service.name", "kafka")
        keytab = self._left.pop("sasl.kerberos.keytab", "")
        options = {"useTicketCache": "true"}
        if keytab:
            options = {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab}
        principal = self._left.pop("sasl.kerberos.principal", "")
        options |= {"principal": principal} if principal else {}
        self._set_jaas("com.sun.security.auth.module.Krb5LoginModule", options)

    def _translate_iam(self) -> None:
        self._require("aws.region")
        options = {}
        for key, name in (
            ("aws.profile", "awsProfileName"),
            ("aws.role.arn", "awsRoleArn"),
            ("aws.session.name", "awsRoleSessionName"),
        ):
            if key in self._left:
                options[name] = self._left.pop(key)
        self._java["sasl.client.callback.handler.class"] = f"{_IAM}.IAMClientCallbackHandler"
        self._set_jaas(f"{_IAM}.IAMLoginModule", options)

    def _translate_tls(self) -> None:
        authorities = read_certificates(self._left, "ssl.ca", self._at)
        if authorities and "ssl.truststore.location" not in self._own_java:
            self._java["ssl.truststore.type"] = "PEM"
            self._java["ssl.truststore.certificates"] = authorities
        identity = read_client_key(self._left, self._at)
        if identity is not None and "ssl.keystore.location" not in self._own_java:
            self._java["ssl.keystore.type"] = "PEM"
            self._java["ssl.keystore.certificate.chain"] = identity.chain
            self._java["ssl.keystore.key"] = identity.key
        algorithm = self._left.pop("ssl.endpoint.identification.algorithm", None)
        if algorithm is not None:
            none = algorithm.lower() == "none"
            self._java["ssl.endpoint.identification.algorithm"] = "" if none else algorithm
        if self._left.get("enable.ssl.certificate.verification", "true").lower() != "true":
            raise self._make_error(
                "enable.ssl.certificate.verification is off, which Spark's Java client cannot do",
                "remove it, and set `ssl.ca.location` to the authority of the brokers' "
                "certificates",
            )
        self._left.pop("enable.ssl.certificate.verification", None)

    def _set_jaas(self, module: str, options: Mapping[str, str]) -> None:
        pairs = "".join(f' {name}="{_escape(value)}"' for name, value in options.items())
        self._java["sasl.jaas.config"] = f"{module} required{pairs};"

    def _require(self, key: str, otherwise: str = "") -> str:
        value = self._left.pop(key, "")
        if value:
            return value
        raise self._make_error(
            f"sasl.mechanism {self.mechanism} needs `{key}`",
            f"set it in the connection's extra {otherwise}".rstrip(),
        )

    def _validate_rest(self) -> None:
        """Raise if a setting is left: the error names all of them."""
        if not self._left:
            return
        known = {*SAME, *RENAMED, *LIBRDKAFKA_ONLY, *_SECURITY, *_OWN}
        names = sorted(self._left)
        idle = [name for name in names if name in known]
        unknown = [name for name in names if name not in known]
        facts = []
        if idle:
            how = f"security.protocol {self.protocol}"
            if self.protocol.startswith("SASL_"):
                how += f" and sasl.mechanism {self.mechanism}"
            facts.append(f"with {how} these settings have no effect: {', '.join(idle)}")
        if unknown:
            facts.append(f"unknown settings: {', '.join(unknown)}")
        raise self._make_error("; ".join(facts), _next_step(idle, unknown, sorted(known)))

    def _make_error(self, facts: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"{self._at}: {facts}", next_step)


def _next_step(idle: list[str], unknown: list[str], known: list[str]) -> str:
    steps = []
    if idle:
        steps.append("set the `security.protocol` and `sasl.mechanism` that they belong to")
    for name in unknown:
        close = difflib.get_close_matches(name, known, 1, 0.85)
        steps += [f"write `{close[0]}` instead of `{name}`"] if close else []
        if name in _JAVA_NAMES:
            steps.append(f"instead of `{name}` {_JAVA_NAMES[name]}")
    if unknown:
        steps.append(
            "write `java.NAME` for a setting of Spark's Java client alone, `librdkafka.NAME` for "
            "one of Python's client alone"
        )
    return "; ".join(steps) + ", or remove them"


_JAVA_NAMES: Mapping[str, str] = {
    "sasl.jaas.config": "set `sasl.username` and `sasl.password`",
    **dict.fromkeys(
        ("ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.type"),
        "set `ssl.ca.location` to a PEM file",
    ),
    **dict.fromkeys(
        ("ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.type"),
        "set `ssl.certificate.location` and `ssl.key.location`",
    ),
}
"""Settings of Java clients that are often pasted, and what to write instead."""


def _escape(text: str) -> str:
    """Escape a value for a quoted string of JAAS, which ends at a quote or a line's end."""
    for sign, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(sign, escaped)
    return text


def _read_claims(text: str, make_error: Callable[[str, str], ConfigurationError]) -> dict[str, str]:
    """Translate `sasl.oauthbearer.config` of an unsecured token, as for tests, to JAAS options."""
    words = dict(word.partition("=")[::2] for word in text.split())
    claim, scope_claim = (
        words.pop("principalClaimName", "sub"),
        words.pop("scopeClaimName", "scope"),
    )
    options = {f"unsecuredLoginStringClaim_{claim}": words.pop("principal", "")}
    if claim != "sub":
        options["unsecuredLoginPrincipalClaimName"] = claim
    if scope := words.pop("scope", ""):
        options[f"unsecuredLoginListClaim_{scope_claim}"] = f",{scope}"
        options["unsecuredLoginScopeClaimName"] = scope_claim
    if seconds := words.pop("lifeSeconds", ""):
        options["unsecuredLoginLifetimeSeconds"] = seconds
    for name in [name for name in words if name.startswith("extension_")]:
        options[f"unsecuredLoginExtension_{name.removeprefix('extension_')}"] = words.pop(name)
    if words:
        raise make_error(
            f"`{_OAUTH_CONFIG}` has unknown words: {', '.join(sorted(words))}",
            "use principal, principalClaimName, scope, scopeClaimName, lifeSeconds, extension_NAME",
        )
    return options


def _sign_tokens(given: Mapping[str, str]) -> Callable[[str], tuple[str, float]]:
    """Return the callback by which librdkafka gets tokens that IAM signs.

    Raises:
        ConfigurationError: Amazon's package is not installed.
    """
    region = given["aws.region"]
    role, session = given.get("aws.role.arn"), given.get("aws.session.name", "frazil")
    try:
        signer = importlib.import_module("aws_msk_iam_sasl_signer").MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigurationError(
            f"Kafka at {given.get('bootstrap.servers', '?')}: sasl.mechanism {MSK_IAM} needs the "
            "package aws-msk-iam-sasl-signer-python",
            "install it beside Frazil, and the jar aws-msk-iam-auth for Spark",
        ) from error

    def sign(_config: str) -> tuple[str, float]:
        if role:
            token, expiry_ms = signer.generate_auth_token_from_role_arn(region, role, session)
        elif profile := given.get("aws.profile"):
            token, expiry_ms = signer.generate_auth_token_from_profile(region, profile)
        else:
            token, expiry_ms = signer.generate_auth_token(region)
        return token, expiry_ms / 1000

    return sign
