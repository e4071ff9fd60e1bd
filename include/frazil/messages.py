"""Bases of what crosses a process: `Message` is versioned JSON, `Report` a frozen answer."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A frozen value with a version that crosses process borders as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1

    def encode(self) -> str:
        """Write the message as JSON."""
        return self.model_dump_json()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `encode` wrote; unknown keys are refused."""
        return cls.model_validate_json(text)

    @property
    def is_last_word(self) -> bool:
        """Say whether the tasks behind this answer have nothing left to do."""
        return False


class Report(BaseModel):
    """A frozen answer that prints as JSON."""

    model_config = ConfigDict(frozen=True)
