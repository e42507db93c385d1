"""The JSON files of `speed --json`, read for their figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core_bench.board.rows import place
from core_bench.errors import UserError, one_line


class SpeedRow(BaseModel):
    """What the figure reads of a row; rows hold more. `spread`: interquartile range of the paired speed-ups."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)

    what: str
    device: str
    dtype: str
    impl: str
    heads: str
    tokens: Annotated[int, Field(gt=0)]
    dense_ms: Annotated[float, Field(gt=0)]
    ms: Annotated[float, Field(gt=0)]
    speedup: Annotated[float, Field(gt=0)]
    spread: Annotated[float, Field(ge=0)]
    rounds: Annotated[int, Field(gt=0)]
    ideal: float | None = None
    amdahl: float | None = None
    window: int | None = None
    sink: int | None = None


class SpeedFile(BaseModel):
    """`name`: the file's, without folders."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)

    name: str = ""
    environment: dict[str, Any]
    run: dict[str, Any]
    rows: list[SpeedRow]

    @property
    def label(self) -> str:
        """What was timed, and on what."""
        model = place(str(self.run.get("checkpoint") or self.run.get("shape") or self.name))
        threads = self.environment.get("threads")
        return f"{model}, {self.environment.get('device')}" + (f", {threads} threads" if threads else "")


def load_speed(path: Path) -> SpeedFile:
    """UserError names file and field; a speed-up must be the ratio of its two times."""
    try:
        found = SpeedFile.model_validate_json(path.read_text(encoding="utf-8")).model_copy(update={"name": path.name})
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "whole"
        raise UserError(f"{path}: not a file of speed --json: {field}: {first['msg']}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a file of speed --json: {one_line(error)}") from None
    for row in found.rows:
        if abs(row.speedup * row.ms / row.dense_ms - 1) > 1e-6:
            raise UserError(f"{path}: speedup of {row.tokens} tokens, {row.heads}: not dense_ms / ms")
    return found
