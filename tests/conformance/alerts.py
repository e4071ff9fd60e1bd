"""An alert of the DAG `watch`, mailed by Airflow over a connection with a password."""

import subprocess
import time
from contextlib import suppress
from email import message_from_string
from pathlib import Path

from conftest import Lab

from conformance.mailbox import MAIL_PASSWORD, MAIL_USER, Mailbox
from conformance.sites import describe_site, run_airflow

POLICY = '''"""A site's policy: a failed check of freshness is mailed."""

from airflow.providers.smtp.notifications.smtp import SmtpNotifier


def task_policy(task):
    if task.dag_id == "watch":
        mail = SmtpNotifier(to="jane@example.org", html_content="{{ exception }}")
        task.on_failure_callback = [mail]
'''
_LATE_SECONDS = 3


def describe_connection(port: int) -> dict[str, object]:
    """Write the connection as a user does."""
    return {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": port,
        "login": MAIL_USER,
        "password": MAIL_PASSWORD,
        "extra": {"disable_ssl": True, "disable_tls": True, "from_email": "frazil@example.org"},
    }


def raise_alert(lab: Lab) -> None:
    """Let a table fall behind, and Airflow run the DAG `watch` once, with a site's policy."""
    lab.write_stream(freshness={"warn_seconds": 1, "fail_seconds": _LATE_SECONDS})
    time.sleep(_LATE_SECONDS + 1)
    home = lab.stack.home / "airflow"
    (home / "config").mkdir(parents=True)
    (home / "config" / "airflow_local_settings.py").write_text(POLICY)
    environment = describe_site(lab, home)
    run_airflow(lab, environment, "db", "migrate")
    with suppress(subprocess.CalledProcessError):  # the DAG fails, which is the alert
        run_airflow(lab, environment, "dags", "test", "watch")


def keep_mails(mailbox: Mailbox, folder: Path) -> str:
    """Write the decoded mails to files, where secrets are searched; return their text."""
    for number, mail in enumerate(mailbox.mails):
        texts = [part.get_payload(decode=True) for part in message_from_string(mail).walk()]
        decoded = b"\n".join(text for text in texts if isinstance(text, bytes)).decode()
        (folder / f"mail-{number}.txt").write_text(f"{mail}\n{decoded}")
    return "".join(path.read_text() for path in sorted(folder.glob("mail-*.txt")))
