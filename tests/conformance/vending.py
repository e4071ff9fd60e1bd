"""A REST catalog that gives out keys of S3 with each table; the S3 server refuses them soon."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from urllib.parse import urlparse

from conformance.gateway import Guard, guard_by_oauth
from conformance.servers import Store, run_s3_with_sessions

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
ROLE = {"RoleName": "catalog", "RoleID": "AROACATALOG", "CreateDate": BEGAN}
ARN = "arn:aws:iam::000000000000:role/catalog"
STATEMENT = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
DOCUMENT = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})
POLICY = {"PolicyName": "all", "PolicyDocument": DOCUMENT, "CreateDate": BEGAN}


@dataclass
class Keys:
    """Keys of sessions at an S3 server, which refuses each of them after some seconds.

    The server's own command makes no session shorter than 15 minutes, so they are written into
    its file. `are_renewed` lets the catalog name the address where a client gets new ones.
    """

    users: Path
    seconds: float
    are_renewed: bool = False
    renewals: int = 0
    sessions: dict[str, dict[str, str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def make(self) -> dict[str, str]:
        """Begin a session; return its keys as a catalog gives them out."""
        key, secret, token = (
            f"ASIA{secrets.token_hex(8).upper()}",
            *map(secrets.token_hex, (20, 40)),
        )
        end = datetime.now(UTC) + timedelta(seconds=self.seconds)
        session = {
            "accessKeyId": key,
            "secretAccessKey": secret,
            "sessionToken": token,
            "roleArn": ARN,
            "roleName": ROLE["RoleName"],
            "roleId": ROLE["RoleID"],
            "roleSessionName": "batch",
            "createDate": BEGAN,
            "expiration": end.isoformat(),
        }
        with self.lock:
            self.sessions[key] = session
            self.write()
        return {
            "s3.access-key-id": key,
            "s3.secret-access-key": secret,
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(end.timestamp() * 1000)),
        }

    def write(self) -> None:
        """Write all sessions, and the role that they have, where the server reads them."""
        role = {**ROLE, "Arn": ARN, "Policies": {"inline": [POLICY]}}
        content = {"roles": {role["RoleName"]: role}, "sessions": self.sessions}
        new = self.users / "new.json"
        new.write_text(json.dumps(content))
        new.replace(self.users / "iam.json")


class Vendor(Guard):
    """Send keys with each table that a client loads, and again at the table's own address."""

    keys: Keys

    def pass_on(self, body: bytes) -> tuple[int, bytes]:
        path = urlparse(self.path).path
        if path.endswith("/credentials"):
            self.keys.renewals += 1
            credential = {"prefix": "s3", "config": self.keys.make()}
            return 200, json.dumps({"storage-credentials": [credential]}).encode()
        status, answer = super().pass_on(body)
        is_created = path.endswith("/tables")
        told = json.loads(answer) if self.command == "GET" or is_created else {}
        if status != 200 or "metadata" not in told:
            return status, answer
        table = f"{path}/{json.loads(body)['name']}" if is_created else path
        told["config"] = {**told.get("config", {}), **self.keys.make(), **self.renewal(table)}
        return status, json.dumps(told).encode()

    def renewal(self, table: str) -> dict[str, str]:
        if not self.keys.are_renewed:
            return {}
        return {"client.refresh-credentials-endpoint": f"{table.strip('/')}/credentials"}


@contextmanager
def run_s3_for_sessions(folder: Path, keys: Keys) -> Iterator[Store]:
    """Run an S3 server that knows the sessions of these keys."""
    keys.users.mkdir(parents=True)
    keys.write()
    with run_s3_with_sessions(folder, keys.users) as store:
        yield store


@contextmanager
def vend_keys(upstream: str, keys: Keys) -> Iterator[str]:
    """Serve a REST catalog that gives out keys; give the address."""
    with guard_by_oauth(upstream, type("OneVendor", (Vendor,), {"keys": keys})) as address:
        yield address


def describe_catalog(address: str, warehouse: str, store: Store) -> Mapping[str, str]:
    """Return what a connection says about the catalog: nothing of keys."""
    own = {k: v for k, v in store.settings.items() if "key" not in k}
    return {"type": "rest", "uri": address, "warehouse": warehouse, **own}
