"""What Spark's Python workers are told, as JSON: where to write, and which rows to show Spark."""

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

Point: TypeAlias = int | float | str


class Landmarks(BaseModel):
    """Constants by column: of values, as the column's type holds them, and of texts' lengths.

    `patterns` are for RE2, by column too. `extremes` names the columns whose smallest and largest
    value is asked for, `sums` those whose sum is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: dict[str, tuple[Point, ...]] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    patterns: dict[str, tuple[str, ...]] = {}
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()


class PartitionBy(BaseModel):
    """What tells partitions apart: a column, and a transform of the Iceberg specification."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    transform: str


class DirectFiles(BaseModel):
    """How Spark's Python workers may write rows themselves: where, and by which schema."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    schema_ipc: str
    target_bytes: int
    parquet: dict[str, str | int]
    shown: tuple[str, ...] = ()
    landmarks: Landmarks | None = None
    """Without, Spark is shown every row."""
    partitions: tuple[PartitionBy, ...] = ()
    most_partitions: int = 1
    """That a task may begin files of."""
