"""What the step bench asks of its surroundings: memory as it reads now, and bytes of a step."""

from __future__ import annotations

from functools import cache

from stepfuse.bench.machine import Reading
from stepfuse.bench.routing import count_distinct
from stepfuse.bench.step import Probe
from stepfuse.core.errors import NativeError
from stepfuse.engine.engine import Engine
from stepfuse.weights.memory import bytes_per_step
from stepfuse.weights.sizes import expert_bytes

# Steps whose routing is counted per row count: enough for a mean, few for the standard path.
COUNTED_STEPS = 8


def probe_of(engine: Engine, seed: int = 0) -> Probe:
    """The probe of an engine; `seed` as in StepBench. NativeError without the native core, which
    does the measuring.
    """
    parts = engine.parts
    team, geometry = parts.team, parts.geometry
    if team is None:
        raise NativeError("bench needs the native core to measure memory: build it (make build)")
    # Imported here: the module cannot be imported where the core is not built.
    from stepfuse.ops import native

    @cache
    def distinct(rows: int) -> list[float]:
        return count_distinct(engine, rows, COUNTED_STEPS, seed)

    def size(rows: int, context: int) -> int:
        dtype = parts.facts.kv_cache_dtype
        known = bytes_per_step(geometry, rows, [], context, dtype)
        return known.total + round(sum(distinct(rows)) * expert_bytes(geometry))

    return Probe(
        read=lambda: Reading(native.read_gbps(team), native.ping_pong_ns(team)),
        bytes_per_step=size,
        routing=f"distinct experts counted over {COUNTED_STEPS} steps",
    )
