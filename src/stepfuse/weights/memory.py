"""The memory plan: bytes per step, caches and what fits, known from the geometry before loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepfuse.core.config import Geometry
from stepfuse.core.errors import MemoryPlanError
from stepfuse.ops.views import KvDtype, record_bytes
from stepfuse.weights.sizes import expert_bytes, trunk_bytes, weight_bytes

# Past inputs of q, k and v that the conv state of a KDA layer keeps, BF16.
_CONV_PAST = 3
_CONV_PARTS = 3
# What loading needs beside the arena: blocks of one tensor, headers, the interpreter.
LOAD_MARGIN_BYTES = 512 << 20
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one step must read once (state: read and written), bytes."""

    trunk: int
    experts: int
    kv: int
    state: int

    @property
    def total(self) -> int:
        return self.trunk + self.experts + self.kv + self.state


def state_bytes(g: Geometry) -> int:
    """KDA state (FP32) and conv window (BF16) of one sequence, all layers."""
    state = g.kda.heads * g.kda.dim * g.kda.dim * 4
    conv = _CONV_PAST * _CONV_PARTS * g.kda.width * 2
    return len(g.kda_layers) * (state + conv)


def kv_bytes_per_token(g: Geometry, dtype: KvDtype) -> int:
    """Latent cache of one token, all MLA layers."""
    return len(g.mla_layers) * record_bytes(dtype, g.mla.kv_lora, g.mla.rope)


def _expected_experts(g: Geometry, rows: int) -> float:
    """Experts of one layer that `rows` rows are expected to choose under uniform routing."""
    experts, top_k = g.moe.experts, g.moe.top_k
    return experts * (1 - (1 - top_k / experts) ** rows)


def bytes_per_step(
    g: Geometry,
    rows: int,
    distinct_per_layer: Sequence[int] | None,
    context: int,
    kv_dtype: KvDtype,
) -> StepBytes:
    """Bytes of a decode step of `rows` sequences, one row and `context` cached tokens each.

    `distinct_per_layer`: experts chosen in each mixture layer, where they are known; None expects
    uniform routing.
    """
    moe_layers = g.dense_layers.count(False)
    if distinct_per_layer is None:
        chosen = moe_layers * _expected_experts(g, rows)
    else:
        chosen = float(sum(distinct_per_layer))
    return StepBytes(
        trunk=trunk_bytes(g, rows),
        experts=round(chosen * expert_bytes(g)),
        kv=rows * context * kv_bytes_per_token(g, kv_dtype),
        state=2 * rows * state_bytes(g),
    )


def sequences_that_fit(g: Geometry, free: int, context: int, kv_dtype: KvDtype) -> int:
    """Sequences of `context` tokens whose caches fit beside the weights in `free` bytes."""
    left = free - sum(weight_bytes(g).values()) - LOAD_MARGIN_BYTES
    return max(0, left // (state_bytes(g) + context * kv_bytes_per_token(g, kv_dtype)))


def available_bytes() -> int | None:
    """Memory this process may still take: the smaller of the system's and the control group's.

    None where the system does not say.
    """
    found = [size for size in (_system_free(), _cgroup_free()) if size is not None]
    return min(found, default=None)


def check_fits(size: int, what: str) -> None:
    """Raise MemoryPlanError where `size` bytes are more than this machine can give."""
    free = available_bytes()
    if free is not None and size > free:
        raise MemoryPlanError(
            f"{what} need {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are available: use a machine "
            "with more memory, or a smaller member of the family"
        )


def _system_free() -> int | None:
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None
    for line in info.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_free() -> int | None:
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if not limit.is_file() or not used.is_file():
        return None
    text = limit.read_text().strip()
    return None if text == "max" else max(0, int(text) - int(used.read_text()))
