"""Which runtime executes a step, and why. Pure: no state, no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepfuse.runtime.batch import StepInput

Path = Literal["standard", "latency_specialized"]
DecodeBackend = Literal["auto", "standard", "latency_specialized"]


@dataclass(frozen=True, slots=True)
class Plan:
    """`reason` is a short stable label (counted and exported), e.g. `decode`, `prefill`, `wide`."""

    path: Path
    width: int
    reason: str


def plan(step: StepInput, backend: DecodeBackend, prepared_rows: int) -> Plan:
    """Pick the path of one step.

    `prepared_rows` is 0 where the specialized path cannot serve. A fresh sequence of one token is a
    decode row like any other: its slot was zeroed when it was taken.
    """
    width = step.width
    if backend == "standard":
        return Plan("standard", width, "backend_standard")
    if prepared_rows == 0:
        return Plan("standard", width, "unsupported")
    prefill = sum(1 for s in step.sequences if s.rows > 1)
    if prefill:
        return Plan("standard", width, "prefill" if prefill == len(step.sequences) else "mixed")
    if width > prepared_rows:
        return Plan("standard", width, "wide")
    return Plan("latency_specialized", width, "decode")
