"""What the gate measures: ratios of one run on a small random model, and counts of its program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from stepfuse.core.config import Geometry
from stepfuse.core.errors import StepfuseError
from stepfuse.engine.pool import Caches, CacheWish, plan_caches
from stepfuse.ops import native
from stepfuse.runtime.batch import SequenceRows, StepInput, StepOutput
from stepfuse.runtime.fused import FusedRuntime
from stepfuse.runtime.standard import StandardRuntime
from stepfuse.weights.load import LoadOptions, load
from stepfuse.weights.memory import bytes_per_step
from stepfuse.weights.presets import Shape
from stepfuse.weights.synth import SynthOptions, synth_shape

# Several times the last-level cache of a small machine, so that its steps are bound by memory, and
# still written and loaded within seconds.
SHAPE = Shape(
    "k3", 1024, 6, 8192, 8, 8, 3072, 32, 8, 384,
    latent=512, q_lora=256, kv_lora=256, shared=2, block=3, expert_format="mxfp4",
)  # fmt: skip
ROWS = (1, 4, 8)
# Steps of one turn; the standard path takes several times as long and varies less.
STEPS, STANDARD_STEPS = 12, 4
# Middle error of a row's logits between the paths. Each is 1.2 % off the exact ones
# (docs/numerics.md); a choice of experts that a near tie turns moves single rows further.
AGREEMENT = 0.04


class GateError(StepfuseError):
    """The gate cannot judge: wrong results, or a file of values that is not one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`counts`: exact, the same in every run. `ratios`: times over times of one run, medians over
    the rounds; larger is slower. `spread`: of each ratio, half its middle range over itself.
    """

    counts: dict[str, int]
    ratios: dict[str, float]
    spread: dict[str, float]

    def better_of(self, other: Measured) -> Measured:
        """Each ratio from the measurement in which it is smaller."""
        source = {
            name: self if ratio <= other.ratios[name] else other
            for name, ratio in self.ratios.items()
        }
        ratios = {name: m.ratios[name] for name, m in source.items()}
        return Measured(self.counts, ratios, {name: m.spread[name] for name, m in source.items()})


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under the gate: one set of weights and caches, every runtime over them."""

    geometry: Geometry
    caches: Caches
    team: native.Team
    standard: StandardRuntime
    levels: dict[str, FusedRuntime]

    @property
    def best(self) -> str:
        return native.levels()[-1]


@contextmanager
def subject(threads: int) -> Iterator[Subject]:
    """Write the model into a temporary folder, load it, and let go of both afterwards."""
    with TemporaryDirectory(prefix="stepfuse-gate-") as folder:
        synth_shape(SHAPE, Path(folder), SynthOptions(quiet=True, overwrite=True))
        loaded = load(Path(folder), LoadOptions(quiet=True))
    geometry = loaded.geometry
    wish = CacheWish("bf16", 2 * (STEPS + 1), max(ROWS), None)
    caches = Caches(plan_caches(geometry, wish))
    team = native.Team(threads)
    views = (caches.latent.views(), caches.state.views())
    standard = StandardRuntime(geometry, loaded.weights, *views, team)
    # The scalar level is there to be right; its times say nothing.
    names = [name for name in native.levels() if name != "scalar"] or native.levels()
    levels = {
        name: FusedRuntime(geometry, loaded.weights, *views, team, max(ROWS), level=name)
        for name in names
    }
    yield Subject(geometry, caches, team, standard, levels)
    caches.close()


def measure(s: Subject, rounds: int, progress: Callable[[str], None]) -> Measured:
    """Check that all runtimes agree, then take `rounds` rounds of turns of every runtime."""
    check_agreement(s)
    found: dict[str, list[float]] = {}
    for turn in range(rounds):
        progress(f"round {turn + 1}")
        for name, ratio in _round(s).items():
            found.setdefault(name, []).append(ratio)
    ratios = {name: median(values) for name, values in found.items()}
    spread = {
        name: float(np.subtract(*np.percentile(values, (75, 25)))) / 2 / ratios[name]
        for name, values in found.items()
    }
    return Measured(counts(s), ratios, spread)


def counts(s: Subject) -> dict[str, int]:
    """What does not depend on the clock: the program's size, and bytes at uniform routing."""
    step = s.levels[s.best].native
    found = {
        "stages": len(step.stages()),
        "barriers": step.barriers,
        "arena bytes": step.arena_bytes,
    }
    return found | {f"bytes of a step, {_rows(n)}": _bytes(s.geometry, n) for n in ROWS}


def check_agreement(s: Subject) -> None:
    """Raise GateError where a level's logits are not those of the standard path."""
    want = _logits(s, s.standard)
    for name, runtime in s.levels.items():
        got = _logits(s, runtime)
        error = ((got - want).norm(dim=1) / want.norm(dim=1)).median()
        if not float(error) <= AGREEMENT:
            raise GateError(
                f"level {name}: logits are {float(error):.1%} off the standard path's (at most "
                f"{AGREEMENT:.0%}); no time is worth measuring before that is repaired"
            )


def _logits(s: Subject, runtime: StandardRuntime | FusedRuntime) -> torch.Tensor:
    """Of three steps of the widest width."""
    return torch.cat([out.logits.clone() for _, out in _wave(s, runtime, max(ROWS), 3)])


def _round(s: Subject) -> dict[str, float]:
    """One turn of everything as ratios. Memory is read right before and behind the steps."""
    ratios: dict[str, float] = {}
    for rows in ROWS:
        before = native.read_gbps(s.team)
        best = _step_ms(s, s.levels[s.best], rows, STEPS)
        read = mean((before, native.read_gbps(s.team)))
        standard = _step_ms(s, s.standard, rows, STANDARD_STEPS)
        ratios[f"step / roof, {_rows(rows)}"] = best / (_bytes(s.geometry, rows) / read / 1e6)
        ratios[f"specialized / standard, {_rows(rows)}"] = best / standard
        for name, runtime in s.levels.items():
            if name != s.best:
                ms = _step_ms(s, runtime, rows, STEPS)
                ratios[f"{s.best} / {name}, {_rows(rows)}"] = best / ms
    return ratios


def _step_ms(s: Subject, runtime: StandardRuntime | FusedRuntime, rows: int, steps: int) -> float:
    """Median step, the first one apart."""
    return median(ns for ns, _ in list(_wave(s, runtime, rows, steps + 1))[1:]) / 1e6


def _wave(
    s: Subject, runtime: StandardRuntime | FusedRuntime, rows: int, steps: int
) -> Iterator[tuple[int, StepOutput]]:
    """Nanoseconds and output of every step of `rows` new sequences of random tokens."""
    slots = [s.caches.take_slot() for _ in range(rows)]
    pages = [s.caches.take_pages(1) for _ in range(rows)]
    generator = np.random.default_rng(rows)
    try:
        for cached in range(steps):
            tokens = generator.integers(0, s.geometry.vocab, rows).astype(np.int32)
            step = StepInput(tokens, _sequences(slots, pages, cached))
            began = time.perf_counter_ns()
            output = runtime.run(step)
            yield time.perf_counter_ns() - began, output
    finally:
        for slot, page in zip(slots, pages, strict=True):
            s.caches.give_slot(slot)
            s.caches.give_pages(page)


def _sequences(
    slots: list[int], pages: list[NDArray[np.int32]], cached: int
) -> tuple[SequenceRows, ...]:
    return tuple(
        SequenceRows(slot, 1, cached, page) for slot, page in zip(slots, pages, strict=True)
    )


def _bytes(geometry: Geometry, rows: int) -> int:
    """Of a step with half a turn's tokens cached and routing as expected."""
    return bytes_per_step(geometry, rows, None, STEPS // 2, "bf16").total


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"
