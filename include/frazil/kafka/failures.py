"""Why a client cannot use a broker: librdkafka's events and Java's exceptions, and their cause."""

import re
import socket
import ssl
from collections.abc import Iterable

from confluent_kafka import KafkaException

from frazil.connections.causes import (
    EXPIRED_CERTIFICATE,
    NO_ROUTE,
    OTHER_HOST_NAME,
    OTHER_PROTOCOL,
    REFUSED,
    UNKNOWN_AUTHORITY,
    UNKNOWN_HOST,
    Cause,
    Table,
    find_cause,
)

_CLOSED = Cause(
    "the broker closes the connection without an answer, as a listener of another "
    "`security.protocol` does",
    "set `security.protocol` to that of the listener (SASL_PLAINTEXT or SASL_SSL if it asks for a "
    "login), or use another port",
    is_decisive=False,
)
_USES_TLS = Cause(
    "the listener uses TLS, and the connection's `security.protocol` does not",
    "set it to SSL, or to SASL_SSL if the listener asks for a login, or use another port",
)
_CAUSES: Table = (
    (
        r"alert certificate expired|alert: certificate_expired",
        Cause(
            "the broker refuses the client's certificate because it has expired",
            "renew the certificate of `ssl.certificate.location`",
        ),
    ),
    (
        EXPIRED_CERTIFICATE,
        Cause(
            "the broker's certificate has expired, or is not valid yet",
            "renew the broker's certificate, or correct this machine's clock",
        ),
    ),
    (
        OTHER_HOST_NAME,
        Cause(
            "the broker's certificate is for another host name",
            "use the name of the certificate in `bootstrap.servers` and in the broker's "
            "`advertised.listeners`",
        ),
    ),
    (
        UNKNOWN_AUTHORITY,
        Cause(
            "the broker's certificate is not signed by the connection's authority",
            "set `ssl.ca.location` to the PEM file of the authority that signed it",
        ),
    ),
    (
        (
            r"bad[ _]certificate|certificate[ _]required|alert (unknown|unsupported) c|"
            r"alert: (unknown_ca|certificate_unknown)|Failed to process post-handshake messages"
        ),
        Cause(
            "the broker demands a client certificate, or refuses the one it got",
            "set `ssl.certificate.location` and `ssl.key.location` to a certificate that the "
            "broker's authority signed",
        ),
    ),
    (
        (
            r"OAUTHBEARER token|token endpoint response|retrieving token from callback|"
            r"is not allowed\. Update system property"
        ),
        Cause(
            "the token server gave no token",
            "check `sasl.oauthbearer.token.endpoint.url`, client id, client secret and scope",
        ),
    ),
    (
        (
            r"[Uu]nsupported SASL mechanism|UnsupportedSaslMechanism|"
            r"mechanism .{1,40} not (enabled|supported)"
        ),
        Cause(
            "the broker does not offer the connection's SASL mechanism",
            "set `sasl.mechanism` to one that the listener has enabled",
        ),
    ),
    (
        (
            r"SASL authentication error|SaslAuthenticationException|invalid credentials|"
            r"Authentication failed"
        ),
        Cause(
            "the broker refuses the login or the password",
            "correct login and password of the Kafka connection",
        ),
    ),
    (
        r"Topic authorization failed|TopicAuthorizationException|TOPIC_AUTHORIZATION",
        Cause(
            "the connection's user has no right to the topic",
            "grant it all three rights: `kafka-acls --add --allow-principal User:NAME --operation "
            "READ --operation DESCRIBE --operation DESCRIBE_CONFIGS --topic TOPIC`",
        ),
    ),
    (
        r"[Cc]luster authorization failed|ClusterAuthorizationException",
        Cause(
            "the connection's user has no right to the cluster",
            "grant it DESCRIBE on the cluster, or use another user",
        ),
    ),
    (
        r"[Gg]roup authorization failed|GroupAuthorizationException",
        Cause(
            "the connection's user has no right to the consumer group",
            "grant it READ on groups that begin with `frazil-` and `spark-kafka-`",
        ),
    ),
    (
        (
            r"PLAINTEXT broker listener|incorrect security.protocol|Invalid response size|"
            r"IllegalSaslState|not valid in current SASL state|"
            rf"{OTHER_PROTOCOL}"
        ),
        Cause(
            "the listener speaks another protocol than the connection's `security.protocol`",
            "set `security.protocol` to that of the listener, or use another port",
        ),
    ),
    (
        UNKNOWN_HOST,
        Cause(
            "a host name of the brokers is unknown here",
            "correct `bootstrap.servers`, or the name service of this machine",
            is_decisive=False,
        ),
    ),
    (
        REFUSED,
        Cause(
            "nothing listens at this address",
            "start the broker (`frazil stack up` if it is the embedded one), or correct "
            "`bootstrap.servers`",
            is_decisive=False,
        ),
    ),
    (
        NO_ROUTE,
        Cause(
            "no route to the broker: its host does not answer to connections",
            "check network, firewall and `bootstrap.servers`",
            is_decisive=False,
        ),
    ),
    (r"brokers are down", _CLOSED),
)
_SILENT = Cause(
    "a listener accepts connections, so it may speak another `security.protocol`",
    "set `security.protocol` to that of the listener, and check that Spark's machines reach the "
    "addresses of the brokers' `advertised.listeners`",
    is_decisive=False,
)
_VERIFY_FAILED = "certificate verify failed"
_PROBE_SECONDS = 3.0
_JAVA_ERROR = re.compile(
    r"^\(org\.apache\.kafka\.[\w.]+\)[^\n]*|^(?:Caused by: |\(\S+\) |[^\n]{0,300}\): )?"
    r"(?:org\.apache\.kafka\.|javax\.net\.ssl\.|javax\.security\.|sun\.security\.|"
    r"java\.security\.)[\w.]+(?:Exception|Error)\b[^\n]*",
    re.MULTILINE,
)


def is_unreachable(error: BaseException) -> bool:
    """Return whether no broker answered; a refusal, such as of one topic, is an answer."""
    cause = error.__cause__
    if isinstance(cause, KafkaException):
        code: int = cause.args[0].code()
        return code < 0  # codes of librdkafka itself; those of brokers are above
    return isinstance(cause, TimeoutError)


def explain_events(texts: Iterable[str]) -> Cause | None:
    """Return the cause that librdkafka's events name; None if they name none."""
    return find_cause(_CAUSES, "\n".join(texts))


def explain_java(text: str) -> Cause | None:
    """Return the cause that a chain of Java exceptions names, if Kafka's client raised it."""
    lines = [match.group() for match in _JAVA_ERROR.finditer(text)]
    if not any("org.apache.kafka." in line for line in lines):
        return None
    return explain_events(lines)


def explain_silence(bootstrap: str) -> Cause | None:
    """Connect to addresses that a client reports only as silent; return the cause, if known."""
    reasons = []
    for address in bootstrap.split(","):
        try:
            _connect(address).close()
        except TimeoutError:
            reasons.append("connection timed out")
        except (OSError, ValueError) as error:
            reasons.append(str(error))
        else:
            return _SILENT
    return explain_events(reasons)


def explain_closing(cause: Cause | None, bootstrap: str, protocol: str) -> Cause | None:
    """Return a more exact cause where a listener only closed its connections: librdkafka has none.

    It is found by a TLS handshake with the first address.
    """
    if cause != _CLOSED or protocol.upper().endswith("SSL"):
        return cause
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connect(bootstrap) as plain, context.wrap_socket(plain):
            return _USES_TLS
    except (OSError, ValueError):
        return cause


def _connect(address: str) -> socket.socket:
    """Connect to the first of the brokers' addresses.

    Raises:
        OSError, ValueError: nothing accepts the connection; it is no address.
    """
    host, port = _split(address)
    return socket.create_connection((host, int(port)), _PROBE_SECONDS)


def _split(bootstrap: str) -> tuple[str, str]:
    """Return host and port of the first of the brokers' addresses."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition("://")[2].rpartition(":")
    return host.strip("[] "), port


def describe_certificate(texts: Iterable[str], bootstrap: str, authorities: str | None) -> str:
    """Return why a broker's certificate cannot be verified; empty if that is not the problem.

    librdkafka does not say it: an expired certificate and an unknown authority look the same.
    """
    if not any(_VERIFY_FAILED in text for text in texts):
        return ""
    try:
        context = ssl.create_default_context(cadata=authorities or None)
        name, _ = _split(bootstrap)
        with _connect(bootstrap) as plain, context.wrap_socket(plain, server_hostname=name):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, ValueError):
        return ""
