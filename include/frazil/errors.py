"""Every error that Frazil shows to its users, as one tree.

FrazilError
├── ConfigurationError           a file, option or connection is wrong; nothing was tried
│   ├── StreamFileError          a stream file: file, line, field and the fix
│   ├── SuiteError               an expectation suite
│   ├── UnknownStreamError
│   ├── ConnectionMissingError
│   ├── GroupInUseError          the monitoring group is another client's
│   ├── TargetError              the target of a recover or replay cannot be reached
│   ├── StateEndsError           a gap that no merge of the state table could follow
│   └── NothingToDecideError
├── UnavailableError             a service did not answer; the same step may be tried again
│   ├── KafkaUnavailableError
│   ├── CatalogUnavailableError
│   ├── SparkUnavailableError
│   ├── StorageError             the warehouse refused a write (full, forbidden)
│   ├── RegistryUnavailableError
│   ├── DatabaseUnavailableError
│   └── UnknownSchemaIdError     the schema registry does not know it yet
├── SourceError                  Kafka and the table disagree; the operator decides
│   ├── UnknownTopicError
│   ├── RetentionGapError
│   ├── TopicRecreatedError
│   ├── TopicChangedError
│   ├── ClusterChangedError
│   ├── NotMovableError          the offsets to continue from on a new cluster are unknown
│   ├── PartitionsShrankError
│   ├── NotReplayableError       Kafka no longer delivers every record of the range
│   └── OffsetsWentBackError
├── CatalogRejectedError         the catalog or its client rejects a request for good
├── MissingTableError            the catalog has no such table
├── SchemaError                  a registered schema does not fit; the operator decides
│   ├── UnknownSubjectError
│   └── SchemaMisfitError
├── TableError                   the table contradicts the ledger
│   ├── TableRecreatedError
│   ├── TableDroppedError
│   ├── ForeignRollbackError
│   ├── HistoryCutError
│   ├── UnknownStateError        a newer release wrote the state, or it was edited by hand
│   ├── IncompatibleTableError
│   ├── NotAdoptableError        the rows of another writer cannot be adopted as they are
│   ├── WriterActiveError        another writer commits to a table that allows none
│   └── MergeHaltedError         a state table cannot follow its change table
├── SchemaChangeError            the stream file and the table have different schemas
│   ├── SchemaReviewError        the change waits for a review
│   └── SchemaRefusedError       the policy or the table forbids the change
├── BatchError                   this batch must not be published
│   ├── BatchBlockedError
│   ├── BudgetExceededError
│   ├── RecordsNotIsolatedError  records make Spark fail, and the search for them reached its limit
│   ├── QualityFailedError
│   ├── ConservationError
│   ├── SupersededError
│   ├── StageLostError
│   └── StageStaleError
├── CommitContentionError        every attempt to commit met a conflict
├── ClockBehindError             this machine's clock is behind the table's last change
├── JobFailedError               a Spark job ended with an error
├── DrillError                   a drill did not end as expected
├── UnexpectedError              any other exception, by its class and place; its message is hidden
└── StackError                   the embedded stack: a port, Java, a service
"""

import os
import re
from pathlib import Path
from traceback import extract_tb
from typing import ClassVar, Self

DEBUG_VARIABLE = "FRAZIL_DEBUG"
"""With 1, logs and the terminal show messages and tracebacks of unexpected errors as they are."""


class FrazilError(Exception):
    """Base of all errors: what happened, with facts, and the next step, with a command."""

    retryable: ClassVar[bool] = False
    is_record_suspected: bool = False
    """Whether a record may be the cause: the step then searches for it."""
    cause_type: str = ""
    """The type of the error below this one, which names no value of a record."""

    def __init__(self, facts: str, next_step: str) -> None:
        """Store facts and next step separately, so that a screen can show them separately.

        Half a surrogate pair, as in a name of a registered schema, is shown by its number.
        """
        facts, next_step = (
            text.encode("utf-8", "backslashreplace").decode() for text in (facts, next_step)
        )
        super().__init__(facts, next_step)
        self.facts = facts
        self.next_step = next_step

    def suspect_record(self, cause_type: str) -> Self:
        """Store that a record may be the cause, and the type of the error below; return itself."""
        self.is_record_suspected, self.cause_type = True, cause_type
        return self

    def __str__(self) -> str:
        """Return facts and next step on two lines."""
        return f"{self.facts}\nNext: {self.next_step}"

    @property
    def code(self) -> str:
        """Return the error's code as it appears in JSON and in the timeline."""
        return type(self).__name__.removesuffix("Error")


class ConfigurationError(FrazilError):
    """A file, option or connection is wrong; nothing was tried."""


class StreamFileError(ConfigurationError):
    """A stream file is missing a key, has an invalid value or is not valid YAML."""


class SuiteError(ConfigurationError):
    """An expectation suite cannot be read or does not fit the stream."""


class UnknownStreamError(ConfigurationError):
    """No stream file has this name."""


class ConnectionMissingError(ConfigurationError):
    """A stream names a connection that is not defined."""


class GroupInUseError(ConfigurationError):
    """The consumer group for monitoring has members, or offsets of another client."""


class DrillError(FrazilError):
    """A drill did not end as expected."""


class TargetError(ConfigurationError):
    """The snapshot, offset or range that a recovery or replay asks for cannot be reached."""


class NothingToDecideError(ConfigurationError):
    """A decision has no problem to solve: there is no gap, no rollback and no new table."""


class StateEndsError(ConfigurationError):
    """A gap would set offsets back, and the merges of the state table would end."""


class UnavailableError(FrazilError):
    """A service did not answer; the same step may be tried again."""

    retryable = True


class KafkaUnavailableError(UnavailableError):
    """No broker answered in time."""


class CatalogUnavailableError(UnavailableError):
    """The catalog did not answer, or answered with an internal error."""


class SparkUnavailableError(UnavailableError):
    """The Spark Connect server or cluster did not answer."""


class StorageError(UnavailableError):
    """The warehouse refused a read or a write."""


class RegistryUnavailableError(UnavailableError):
    """The schema registry did not answer, or denied access."""


class DatabaseUnavailableError(UnavailableError):
    """The source's database did not answer, or refused the login."""


class UnknownSchemaIdError(UnavailableError):
    """Records carry a schema id that the registry does not know yet."""


class SourceError(FrazilError):
    """Kafka and the table disagree; the operator decides."""


class UnknownTopicError(SourceError):
    """The cluster has no such topic, or this user may not describe it."""


class RetentionGapError(SourceError):
    """Kafka no longer holds records after the recovery point (protocol.md, PLAN)."""


class TopicRecreatedError(SourceError):
    """The topic id differs from the one in the ledger: the topic was deleted and recreated."""


class TopicChangedError(SourceError):
    """The stream file names a topic that is not in the ledger."""


class ClusterChangedError(SourceError):
    """The cluster id differs from the one in the ledger."""


class NotMovableError(SourceError):
    """The recovery point cannot be translated to offsets of the new cluster."""


class PartitionsShrankError(SourceError):
    """The topic has fewer partitions than the ledger records."""


class NotReplayableError(SourceError):
    """Kafka no longer holds every record of a range; replaying it would lose rows."""


class OffsetsWentBackError(SourceError):
    """Kafka's end offset is below the recovery point."""


class SchemaError(FrazilError):
    """A registered schema does not fit the stream; the operator decides."""


class UnknownSubjectError(SchemaError):
    """The schema registry has no such subject."""


class SchemaMisfitError(SchemaError):
    """A registered schema cannot be represented exactly in the stream's columns."""


class TableError(FrazilError):
    """The table contradicts the ledger."""


class TableRecreatedError(TableError):
    """The table's uuid differs from the one in the ledger or the plan."""


class TableDroppedError(TableError):
    """The catalog has no such table, but the ledger archive has batches of it."""


class ForeignRollbackError(TableError):
    """Branch main was rolled back without Frazil (protocol.md, recovery point)."""


class HistoryCutError(TableError):
    """Branch main has no state of the stream although one was published before."""


class UnknownStateError(TableError):
    """The state in a snapshot, or a hint property, has a format that this release cannot read."""


class IncompatibleTableError(TableError):
    """The table cannot hold the stream's columns, or is in a state that cannot be written."""


class NotAdoptableError(TableError):
    """The rows of another writer cannot be adopted as they are; the operator decides."""


class WriterActiveError(TableError):
    """Another writer commits to a table during its adoption, or to one that allows no others."""


class MergeHaltedError(TableError):
    """A state table cannot follow its change table; nothing was written, a person decides."""


class CatalogRejectedError(FrazilError):
    """The catalog or its client rejected a request, and would reject it again."""


class MissingTableError(FrazilError):
    """The catalog has no such table."""


class SchemaChangeError(FrazilError):
    """The stream file and the table have different schemas."""


class SchemaReviewError(SchemaChangeError):
    """A schema change waits for a review."""

    def __init__(self, facts: str, next_step: str, *, review_id: str = "") -> None:
        """Store the review id; an answer quotes it, so that it applies to this change only."""
        super().__init__(facts, next_step)
        self.review_id = review_id


class SchemaRefusedError(SchemaChangeError):
    """The policy or the table forbids a schema change."""


class BatchError(FrazilError):
    """This batch must not be published."""


class BatchBlockedError(BatchError):
    """A failed check blocks the stream until the rules change or a waiver is given."""


class BudgetExceededError(BatchError):
    """The batch has more bad records than the stream's error budget allows."""


class RecordsNotIsolatedError(BatchError):
    """Records make Spark fail, and the search for them reached its limit of jobs or time."""


class QualityFailedError(BatchError):
    """An expectation failed and `quality.on_failure` is `block`."""


class ConservationError(BatchError):
    """Records read do not equal records written, quarantined and skipped."""


class SupersededError(BatchError):
    """Another batch moved the recovery point first; this plan is obsolete."""


class StageLostError(BatchError):
    """The staged snapshot or its branch no longer exists; plan again."""


class StageStaleError(BatchError):
    """The table's schema, partition spec or rules changed after staging; plan again."""


class CommitContentionError(FrazilError):
    """Every attempt to commit met a conflict with another writer."""

    retryable = True


class ClockBehindError(FrazilError):
    """This machine's clock is behind the table's last change."""


class JobFailedError(FrazilError):
    """A Spark job ended with an error, or its client died; it is safe to try again."""

    retryable = True


class StackError(FrazilError):
    """The embedded stack cannot start, or one of its services is unhealthy."""


class UnexpectedError(FrazilError):
    """An exception that is not one of Frazil's, without its message."""

    retryable = True


def is_debugging() -> bool:
    """Return whether messages of other programs may be shown, whatever they contain."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in {"", "0"}


def hide_message(error: BaseException, subject: str = "") -> FrazilError:
    """Return Frazil's own errors unchanged, and any other error as its class and place only.

    A message of another program may quote values of records, or a secret.
    """
    if isinstance(error, FrazilError):
        return error
    return UnexpectedError(
        f"{subject}{': ' * bool(subject)}{type(error).__name__}{_describe_place(error)}; its "
        "message is not shown, because it may contain values of records or secrets",
        f"try again, and check this machine with `frazil doctor`; {DEBUG_VARIABLE}=1 in the "
        "environment shows message and traceback: remove such values before you report them",
    )


def _describe_place(error: BaseException) -> str:
    """Return the last place in Frazil's code, and the one in a library that raised the error."""
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if _OWN_FILE.search(frame.filename)]
    named = (*own[-1:], *frames[-1:])
    places = [f"{'/'.join(Path(each.filename).parts[-3:])}:{each.lineno}" for each in named]
    return f" at {', from '.join(dict.fromkeys(places))}" if places else ""


_OWN_FILE = re.compile(r"/(frazil\w*|dags|spark_jobs)/(?!.*/(site-packages|lib)/)")
_LITERAL = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|(?<!\w)'(?:[^'\\\n]|\\.)*'")
_PARTITION = re.compile(r"(/[\w.%-]+=)[^/\s]+")


def hide_literals(text: str) -> str:
    """Replace quoted texts and partition values, which may be values of records, by `…`."""
    return hide_partition_values(_LITERAL.sub("…", text))


def hide_partition_values(text: str) -> str:
    """Replace partition values in paths (`/city=Oslo/`) by `…`."""
    return _PARTITION.sub(r"\1…", text)
