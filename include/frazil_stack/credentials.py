"""Airflow's passwords and keys: created once per home, readable by the owner only."""

import base64
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from frazil.errors import StackError

AIRFLOW_USER = "admin"
PASSWORD_FILE = "password.txt"  # noqa: S105 - a file name
USERS = {AIRFLOW_USER: ("admin", PASSWORD_FILE), "approver": ("user", "approver-password.txt")}
"""Role and password file of each user; the approver of a large rollback must be another user."""
KEYS_FILE = "keys.json"
LOGINS_FILE = "logins.json"
_SIGNING_KEY_BYTES = 64
_OWNER_ONLY = 0o600


@dataclass(frozen=True)
class AirflowKeys:
    """The three keys that Airflow's processes must share."""

    jwt: str = field(repr=False)
    api: str = field(repr=False)
    fernet: str = field(repr=False)


def ensure_credentials(folder: Path) -> AirflowKeys:
    """Create passwords and keys unless they exist, and write the logins that Airflow reads.

    To change a password, edit its file; the next `frazil stack up` uses it.

    Raises:
        StackError: the file of the keys is damaged.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    logins = {}
    for user, (_, file) in USERS.items():
        path = folder / file
        if not path.exists():
            write_private(path, secrets.token_urlsafe(18) + "\n")
        logins[user] = path.read_text().strip()
    # The format of Airflow's simple auth manager, which reads it at each login.
    write_private(folder / LOGINS_FILE, json.dumps(logins))
    keys_path = folder / KEYS_FILE
    if not keys_path.exists():
        write_private(keys_path, json.dumps(asdict(_make_keys())))
    try:
        return AirflowKeys(**json.loads(keys_path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise StackError(
            f"{keys_path} does not hold Airflow's three keys: the file is damaged",
            "restore it; or delete it, and `frazil stack up` creates new keys, which cannot "
            "decrypt the passwords of connections in Airflow's database",
        ) from error


def list_users() -> str:
    """Return users and roles in the format of Airflow's simple auth manager."""
    return ",".join(f"{user}:{role}" for user, (role, _) in USERS.items())


def write_private(path: Path, text: str, mode: int = _OWNER_ONLY) -> None:
    """Write a file atomically, with a mode that keeps other users out from the start."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=mode)
    draft.chmod(mode)
    draft.write_text(text)
    draft.replace(path)


def _make_keys() -> AirflowKeys:
    return AirflowKeys(
        jwt=base64.b64encode(secrets.token_bytes(_SIGNING_KEY_BYTES)).decode(),
        api=secrets.token_urlsafe(_SIGNING_KEY_BYTES),
        fernet=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    )
