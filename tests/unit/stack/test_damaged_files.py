"""A file of the stack that was cut off or edited is written again, or told with the next step."""

from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack.credentials import KEYS_FILE, ensure_credentials
from frazil_stack.jars import _ivy_hash, has_jars
from frazil_stack.ports import Ports, load_ports, save_ports
from frazil_stack.settings import load_settings
from frazil_stack.status import load_description

DAMAGED = ["", "{", "[]", "{}", "null", "5", '"x"', "\x00", "[" * 5000, '{"kafka": [], "jwt": 1}']
PARTS = pytest.mark.parametrize("text", DAMAGED, ids=[text[:20] for text in DAMAGED])


@PARTS
def test_the_description_of_the_stack(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "stack.json").write_text(text)

    with pytest.raises(StackError, match=r"stack\.json does not describe a stack"):
        load_description(tmp_path)


@PARTS
def test_the_keys_of_airflow(tmp_path: Path, text: str) -> None:
    ensure_credentials(tmp_path)
    (tmp_path / KEYS_FILE).write_text(text)

    with pytest.raises(StackError, match=r"keys\.json does not hold Airflow's three keys"):
        ensure_credentials(tmp_path)


@PARTS
def test_the_ports_of_the_last_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(text)

    assert load_ports(path) in (None, Ports())
    save_ports(path, Ports(kafka=1))
    assert load_ports(path) == Ports(kafka=1)


@PARTS
def test_the_stamp_of_the_jars(tmp_path: Path, text: str) -> None:
    settings = load_settings({"FRAZIL_JARS": str(tmp_path)})
    stamp = tmp_path / "fetched.json"
    stamp.write_text(text)

    assert not has_jars(settings)
    for files in ("", ', "files": 5', ', "files": []', ', "files": {"a.jar": 1}'):
        stamp.write_text(f'{{"ivy_sha256": "{_ivy_hash(settings)}"{files}}}')
        assert not has_jars(settings)
