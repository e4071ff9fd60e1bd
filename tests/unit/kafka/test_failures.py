"""Each cause has one sentence, whichever client reports it; the texts are those of real brokers."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.certificates import Identity, issue, make_authority
from support.network import NO_ROUTE

from frazil.errors import KafkaUnavailableError
from frazil.kafka.cluster import KafkaLog
from frazil.kafka.failures import (
    describe_certificate,
    explain_closing,
    explain_events,
    explain_java,
    explain_silence,
)

VERIFY = (
    "ssl://k:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate "
    "verify failed: broker certificate could not be verified, verify that ssl.ca.location is "
    "correctly configured or root CA certificates are installed"
)
EXCEPTION = "(java.util.concurrent.ExecutionException) org.apache.kafka.common.errors."
HANDSHAKE = f"{EXCEPTION}SslAuthenticationException: SSL handshake failed\nCaused by: "
PKIX = "sun.security.validator.ValidatorException: PKIX path"
CREATE = "(org.apache.kafka.common.KafkaException) Failed to create new client\nCaused by: "


@pytest.mark.parametrize(
    ("sentence", "native", "java"),
    [
        (
            "refuses the login or the password",
            "SASL authentication error: Authentication failed: Invalid username or password",
            f"{EXCEPTION}SaslAuthenticationException: Authentication failed: Invalid username",
        ),
        (
            "not signed by the connection's authority",
            VERIFY,
            f"{HANDSHAKE}{PKIX} building failed: unable to find valid certification path",
        ),
        (
            "certificate has expired",
            "certificate has expired",
            (
                f"{HANDSHAKE}{PKIX} validation failed: CertPathValidatorException: validity check "
                "failed"
            ),
        ),
        (
            "for another host name",
            "IP address mismatch, certificate is not valid for '127.0.0.2'.",
            (
                f"{HANDSHAKE}java.security.cert.CertificateException: No subject alternative names "
                "matching IP address 127.0.0.2 found"
            ),
        ),
        (
            "demands a client certificate",
            "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL 42",
            (
                f"{HANDSHAKE}javax.net.ssl.SSLHandshakeException: Received fatal alert: "
                "bad_certificate"
            ),
        ),
        (
            "demands a client certificate",
            "Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required",
            f"{EXCEPTION}SslAuthenticationException: Failed to process post-handshake messages",
        ),
        (
            "token server gave no token",
            'Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}',
            (
                f"{CREATE}javax.security.auth.login.LoginException: An internal error occurred "
                "while retrieving token from callback handler"
            ),
        ),
        (
            "no right to the topic",
            "Broker: Topic authorization failed",
            (
                "Job aborted due to stage failure: Task 0 in stage 45.0 failed 1 times (TID 30) "
                "(localhost executor driver): org.apache.kafka.common.errors."
                "TopicAuthorizationException: Not authorized to access topics: [orders]"
            ),
        ),
        (
            "does not offer the connection's SASL mechanism",
            "SASL authentication error: Unsupported SASL mechanism: broker's supported: PLAIN",
            f"{EXCEPTION}UnsupportedSaslMechanismException: Client SASL mechanism 'X' not enabled",
        ),
        (
            "host name of the brokers is unknown",
            "Failed to resolve 'no-such-host:9092': Name or service not known",
            (
                f"{CREATE}org.apache.kafka.common.config.ConfigException: No resolvable bootstrap "
                "urls given in bootstrap.servers"
            ),
        ),
        (
            "speaks another protocol",
            "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            f"{HANDSHAKE}javax.net.ssl.SSLException: Unsupported or unrecognized SSL message",
        ),
        (
            "speaks another protocol",
            (
                "sasl_plaintext://k:9092/bootstrap: SASL PLAIN mechanism handshake failed: Broker: "
                "Request not valid in current SASL state: broker's supported mechanisms:"
            ),
            f"{EXCEPTION}IllegalSaslStateException: Unexpected handshake request",
        ),
        ("nothing listens", "Connect to ipv4#127.0.0.1:1 failed: Connection refused", None),
        ("no route to the broker", "Connection setup timed out in state CONNECT", None),
        ("closes the connection without an answer", "1/1 brokers are down", None),
    ],
)
def test_both_clients_have_the_same_sentence(sentence: str, native: str, java: str | None) -> None:
    causes = [explain_events(["1/1 brokers are down", native])]
    causes += [explain_java(f"{java}\n\tat a.B.c(B.java:1)")] if java else []

    assert all(cause and sentence in cause.sentence for cause in causes)
    assert len(set(causes)) == 1


def test_java_says_that_a_listener_without_login_is_asked_for_one() -> None:
    cause = explain_java(f"{EXCEPTION}IllegalSaslStateException: Unexpected handshake request")

    assert cause is not None
    assert "speaks another protocol" in cause.sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "java.io.IOException: Connection refused",
        "org.apache.kafka.common.errors.OffsetOutOfRangeException: orders-0",
        "Cannot parse 'org.apache.kafka.common.errors.SaslAuthenticationException: x'",
    ],
)
def test_other_texts_of_java_have_no_cause(text: str) -> None:
    assert explain_java(text) is None


@contextmanager
def serve_tls(folder: Path, identity: Identity) -> Iterator[str]:
    """Shake hands with one client after the other."""
    (folder / "both.pem").write_text(identity.pem + identity.key())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    plain.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_librdkafka_hides_why_a_certificate_is_refused_and_it_is_found_out(
    tmp_path: Path,
) -> None:
    authority, other = make_authority(), make_authority("other")
    with serve_tls(tmp_path, issue(authority, "broker")) as address:
        assert describe_certificate([VERIFY], address, authority.pem) == ""
        assert "issuer" in describe_certificate([VERIFY], address, other.pem)
        named = address.replace("127.0.0.1", "127.0.0.2")
        assert describe_certificate([VERIFY], named, authority.pem) == ""  # nothing listens there
        assert describe_certificate(["Connection refused"], address, other.pem) == ""
    with serve_tls(tmp_path, issue(authority, "broker", days=-1)) as address:
        assert describe_certificate([VERIFY], address, authority.pem) == "certificate has expired"


def test_a_listener_that_closes_connections_is_asked_for_tls(tmp_path: Path) -> None:
    closed = explain_events(["1/1 brokers are down"])
    with serve_tls(tmp_path, issue(make_authority(), "broker")) as address:
        found = explain_closing(closed, address, "PLAINTEXT")
        assert found is not None
        assert "the listener uses TLS" in found.sentence
        assert explain_closing(closed, address, "SASL_SSL") == closed
    assert explain_closing(closed, "127.0.0.1:1", "PLAINTEXT") == closed
    assert explain_closing(None, "127.0.0.1:1", "PLAINTEXT") is None


def test_a_refused_connection_is_told_with_its_next_step() -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})

    with pytest.raises(KafkaUnavailableError, match="nothing listens at this address") as caught:
        log.fetch_cluster_id()

    assert "`frazil stack up` if it is the embedded one" in caught.value.next_step


@pytest.mark.parametrize(
    ("brokers", "sentence"),
    [
        ("127.0.0.1:1", "nothing listens at this address"),
        ("PLAINTEXT://127.0.0.1:1,127.0.0.1:2", "nothing listens at this address"),
        (NO_ROUTE, "no route to the broker: its host does not answer to connections"),
        ("no-such-host.invalid:9092", "a host name of the brokers is unknown here"),
        ("127.0.0.1:1,no-such-host.invalid:9092", "a host name of the brokers is unknown here"),
    ],
)
def test_addresses_that_gave_java_no_answer_are_tried_from_here(
    brokers: str, sentence: str
) -> None:
    cause = explain_silence(brokers)

    assert cause is not None
    assert cause.sentence == sentence


def test_a_listener_that_gave_java_no_answer_may_speak_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cause = explain_silence(f"127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")

    assert cause is not None
    assert "may speak another `security.protocol`" in cause.sentence


@pytest.mark.parametrize("brokers", ["", "broker", "127.0.0.1:port"])
def test_without_an_address_nothing_is_said_of_it(brokers: str) -> None:
    assert explain_silence(brokers) is None
