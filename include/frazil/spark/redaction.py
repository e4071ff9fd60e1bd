"""Spark's settings that hide secrets in its event log, web interface, plans and logs.

The settings files of the embedded stack and of compose repeat them; a test compares both. They hold
no backslash, which is syntax in these files.
"""

from collections.abc import Mapping

_NAMES = (
    "secret|password|passphrase|token|credential|access.?key|account.?key|api.?key|jaas|"
    "keystore[.]key|private.?key|authorization|cookie|sas.token|connection.string|header[.]"
)

REDACTION: Mapping[str, str] = {
    # Names of settings and of options: their values are hidden.
    "spark.redaction.regex": f"(?i){_NAMES}",
    "spark.sql.redaction.options.regex": f"(?i)url|{_NAMES}",
    # Requests to a Connect server, which are job descriptions, events and log lines as text:
    # the value of an option is on the line behind its name.
    "spark.sql.redaction.string.regex": f'(?i)key: "[^"]*(?:{_NAMES})[^"]*"[^"]*value: ".*',
}
