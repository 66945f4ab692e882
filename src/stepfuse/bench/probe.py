"""What the step bench asks of its surroundings: memory as it reads now, and bytes of a step."""

from __future__ import annotations

from stepfuse.bench.machine import Reading
from stepfuse.bench.step import Probe
from stepfuse.core.errors import NativeError
from stepfuse.engine.engine import Engine
from stepfuse.weights.memory import bytes_per_step


def probe_of(engine: Engine) -> Probe:
    """The probe of an engine. NativeError without the native core, which does the measuring."""
    parts = engine.parts
    team, geometry = parts.team, parts.geometry
    if team is None:
        raise NativeError("bench needs the native core to measure memory: build it (make build)")
    # Imported here: the module cannot be imported where the core is not built.
    from stepfuse.ops import native

    def size(rows: int, context: int) -> int:
        return bytes_per_step(geometry, rows, None, context, parts.facts.kv_cache_dtype).total

    return Probe(
        read=lambda: Reading(native.read_gbps(team), native.ping_pong_ns(team)),
        bytes_per_step=size,
        routing="experts expected under uniform routing",
    )
