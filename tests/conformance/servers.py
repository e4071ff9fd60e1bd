"""The servers of the cells, each started when the first cell asks for it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import pyspark
from faults.rest_catalog import find_free_port, run_rest_catalog
from pyarrow.fs import S3FileSystem
from support.certificates import Identity, issue, make_authority
from support.connect_server import ConnectServer, run_connect_server
from support.ivy_jars import ensure_jars
from support.secure_broker import SecureBroker, run_secure_broker

from conformance.gateway import add_tls, guard_by_oauth
from conformance.mailbox import Mailbox, receive_mail
from conformance.packages import MOTO, ensure_packages
from frazil.spark.redaction import REDACTION
from frazil_stack.java import find_java
from frazil_stack.services import CLIENT_LIBRARIES
from frazil_stack.settings import load_settings

IVY_FILE = Path(__file__).with_name("ivy.xml")
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
REGION = "us-east-1"
S3_KEY, S3_SECRET = "conformance", "planted-s3-secret"
ROOT = {"ROOT_ACCESS_KEY_ID": S3_KEY, "ROOT_SECRET_ACCESS_KEY": S3_SECRET}
DATABASE_USER, DATABASE_PASSWORD = "frazil", "planted-database-password"
SPARK_TOKEN = "planted-spark-token"  # noqa: S105 - of a test
REDIS_PASSWORD = "planted-redis-password"  # noqa: S105 - of a test
AMAZON = {
    "AWS_ACCESS_KEY_ID": S3_KEY,
    "AWS_SECRET_ACCESS_KEY": S3_SECRET,
    "AWS_REGION": REGION,
}
_START_SECONDS = 240


class MissingPartError(Exception):
    """A program of a cell is not on this machine."""


@dataclass(frozen=True)
class Store:
    """An S3 server; `data` is the folder that holds its objects as plain files, if it has one."""

    endpoint: str
    data: Path | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Return what a connection says about it."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": S3_KEY,
            "s3.secret-access-key": S3_SECRET,
        }

    def create_bucket(self, name: str) -> None:
        files = S3FileSystem(
            access_key=S3_KEY,
            secret_key=S3_SECRET,
            endpoint_override=self.endpoint,
            region=REGION,
            allow_bucket_creation=True,
        )
        files.create_dir(name)


@dataclass(frozen=True)
class Database:
    """A PostgreSQL server that accepts one user by password over TLS."""

    port: int
    authority: Path
    programs: Path

    def create(self, name: str) -> str:
        """Create a database; return user, password, host, port and name as in an address."""
        self._run("createdb", name)
        return f"{DATABASE_USER}:{DATABASE_PASSWORD}@127.0.0.1:{self.port}/{name}"

    def dump(self, name: str, file: Path) -> None:
        """Write all that a database holds into a file."""
        self._run("pg_dump", "--file", str(file), name)

    def _run(self, program: str, *words: str) -> None:
        server = ["-h", "127.0.0.1", "-p", str(self.port), "-U", DATABASE_USER]
        environment = {**os.environ, "PGPASSWORD": DATABASE_PASSWORD}
        subprocess.run([self.programs / program, *server, *words], env=environment, check=True)

    def uri(self, name: str) -> str:
        """Return the address of a database, without user and password."""
        tls = f"sslmode=verify-full&sslrootcert={self.authority}"
        return f"postgresql+psycopg2://localhost:{self.port}/{name}?{tls}"


@dataclass
class Servers:
    """All servers of a run; each property starts one."""

    folder: Path
    stack: ExitStack
    authority: Identity = field(default_factory=make_authority)
    traces: list[ConnectServer] = field(default_factory=list)
    """Servers of Spark, whose logs and pages are searched for secrets."""

    @cached_property
    def mailbox(self) -> Mailbox:
        """Start a mail server that asks for a password."""
        return self.stack.enter_context(receive_mail())

    @cached_property
    def broker(self) -> SecureBroker:
        return self.stack.enter_context(run_secure_broker(self.folder / "broker"))

    @cached_property
    def spark(self) -> ConnectServer:
        """Start a Connect server that lets everybody in."""
        return self._start_spark("spark", {})

    @cached_property
    def guarded_spark(self) -> tuple[int, Path]:
        """Start a Connect server that asks for a token, behind TLS; return port and authority."""
        token = {"spark.connect.authenticate.token": SPARK_TOKEN}
        server = self._start_spark("guarded", token)
        port = int(server.remote.rpartition(":")[2])
        identity = issue(self.authority, "spark")
        folder = self.folder / "guarded"
        (folder / "ca.pem").write_text(self.authority.pem)
        return self.stack.enter_context(add_tls(port, identity, folder)), folder / "ca.pem"

    def _start_spark(self, name: str, more: Mapping[str, str]) -> ConnectServer:
        jars = [load_settings().jars / "spark", ensure_jars(IVY_FILE, "clouds")]
        settings = {
            **REDACTION,
            "spark.driver.extraClassPath": ":".join(f"{folder}/*" for folder in jars),
            "spark.python.daemon.module": "frazil_spark.worker_daemon",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            **more,
        }
        server = self.stack.enter_context(run_connect_server(self.folder / name, settings))
        self.traces.append(server)
        return server

    @cached_property
    def clients(self) -> Path:
        """Start the fork server of Spark's clients, as the embedded stack does."""
        return self.stack.enter_context(_run_fork_server())

    @cached_property
    def amazon_spark(self) -> ConnectServer:
        """Start a Connect server that has its keys for Amazon's services in its environment."""
        with patch.dict(os.environ, AMAZON):
            return self._start_spark("amazon", {})

    @cached_property
    def s3(self) -> Store:
        return self.stack.enter_context(run_s3(self.folder / "s3"))

    @cached_property
    def moto(self) -> str:
        """Start moto, which imitates Amazon's services in memory; return its address."""
        return self.stack.enter_context(_run_moto(self.folder))

    @cached_property
    def database(self) -> Database:
        return self.stack.enter_context(_run_postgres(self.authority))

    @cached_property
    def redis(self) -> str:
        """Start a Redis that asks for a password; return its address."""
        return self.stack.enter_context(_run_redis(self.folder / "redis"))

    def metastore(self, folder: Path, warehouse: str) -> str:
        """Start a Hive Metastore of a cell's own; return its address."""
        return self.stack.enter_context(_run_metastore(folder, warehouse))

    def guard(self, upstream: str) -> str:
        """Put OAuth 2 before a REST catalog; return the new address."""
        return self.stack.enter_context(guard_by_oauth(upstream))

    def rest(self, folder: Path, settings: Mapping[str, str]) -> str:
        """Start a REST catalog of a cell's own; return its address."""
        folder.mkdir(parents=True, exist_ok=True)
        more = [ensure_jars(IVY_FILE, "rest-s3")] if "s3" in str(settings) else []
        given = self.stack.enter_context(run_rest_catalog(folder, settings, more))
        return given["uri"]


@contextmanager
def _run_fork_server() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="frazil-clients-") as folder:
        socket = Path(folder) / "clients.sock"
        command = [sys.executable, "-m", "frazil.spark.fork_server", str(socket)]
        with _run([*command, *CLIENT_LIBRARIES], Path(folder) / "log"):
            _wait_for(socket.is_socket, "the fork server")
            yield socket


@contextmanager
def _run(
    command: list[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as output:
        surroundings = {**os.environ, **(environment or {})}
        process = subprocess.Popen(
            command, env=surroundings, stdout=output, stderr=output, user=user, group=user
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL would wait for clients after SIGTERM
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(is_up: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_up():
        assert time.monotonic() < deadline, f"{what} does not start"
        time.sleep(0.1)


@contextmanager
def run_s3(folder: Path, *options: str) -> Iterator[Store]:
    """Run versitygw with one user, and these options."""
    data, port = folder / "data", find_free_port()
    data.mkdir(parents=True)
    words = [*options, "posix", str(data)]
    with _run(_write_command(port, *words), folder / "log", ROOT) as process:
        store = Store(f"http://127.0.0.1:{port}", data)
        _wait_for(lambda: _listens(port, process), "versitygw")
        yield store


@contextmanager
def run_s3_with_sessions(folder: Path, users: Path) -> Iterator[Store]:
    """Run versitygw with users, roles and sessions: `users/iam.json`, which it reads each time."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="frazil-users-") as name:  # a short path
        port, socket = find_free_port(), f"{name}/socket"
        words = ("iam", "--dir", str(users), "--private-ports", socket)
        with _run(_write_command(port, *words), folder / "users.log", ROOT) as process:
            _wait_for(lambda: _listens(port, process), "versitygw's service of users")
            options = ("--iam-standalone-endpoint", socket, "--iam-cache-disable")
            with run_s3(folder, *options) as store:
                yield store


def _write_command(port: int, *words: str) -> list[str]:
    return [str(_find_versitygw()), "--port", f"127.0.0.1:{port}", "--region", REGION, *words]


@contextmanager
def _run_moto(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    port, packages = find_free_port(), {"PYTHONPATH": str(ensure_packages("moto", MOTO))}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _run(command, folder / "moto.log", packages) as process:
        _wait_for(lambda: _listens(port, process), "moto")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _run_redis(folder: Path) -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        raise MissingPartError("no redis-server on PATH")
    folder.mkdir(parents=True)
    port, settings = find_free_port(), folder / "redis.conf"
    lines = ["bind 127.0.0.1", f"port {port}", f"requirepass {REDIS_PASSWORD}", 'save ""']
    settings.write_text("\n".join(lines))
    with _run([program, str(settings)], folder / "log") as process:
        _wait_for(lambda: _listens(port, process), "Redis")
        yield f"redis://:{REDIS_PASSWORD}@127.0.0.1:{port}/0"


@contextmanager
def _run_metastore(folder: Path, warehouse: str) -> Iterator[str]:
    """Run Hive's metastore 2.3.10, which the PySpark wheel brings with Derby, its database."""
    folder.mkdir(parents=True)
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/derby;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": warehouse,
        "hive.metastore.disallow.incompatible.col.type.changes": "false",
        # The defaults of these two need libraries that the wheel lacks.
        "hive.async.log.enabled": "false",
        "datanucleus.connectionPoolingType": "DBCP",
    }
    # Only a metastore in test creates the tables of locks, and it refuses PyIceberg's locks.
    with _start_metastore(folder, {**settings, "hive.in.test": "true"}) as port:
        _ask_for_locks(port)
    with _start_metastore(folder, settings) as port:
        yield f"thrift://127.0.0.1:{port}"


@contextmanager
def _start_metastore(folder: Path, settings: Mapping[str, str]) -> Iterator[int]:
    port = find_free_port()
    lines = (
        f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    jars = Path(next(iter(pyspark.__path__))) / "jars"
    java = [str(find_java().executable), "-Xmx512m", f"-Dderby.system.home={folder}"]
    java += [f"-Djava.io.tmpdir={folder}", "-cp", f"{folder}:{jars}/*"]
    java += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with _run(java, folder / "metastore.log") as process:
        _wait_for(lambda: _listens(port, process), "the Hive Metastore")
        yield port


def _ask_for_locks(port: int) -> None:
    # These packages are there only where a cell asks for Hive.
    from hive_metastore.ThriftHiveMetastore import Client  # noqa: PLC0415
    from hive_metastore.ttypes import ShowLocksRequest  # noqa: PLC0415
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # noqa: PLC0415
    from thrift.transport.TSocket import TSocket  # noqa: PLC0415
    from thrift.transport.TTransport import TBufferedTransport  # noqa: PLC0415

    with closing(TBufferedTransport(TSocket("127.0.0.1", port))) as transport:
        transport.open()
        Client(TBinaryProtocol(transport)).show_locks(ShowLocksRequest())


def _listens(port: int, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, f"exit {process.returncode}"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _find_versitygw() -> Path:
    """Return the S3 server beside the jars; Go builds it once.

    Raises:
        MissingPartError: there is no Go.
    """
    folder = load_settings().jars / "versitygw"
    program = folder / "versitygw"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise MissingPartError("no Go to build versitygw, the S3 server")
    subprocess.run([go, "install", VERSITYGW], env={**os.environ, "GOBIN": str(folder)}, check=True)
    return program


@contextmanager
def _run_postgres(authority: Identity) -> Iterator[Database]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        raise MissingPartError("no PostgreSQL in /usr/lib/postgresql")
    binaries, port = programs[-1].parent, find_free_port()
    # Not in TMPDIR: the user postgres may not be able to open the folders above.
    with tempfile.TemporaryDirectory(prefix="frazil-postgres-", dir="/tmp") as name:
        folder = Path(name)
        user = "postgres" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
        identity = issue(authority, "database")
        for file, text in (
            ("ca.pem", authority.pem),
            ("server.pem", identity.pem),
            ("server.key", identity.key()),
            ("password", DATABASE_PASSWORD),
        ):
            (folder / file).write_text(text)
            (folder / file).chmod(0o600)
        (folder / "ca.pem").chmod(0o644)
        if user:
            for each in (folder, *folder.iterdir()):
                shutil.chown(each, user, user)
        folder.chmod(0o755)
        create = [str(binaries / "initdb"), "-D", f"{folder}/data", "-U", DATABASE_USER]
        create += ["--auth=scram-sha-256", f"--pwfile={folder}/password", "--no-sync"]
        quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "user": user, "group": user}
        subprocess.run(create, check=True, **quiet)
        options = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": folder,
            "fsync": "off",
            "ssl": "on",
            "ssl_cert_file": folder / "server.pem",
            "ssl_key_file": folder / "server.key",
        }
        words = [w for k, v in options.items() for w in ("-c", f"{k}={v}")]
        server = [str(binaries / "postgres"), "-D", f"{folder}/data", *words]
        with _run(server, folder / "log", user=user) as process:
            _wait_for(lambda: _listens(port, process), "PostgreSQL")
            yield Database(port, folder / "ca.pem", binaries)
