"""Airflow's password and keys: made once, private, changeable by their owner."""

import base64
import json
from pathlib import Path

from frazil_stack.credentials import ensure_credentials


def test_credentials_are_made_once(tmp_path: Path) -> None:
    first = ensure_credentials(tmp_path)
    password = (tmp_path / "password.txt").read_text()

    assert ensure_credentials(tmp_path) == first
    assert (tmp_path / "password.txt").read_text() == password


def test_nobody_else_can_read_them(tmp_path: Path) -> None:
    ensure_credentials(tmp_path / "airflow")

    assert (tmp_path / "airflow").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "airflow").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_two_homes_share_no_secret(tmp_path: Path) -> None:
    one, two = ensure_credentials(tmp_path / "one"), ensure_credentials(tmp_path / "two")

    assert not {one.jwt, one.api, one.fernet} & {two.jwt, two.api, two.fernet}
    assert len(base64.b64decode(one.jwt)) == 64
    assert len(base64.urlsafe_b64decode(one.fernet)) == 32


def test_a_password_that_a_person_writes_is_the_one_that_airflow_reads(tmp_path: Path) -> None:
    ensure_credentials(tmp_path)
    (tmp_path / "password.txt").write_text("a better one\n")

    ensure_credentials(tmp_path)

    logins = json.loads((tmp_path / "logins.json").read_text())
    assert logins["admin"] == "a better one"
    assert logins["approver"] == (tmp_path / "approver-password.txt").read_text().strip()


def test_secrets_do_not_show_in_a_repr(tmp_path: Path) -> None:
    keys = ensure_credentials(tmp_path)

    assert keys.jwt not in repr(keys)
    assert keys.fernet not in repr(keys)
