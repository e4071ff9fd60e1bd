"""A broker with one listener for each way to log in, and a server of OIDC tokens beside it."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from faults.rest_catalog import find_free_port
from support.certificates import Identity, issue, make_authority

from frazil.errors import KafkaUnavailableError
from frazil.kafka.cluster import KafkaLog
from frazil_stack.java import find_java
from frazil_stack.settings import load_settings

USER, PASSWORD = "jane", 'planted-"pw\\1'
CLIENT_ID, CLIENT_SECRET = "frazil-client", "planted-oidc-secret"
KEY_PASSWORD = "planted-key-password"  # noqa: S105 - of a test
PRIVATE_TOPIC, UNREADABLE_TOPIC, READABLE_TOPIC = "private", "unreadable", "readable"
"""Topics of another user; all may describe the second one, and read the third one."""
LISTENERS = ("PLAINTEXT", "SASL", "SASLSSL", "MTLS", "EXPIRED", "CONTROLLER")
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_MODULES = {
    "plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "scram-sha-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "scram-sha-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "oauthbearer": f"{_OAUTH}.OAuthBearerLoginModule",
}
_START_SECONDS = 240


@dataclass(frozen=True)
class SecureBroker:
    """A running broker: its ports, its certificates, and where tokens are had."""

    folder: Path
    ports: Mapping[str, int]
    token_url: str
    client: Identity

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def create_topic(self, name: str, partitions: int = 2) -> None:
        admin = AdminClient({"bootstrap.servers": self.address("PLAINTEXT"), "log_level": 0})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)

    def allow(self, resource: str, user: str, right: AclOperation, kind: ResourceType) -> None:
        """Grant one user a right, and so deny all rights of others to groups or topics."""
        admin = AdminClient({"bootstrap.servers": self.address("PLAINTEXT"), "log_level": 0})
        is_group = kind is ResourceType.GROUP
        pattern = ResourcePatternType.PREFIXED if is_group else ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        binding = AclBinding(kind, resource, pattern, f"User:{user}", "*", right, allow)
        admin.create_acls([binding])[binding].result(20)

    def connection(self, way: str) -> dict[str, str]:
        """Write a connection as a user does: one of `WAYS`."""
        listener, extra = WAYS[way]
        given = {"authority": str(self.folder / "ca.pem"), "token_url": self.token_url}
        given |= {"cert": str(self.folder / "client.pem"), "key": str(self.folder / "client.key")}
        given |= {"p12": str(self.folder / "client.p12"), "user": USER, "password": PASSWORD}
        filled = {k: v.format(**given) for k, v in extra.items()}
        return {"bootstrap.servers": self.address(listener), **filled}


def _sasl(mechanism: str, protocol: str = "SASL_PLAINTEXT") -> dict[str, str]:
    login = {"sasl.username": "{user}", "sasl.password": "{password}"}
    return {"security.protocol": protocol, "sasl.mechanism": mechanism, **login}


_TLS = {"ssl.ca.location": "{authority}"}
_MTLS = {
    "security.protocol": "SSL",
    "ssl.certificate.location": "{cert}",
    "ssl.key.location": "{key}",
    "ssl.key.password": KEY_PASSWORD,
    **_TLS,
}
_OIDC = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "{token_url}",
    "sasl.oauthbearer.client.id": CLIENT_ID,
    "sasl.oauthbearer.client.secret": CLIENT_SECRET,
    "sasl.oauthbearer.scope": "kafka",
}
_UNSECURED = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    **_TLS,
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": f"principal={USER}",
}
WAYS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "PLAINTEXT": ("PLAINTEXT", {}),
    "PLAIN": ("SASL", _sasl("PLAIN")),
    "SCRAM-256": ("SASL", _sasl("SCRAM-SHA-256")),
    "SCRAM-512 by TLS": ("SASLSSL", {**_sasl("SCRAM-SHA-512", "SASL_SSL"), **_TLS}),
    "mTLS, encrypted PEM key": ("MTLS", _MTLS),
    "OIDC": ("SASL", _OIDC),
    "OAUTHBEARER, unsecured": ("SASLSSL", _UNSECURED),
}
"""How a connection logs in, and to which listener."""


@contextmanager
def run_secure_broker(folder: Path) -> Iterator[SecureBroker]:
    """Run a broker with all listeners of `LISTENERS` until the block ends."""
    authority = make_authority()
    client = issue(authority, USER)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "client.pem").write_text(client.pem)
    (folder / "client.key").write_text(client.key(KEY_PASSWORD))
    ports = {name: find_free_port() for name in LISTENERS}
    with _serve_tokens(folder) as url:
        settings = _write_settings(folder, ports, authority)
        process = _start(folder, settings)
        try:
            broker = SecureBroker(folder, ports, url, client)
            _wait(broker, process)
            _create_private_topics(broker)
            yield broker
        finally:
            process.terminate()
            process.wait(timeout=30)


def _write_settings(folder: Path, ports: Mapping[str, int], authority: Identity) -> Path:
    kinds = {"SASL": "SASL_PLAINTEXT", "SASLSSL": "SASL_SSL", "MTLS": "SSL", "EXPIRED": "SSL"}
    listeners = ",".join(f"{n}://127.0.0.1:{p}" for n, p in ports.items())
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": listeners,
        "advertised.listeners": listeners.rpartition(",")[0],
        "listener.security.protocol.map": ",".join(
            f"{name}:{kinds.get(name, 'PLAINTEXT')}" for name in ports
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    lines |= _tls(authority)
    for listener in ("sasl", "saslssl"):
        lines |= _logins(listener)
    path = folder / "server.properties"
    path.write_text("".join(f"{k}={_one_line(v)}\n" for k, v in lines.items()))
    return path


def _tls(authority: Identity) -> dict[str, str]:
    identities = {
        "saslssl": issue(authority, "broker"),
        "mtls": issue(authority, "broker"),
        "expired": issue(authority, "broker", days=-2),
    }
    lines = {"listener.name.mtls.ssl.client.auth": "required"}
    for listener, identity in identities.items():
        prefix = f"listener.name.{listener}.ssl"
        lines |= {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.certificate.chain": identity.pem,
            f"{prefix}.keystore.key": identity.key(),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.certificates": authority.pem,
        }
    return lines


def _logins(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    options = {"plain": f' user_{USER}="{escaped}"'}
    lines = {f"{prefix}.sasl.enabled.mechanisms": ",".join(m.upper() for m in _MODULES)}
    for name, module in _MODULES.items():
        lines[f"{prefix}.{name}.sasl.jaas.config"] = f"{module} required{options.get(name, '')};"
    handler = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
    if listener == "saslssl":
        handler = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    lines[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = handler
    return lines


def _one_line(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _start(folder: Path, settings: Path) -> "subprocess.Popen[bytes]":
    jars = load_settings().jars / "kafka"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'jwks.json').as_uri()}"
    java = [str(find_java().executable), "-Xmx384m", "-XX:TieredStopAtLevel=1", allowed]
    log4j = load_settings().templates / "kafka-log4j2.properties"
    java += [f"-Dlog4j2.configurationFile=file:{log4j}", "-cp", f"{jars}/*"]
    scram = [f"SCRAM-SHA-{n}=[name={USER},password={PASSWORD}]" for n in (256, 512)]
    form = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"]
    form += ["-c", str(settings), *(word for each in scram for word in ("--add-scram", each))]
    with (folder / "broker.log").open("wb") as log:
        tool = [*java, "kafka.tools.StorageTool", *form]
        subprocess.run(tool, check=True, stdout=log, stderr=log)
        return subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)


def _wait(broker: SecureBroker, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    log = KafkaLog({"bootstrap.servers": broker.address("PLAINTEXT")})
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(KafkaUnavailableError):
            log.fetch_cluster_id()
            return
    text = (broker.folder / "broker.log").read_text()[-3000:]
    raise AssertionError(f"the broker did not start, exit code {process.poll()}:\n{text}")


def _create_private_topics(broker: SecureBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address("PLAINTEXT")})
    rights = {
        PRIVATE_TOPIC: ("other", AclOperation.ALL),
        UNREADABLE_TOPIC: ("*", AclOperation.DESCRIBE),
        READABLE_TOPIC: ("*", AclOperation.READ),
    }
    for topic, (user, right) in rights.items():
        broker.create_topic(topic, 1)
        producer.produce(topic, b"x")
        broker.allow(topic, user, right, ResourceType.TOPIC)
    assert producer.flush(20) == 0


@contextmanager
def _serve_tokens(folder: Path) -> Iterator[str]:
    """Serve signed tokens to whoever sends the client's secret; write the key for the broker."""
    private = rsa.generate_private_key(65537, 2048)
    numbers = private.public_key().public_numbers()
    key = {"kty": "RSA", "kid": "k1", "alg": "RS256", "use": "sig"}
    key |= {"n": _encode(numbers.n.to_bytes(256, "big")), "e": _encode(b"\1\0\1")}
    (folder / "jwks.json").write_text(json.dumps({"keys": [key]}))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
            is_known = self.headers.get("Authorization") == f"Basic {expected}"
            is_known = is_known and form.get("scope") == ["kafka"]
            token = {"access_token": _sign(private), "token_type": "Bearer", "expires_in": 3600}
            body = json.dumps(token if is_known else {"error": "invalid_client"}).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()


def _sign(private: rsa.RSAPrivateKey) -> str:
    now = int(time.time())
    claims = {"sub": USER, "aud": "kafka", "iat": now, "exp": now + 3600, "scope": "kafka"}
    head = {"alg": "RS256", "kid": "k1", "typ": "JWT"}
    text = f"{_encode(json.dumps(head).encode())}.{_encode(json.dumps(claims).encode())}"
    signature = private.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{_encode(signature)}"


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
