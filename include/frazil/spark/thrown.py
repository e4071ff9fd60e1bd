"""Parse the exceptions in a job's error text, and find the signs that identify the cause.

The value of a record may be in any text and may contain any words. So signs are the classes of
exceptions, Spark's error conditions and whole sentences of clients, looked for only where Java and
Python write them; what is shown is the sign, never the text around it.
"""

import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

NO_COUNTERS = "Spark sent no counters of the rows it wrote"
"""A message of the job `stage_batch`; the cause is a busy machine."""


@dataclass(frozen=True)
class Thrown:
    """One exception of a chain: its class, qualified as the text has it, and its first line."""

    name: str
    message: str


@dataclass(frozen=True)
class Sign:
    """A sign as it is shown, and the classes and first lines that have it, as expressions."""

    shown: str
    classes: str
    message: str = ".*"

    def is_in(self, thrown: Thrown) -> bool:
        """Return whether an exception has the sign."""
        is_class = re.fullmatch(self.classes, thrown.name) is not None
        return is_class and re.fullmatch(self.message, thrown.message) is not None


_ANY = ".*"
_SPARK = (
    r"org\.apache\.spark\.[\w.$]*|PySpark\w*|Spark\w*|Retries\w*|UnknownException|Py4J\w*|"
    r"RuntimeError|TimeoutError|(?:java\.lang\.)?IllegalStateException"
)
_CLOUD = r"(?:software\.amazon|com\.google\.cloud|com\.azure|org\.apache\.hadoop\.fs)\.[\w.$]*"
_FILES = (
    r"java\.(?:io|nio)\.[\w.$]*|org\.apache\.iceberg\.exceptions\.RuntimeIOException|OSError|"
    rf"{_CLOUD}"
)
_FULL = r"(?:.*: |\[Errno \d+\] )?{}(?:: .*)?"
_SPILL = r"\[\w+\] Error while calling spill\(\) on \S+ : {}"


def _full(sentence: str) -> tuple[Sign, ...]:
    return (
        Sign(sentence, _FILES, _FULL.format(sentence)),
        Sign(sentence, _SPARK, _SPILL.format(sentence)),
    )


CONFLICT = (
    Sign("CommitFailedException", r"(?:org\.apache\.iceberg\..*)?CommitFailedException"),
    Sign("ValidationException", r"(?:org\.apache\.iceberg\..*)?ValidationException"),
    Sign("CommitStateUnknown", r"(?:org\.apache\.iceberg\..*)?CommitStateUnknownException"),
    Sign(
        "CommitFailedException",
        _ANY,
        r"Cannot commit rewrite because of a ValidationException or CommitFailedException\..*",
    ),
    Sign("SQLITE_BUSY", r"org\.sqlite\.\w+", r"\[SQLITE_BUSY\w*\].*"),
)
STORAGE = (
    *_full("No space left on device"),
    *_full("Disk quota exceeded"),
    Sign("AccessDenied", r"(?:[a-z]\w*\.)+AccessDeniedException"),
    Sign("AccessDenied", _CLOUD, r".*\bAccessDenied\b.*"),
    Sign("Status Code: 503", _CLOUD, r".*\bStatus Code: 503\b.*"),
)
KAFKA_GONE = (
    Sign("OffsetOutOfRange", r"(?:org\.apache\.kafka\.[\w.]+\.)?OffsetOutOfRangeException"),
    Sign("KAFKA_DATA_LOSS", _SPARK, r"\[KAFKA_DATA_LOSS[\w.]*\].*"),
    Sign("Some data may have been lost", _ANY, r"Some data may have been lost because .*"),
)
KAFKA_SILENT = (
    Sign(
        "org.apache.kafka.common.errors.TimeoutException",
        r"org\.apache\.kafka\.common\.errors\.TimeoutException",
    ),
    Sign(
        "Cannot fetch record for offset",
        _ANY,
        r"Cannot fetch record for offset \d+ in \d+ milliseconds",
    ),
)
CATALOG_GONE = tuple(
    Sign(f"org.apache.iceberg.exceptions.{name}", rf"org\.apache\.iceberg\.exceptions\.{name}")
    for name in ("RESTException", "ServiceFailureException", "ServiceUnavailableException")
)
SERVER_GONE = (
    Sign("StatusCode.UNAVAILABLE", _SPARK, r"(?:status = )?StatusCode\.UNAVAILABLE\b.{0,30}"),
    Sign(
        "Connection refused",
        r"(?:[\w.$]*[.$])?\w*(?:ConnectException|ConnectionRefusedError)",
        r"(?:.*[:\]] )?Connection refused.*",
    ),
    Sign("Connection refused", _SPARK, r"Connection refused(?: \(.{0,80}\))?"),
    Sign("Socket closed", rf"java\.net\.SocketException|{_SPARK}", "Socket closed"),
    Sign("SESSION_CLOSED", _SPARK, r"\[(?:\w+\.)?SESSION_CLOSED\].*"),
    Sign("INVALID_HANDLE", _SPARK, r"\[INVALID_HANDLE[\w.]*\].*"),
    Sign("RETRIES_EXCEEDED", _SPARK, r"\[RETRIES_EXCEEDED\].*"),
)
CONTEXT_ENDED = (
    Sign(
        "SparkContext was shut down",
        _SPARK,
        r"(?:(?:Job|Stage) ?\S* cancelled because )?SparkContext was shut down.*",
    ),
    Sign("stopped SparkContext", _SPARK, r"Cannot call methods on a stopped SparkContext.*"),
)
NO_EXECUTOR = (
    *(
        Sign(sentence, _SPARK, f"{sentence}.*")
        for sentence in (
            "no executor works for this job",
            "Master removed our application",
            "All masters are unresponsive",
        )
    ),
    *CONTEXT_ENDED,
)
EVERY_SIGN = (
    *CONFLICT,
    *STORAGE,
    *KAFKA_GONE,
    *KAFKA_SILENT,
    *CATALOG_GONE,
    *SERVER_GONE,
    *NO_EXECUTOR,
    Sign(NO_COUNTERS, _SPARK, f"{NO_COUNTERS}.*"),
)

_QUALIFIED = r"(?:[a-z]\w*\.)+[A-Z][\w$]*"
_NAMED = re.compile(rf"\(({_QUALIFIED})\) |({_QUALIFIED}|[A-Z]\w*(?:Exception|Error))(?:: |$)")
_OF_PYTHON = re.compile(r"[A-Z]\w*(?:Exception|Error)(?:: |$)")
_TASK = re.compile(
    r"(?:Job aborted due to stage failure: )?(?:Task \d+ in stage [\d.]+ failed \d+ times, most "
    r"recent failure: )?(?:Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): )?"
)
_WRAPPING = re.compile(
    r"|[A-Z]\w*|org\.apache\.(?:spark|hadoop|iceberg)\.[\w.$]*|java\.util\.concurrent\.[\w.$]*|"
    r"java\.io\.UncheckedIOException|java\.lang\.(?:Runtime|reflect\.\w+)Exception"
)
_OF_VALUES = frozenset(
    {
        "ValueError",
        "TypeError",
        "KeyError",
        "IndexError",
        "AssertionError",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "NumberFormatException",
        "ArithmeticException",
        "DateTimeException",
    }
)
"""Classes whose messages quote a value and name no other exception."""
_CAUSED = "Caused by: "
_TRACEBACK = "Traceback (most recent call last):"
_BEFORE_JAVA = ("JVM stacktrace:", "An error occurred while calling ")
_LONE_LINE = re.compile(
    r"\s*(status = StatusCode\.UNAVAILABLE|Some data may have been lost because they are not "
    r"available in Kafka any more; .*)"
)
"""Lines that clients write below the first one, and that are long enough to be told apart."""


def read_thrown(kind: str, text: str) -> tuple[Thrown, ...]:
    """Return the exceptions of an error's text; the first one is of the class `kind`.

    Lines below the first count only where a stack trace has them: the value of a record may have
    several lines, too.
    """
    lines = text.strip().splitlines()
    found = list(_unfold(kind, lines[0] if lines else ""))
    is_cause = False
    for before, line in pairwise(lines):
        was_cause, is_cause = is_cause, False
        if line.startswith(_CAUSED) and (before.startswith("\t") or was_cause):
            is_cause = True
            found += _unfold("", line.removeprefix(_CAUSED))
        elif before.startswith(_BEFORE_JAVA):
            found += _unfold("", line.removeprefix(": "))
        elif (before.startswith("  ") or before.endswith(_TRACEBACK)) and _OF_PYTHON.match(line):
            found += _unfold("", line)
        elif lone := _LONE_LINE.fullmatch(line):
            found.append(Thrown("SparkException", lone[1]))
    return tuple(found)


def _unfold(name: str, text: str) -> Iterator[Thrown]:
    """Yield an exception, and the ones that its message begins with if its class wraps others."""
    while True:
        text = _TASK.sub("", text, count=1) if _WRAPPING.fullmatch(name) else text
        named = _NAMED.match(text)
        if named is None or name in _OF_VALUES or not _WRAPPING.fullmatch(name):
            break
        if name:
            yield Thrown(name, "")
        name, text = named[1] or named[2], text[named.end() :]
    if name:
        yield Thrown(name, text)


def find_signs(signs: Iterable[Sign], thrown: Iterable[Thrown]) -> tuple[str, ...]:
    """Return the signs that some exception has, as they are shown."""
    exceptions = tuple(thrown)
    shown = [sign.shown for sign in signs if any(sign.is_in(each) for each in exceptions)]
    return tuple(dict.fromkeys(shown))


_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]*_[A-Z0-9_.]*\]")
_KNOWN_PACKAGES = re.compile(
    r"(?:javax?|jdk|sun|scala|org\.apache|org\.sqlite|org\.postgresql|com\.mysql|com\.fasterxml|"
    r"com\.google|com\.azure|software\.amazon|io\.grpc|io\.netty|io\.confluent)\."
)


def list_names(thrown: Iterable[Thrown]) -> tuple[str, ...]:
    """Return Spark's error conditions and the names of exceptions below the first one."""
    exceptions = tuple(thrown)
    conditions = [
        found[0]
        for each in exceptions
        if re.fullmatch(rf"{_SPARK}|[A-Z]\w*Exception", each.name)
        and (found := _CONDITION.match(each.message))
    ]
    names = [
        each.name
        for each in exceptions[1:]
        if _KNOWN_PACKAGES.match(each.name) or hasattr(builtins, each.name)
    ]
    return tuple(dict.fromkeys([*conditions, *names]))
