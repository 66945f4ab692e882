"""What the engine did: steps by path and reason, their times, tokens, requests."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

from stepfuse.runtime.plan import Plan

# Step records kept for medians; older ones only stay in the counts.
RECORDS_KEPT = 65536


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. `active`: requests with rows in it; `prefill`: it held more rows than requests.

    `wall_ns`: schedule to emit; `end_ns`: perf_counter_ns when it ended; `native_ns`: the native
    step's own clock, 0 on the standard path.
    """

    path: str
    reason: str
    width: int
    active: int
    prefill: bool
    wall_ns: int
    native_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. `steps` counts (path, reason); times are medians over decode steps, in ms."""

    steps: dict[tuple[str, str], int]
    decode_step_ms: dict[str, float]
    prompt_tokens: int
    generated_tokens: int
    finished: dict[str, int]
    preemptions: int
    waiting: int
    running: int
    unsupported: tuple[str, ...]


Kind = Literal["prompt", "generated"]


class Statistics:
    """Counters of one engine; `records` are the latest steps, oldest first."""

    def __init__(self) -> None:
        self.records: deque[StepRecord] = deque(maxlen=RECORDS_KEPT)
        self.steps: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[Kind] = Counter()
        self.finished: Counter[str] = Counter()

    def record(self, chosen: Plan, active: int, started_ns: int, native_ns: int) -> None:
        """Note a step that ends now; `started_ns` by perf_counter_ns."""
        ended = time.perf_counter_ns()
        self.records.append(
            StepRecord(
                path=chosen.path,
                reason=chosen.reason,
                width=chosen.width,
                active=active,
                prefill=chosen.width > active,
                wall_ns=ended - started_ns,
                native_ns=native_ns,
                end_ns=ended,
            )
        )
        self.steps[chosen.path, chosen.reason] += 1

    def snapshot(
        self, preemptions: int, waiting: int, running: int, unsupported: tuple[str, ...]
    ) -> EngineStats:
        return EngineStats(
            steps=dict(self.steps),
            decode_step_ms=self.decode_step_ms(),
            prompt_tokens=self.tokens["prompt"],
            generated_tokens=self.tokens["generated"],
            finished=dict(self.finished),
            preemptions=preemptions,
            waiting=waiting,
            running=running,
            unsupported=unsupported,
        )

    def decode_step_ms(self) -> dict[str, float]:
        """Median wall time of decode steps per path."""
        times: dict[str, list[int]] = {}
        for step in self.records:
            if not step.prefill:
                times.setdefault(step.path, []).append(step.wall_ns)
        return {path: median(values) / 1e6 for path, values in times.items()}
