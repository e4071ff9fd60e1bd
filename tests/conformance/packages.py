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
