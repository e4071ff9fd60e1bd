"""Python packages that only cells need, in a folder beside the jars, not in the environment."""

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frazil_stack.settings import load_settings

MOTO = ("moto[server]==5.2.5",)
AIRFLOW_PARTS = (
    *("--no-deps", "apache-airflow-providers-celery==3.26.0", "celery==5.6.3", "kombu==5.7.0"),
    *("amqp==5.4.2", "billiard==4.3.2", "vine==5.1.0", "redis==6.4.0", "asyncpg==0.32.0"),
    *("click-didyoumean==0.3.1", "click-plugins==1.1.1.2", "click-repl==0.4.1"),
    *("prompt-toolkit==3.0.53", "wcwidth==0.9.4"),
)
"""Airflow's CeleryExecutor with Redis, and its second client of PostgreSQL."""
FAB = (
    *("--no-deps", "apache-airflow-providers-fab==3.10.2", "apispec==6.10.1", "blinker==1.9.0"),
    *("cachelib==0.17.0", "colorama==0.4.6", "flask==3.1.3", "flask-appbuilder==5.2.2"),
    *("flask-babel==4.0.0", "flask-jwt-extended==4.7.4", "flask-limiter==4.1.1"),
    *("flask-login==0.6.3", "flask-session==0.8.0", "flask-sqlalchemy==3.1.1"),
    *("flask-wtf==1.3.0", "jmespath==1.1.0", "limits==5.8.0", "marshmallow-sqlalchemy==1.6.0"),
    *("msgpack==1.2.4", "ordered-set==4.1.0", "prison==0.2.1", "python-dateutil==2.9.0.post0"),
    *("sqlalchemy-utils==0.43.0", "werkzeug==3.1.9", "wtforms==3.3.2"),
)
"""Airflow's auth manager with roles, by the versions that fit those of requirements.txt."""
CLIENTS = (
    *("--no-deps", "boto3==1.44.8", "botocore==1.44.8", "s3transfer==0.19.3", "jmespath==1.1.0"),
    "thrift==0.25.0",
)
"""What PyIceberg needs for Glue and Hive; their dependencies are in the environment."""


def ensure_packages(name: str, words: Sequence[str]) -> Path:
    """Install packages once; return the folder for `PYTHONPATH`."""
    folder = load_settings().jars / f"python-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".lock-{folder.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.is_file() or done.read_text() != " ".join(words):
            uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
            subprocess.run([*uv, "--target", str(folder), *words], check=True)
            done.write_text(" ".join(words))
    return folder
