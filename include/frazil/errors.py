"""Every error that a person meets, as one tree.

FrazilError
├── ConfigurationError           a file, option or connection is wrong; nothing was tried
│   ├── StreamFileError          a stream file: file, line, field and the fix
│   ├── SuiteError               an expectation suite
│   ├── UnknownStreamError
│   ├── ConnectionMissingError
│   ├── TargetError              recover or replay cannot reach what was asked for
│   └── NothingToDecideError
├── UnavailableError             something did not answer; the same step may be tried again
│   ├── KafkaUnavailableError
│   ├── CatalogUnavailableError
│   ├── SparkUnavailableError
│   ├── StorageError             the warehouse refused a write (full, forbidden)
│   ├── RegistryUnavailableError
│   └── UnknownSchemaIdError     the schema registry does not know it yet
├── SourceError                  Kafka and the table disagree; a person decides
│   ├── UnknownTopicError
│   ├── RetentionGapError
│   ├── TopicRecreatedError
│   ├── TopicChangedError
│   ├── ClusterChangedError
│   ├── NotMovableError          where the new cluster's log goes on cannot be shown
│   ├── PartitionsShrankError
│   ├── NotReplayableError       Kafka no longer delivers every record of the range
│   └── OffsetsWentBackError
├── MissingTableError            the catalog has no such table
├── SchemaError                  a registered schema does not fit; a person decides
│   ├── UnknownSubjectError
│   └── SchemaMisfitError
├── TableError                   the table is not what the ledger says
│   ├── TableRecreatedError
│   ├── ForeignRollbackError
│   ├── HistoryCutError
│   ├── UnknownStateError        a newer release wrote the state, or somebody edited it
│   ├── IncompatibleTableError
│   ├── NotAdoptableError        another writer's rows cannot be taken over as they are
│   └── WriterActiveError        another writer commits where none may
├── SchemaChangeError            the stream file asks for another schema than the table has
│   ├── SchemaReviewError        a person decides
│   └── SchemaRefusedError       policy or the table forbids it
├── BatchError                   this batch must not become visible
│   ├── BatchBlockedError
│   ├── BudgetExceededError
│   ├── QualityFailedError
│   ├── ConservationError
│   ├── SupersededError
│   ├── StageLostError
│   └── StageStaleError
├── CommitContentionError        the publish loop used up its turns
├── ClockBehindError             this machine's clock is behind the table's last change
├── JobFailedError               a Spark job ended with an error
├── DrillError                   a drill did not go as it must
└── StackError                   the embedded stack: a port, Java, a service
"""

from typing import ClassVar


class FrazilError(Exception):
    """Say what happened, with facts, and what to do next, with a command."""

    retryable: ClassVar[bool] = False

    def __init__(self, facts: str, next_step: str) -> None:
        """Keep both parts apart, so that a screen can show them apart."""
        super().__init__(facts, next_step)
        self.facts = facts
        self.next_step = next_step

    def __str__(self) -> str:
        """Join facts and next step on two lines."""
        return f"{self.facts}\nNext: {self.next_step}"

    @property
    def code(self) -> str:
        """Name the error as it appears in JSON and in the timeline."""
        return type(self).__name__.removesuffix("Error")


class ConfigurationError(FrazilError):
    """A file, option or connection is wrong; nothing was tried."""


class StreamFileError(ConfigurationError):
    """A stream file does not say what it must."""


class SuiteError(ConfigurationError):
    """An expectation suite cannot be read or does not fit the stream."""


class UnknownStreamError(ConfigurationError):
    """No stream file has this name."""


class ConnectionMissingError(ConfigurationError):
    """A stream names a connection that nobody defined."""


class DrillError(FrazilError):
    """A drill did not go as it must."""


class TargetError(ConfigurationError):
    """What a recovery or a replay was asked for is not there to be reached."""


class NothingToDecideError(ConfigurationError):
    """A decision answers nothing: there is no gap, no rollback, no new table."""


class UnavailableError(FrazilError):
    """Something did not answer; the same step may be tried again."""

    retryable = True


class KafkaUnavailableError(UnavailableError):
    """No broker answered in time."""


class CatalogUnavailableError(UnavailableError):
    """The catalog did not answer or answered with a fault of its own."""


class SparkUnavailableError(UnavailableError):
    """The Spark Connect server or cluster did not answer."""


class StorageError(UnavailableError):
    """The warehouse refused a read or a write."""


class RegistryUnavailableError(UnavailableError):
    """The schema registry did not answer, or refused this user."""


class UnknownSchemaIdError(UnavailableError):
    """Records name a schema id that the registry does not know; it may come."""


class SourceError(FrazilError):
    """Kafka and the table disagree; a person decides."""


class UnknownTopicError(SourceError):
    """The cluster has no such topic, or this user may not see it."""


class RetentionGapError(SourceError):
    """Records after the recovery point are gone from Kafka (protocol.md, PLAN)."""


class TopicRecreatedError(SourceError):
    """The topic's id is not the one that the ledger holds."""


class TopicChangedError(SourceError):
    """The stream file names a topic that the ledger has never read."""


class ClusterChangedError(SourceError):
    """The cluster's id is not the one that the ledger holds."""


class NotMovableError(SourceError):
    """Where another cluster's log goes on from the recovery point cannot be shown."""


class PartitionsShrankError(SourceError):
    """The topic has fewer partitions than the ledger."""


class NotReplayableError(SourceError):
    """Kafka no longer delivers every record of a range; replaying it would lose rows."""


class OffsetsWentBackError(SourceError):
    """Kafka's end offset lies before the recovery point."""


class SchemaError(FrazilError):
    """A registered schema does not fit the stream; a person decides."""


class UnknownSubjectError(SchemaError):
    """The schema registry has no such subject."""


class SchemaMisfitError(SchemaError):
    """A registered schema has no exact form in the stream's columns."""


class TableError(FrazilError):
    """The table is not what the ledger says."""


class TableRecreatedError(TableError):
    """The table's uuid is not the one that the ledger or the plan holds."""


class ForeignRollbackError(TableError):
    """Somebody moved main back without Frazil (protocol.md, recovery point)."""


class HistoryCutError(TableError):
    """Main has no state of the stream although there once was one."""


class UnknownStateError(TableError):
    """A snapshot's state, or a stream's hint, is not of a form that this release reads."""


class IncompatibleTableError(TableError):
    """The table's columns cannot hold what the stream file asks for."""


class NotAdoptableError(TableError):
    """Another writer's rows cannot be taken over as they are; a person decides."""


class WriterActiveError(TableError):
    """Another writer commits to a table that is taken over, or whose stream allows none."""


class MissingTableError(FrazilError):
    """The catalog has no such table."""


class SchemaChangeError(FrazilError):
    """The stream file asks for another schema than the table has."""


class SchemaReviewError(SchemaChangeError):
    """A schema change waits for a person's answer."""

    def __init__(self, facts: str, next_step: str, *, review_id: str = "") -> None:
        """Keep the review's id, by which an answer says what it has seen."""
        super().__init__(facts, next_step)
        self.review_id = review_id


class SchemaRefusedError(SchemaChangeError):
    """A schema change that policy or the table forbids."""


class BatchError(FrazilError):
    """This batch must not become visible."""


class BatchBlockedError(BatchError):
    """A failed check holds the stream until something changes."""


class BudgetExceededError(BatchError):
    """More bad records than the stream's budget."""


class QualityFailedError(BatchError):
    """An expectation failed and the stream says block."""


class ConservationError(BatchError):
    """Records read, written, quarantined and skipped do not add up."""


class SupersededError(BatchError):
    """Another batch moved the recovery point first; this plan is void."""


class StageLostError(BatchError):
    """The staged snapshot or its branch is gone; plan again."""


class StageStaleError(BatchError):
    """The table's layout or the rules changed after staging; plan again."""


class CommitContentionError(FrazilError):
    """Other writers won every turn of the publish loop."""

    retryable = True


class ClockBehindError(FrazilError):
    """This machine's clock is behind the table's last change."""


class JobFailedError(FrazilError):
    """A Spark job ended with an error, or its client died; another attempt harms nothing."""

    retryable = True


class StackError(FrazilError):
    """The embedded stack cannot start or a part of it is unwell."""
