"""Every reason the specialized path cannot serve a model, found before any memory is taken."""

from __future__ import annotations

from collections.abc import Iterator

from stepfuse.core.config import FP4_GROUP, TILE_ROWS, Geometry
from stepfuse.core.errors import UnsupportedError

# Rows one step may be prepared for: wider steps belong to the standard runtime's matrix products.
MAX_ROWS = 64
# Numbers of a token record the attention kernels hold at once.
MAX_RECORD = 2048
# Heads' latents are walked in whole vectors of the widest level.
LATENT_MULTIPLE = 16
# Taps of the convolution the kernels are written for.
CONV_KERNEL = 4
# Attention residual sources (snapshots and the prefix) a mix takes.
MAX_SNAPSHOTS = 250


def check_specialized(
    geometry: Geometry, kv_dtype: str, level: str | None, max_rows: int
) -> list[str]:
    """All reasons, each naming the thing and its value; empty when the path can serve.

    `level`: the ISA level that would run, None where there is no native core.
    """
    reasons: list[str] = []
    if level is None:
        reasons.append("the native core is not built")
    if not 1 <= max_rows <= MAX_ROWS:
        reasons.append(f"max_rows {max_rows} is not in 1..{MAX_ROWS}")
    if kv_dtype not in ("bf16", "fp8"):
        reasons.append(f"kv_cache_dtype {kv_dtype!r} is not bf16 or fp8")
    reasons.extend(_check_model(geometry))
    if geometry.kda_layers:
        reasons.extend(_check_kda(geometry))
    if geometry.mla_layers:
        reasons.extend(_check_mla(geometry))
    if not all(geometry.dense_layers):
        reasons.extend(_check_moe(geometry))
    return reasons


def require_specialized(geometry: Geometry, kv_dtype: str, level: str | None, rows: int) -> None:
    """UnsupportedError with every reason when `check_specialized` finds any."""
    reasons = check_specialized(geometry, kv_dtype, level, rows)
    if reasons:
        raise UnsupportedError("decode_backend latency_specialized cannot serve", reasons)


def _multiples(**values: tuple[int | None, int]) -> Iterator[str]:
    """A reason for each name = (value, multiple) that does not fit; None is absent and fits."""
    for name, (value, multiple) in values.items():
        if value is not None and (value < 1 or value % multiple):
            yield f"{name} {value} is not a positive multiple of {multiple}"


def _check_model(g: Geometry) -> Iterator[str]:
    yield from _multiples(hidden=(g.hidden, 2), vocab=(g.vocab, 1))
    if not g.layer_kinds or len(g.dense_layers) != len(g.layer_kinds):
        yield f"{len(g.layer_kinds)} layers with {len(g.dense_layers)} FFN kinds"
    unknown = sorted(set(g.layer_kinds) - {"kda", "mla"})
    if unknown:
        yield f"layer kinds {unknown} are not kda or mla"
    if g.activation.kind not in ("situ", "silu"):
        yield f"activation {g.activation.kind!r} is not situ or silu"
    if g.activation.kind == "situ" and min(g.activation.beta, g.activation.linear_beta) <= 0:
        yield f"situ betas {g.activation.beta}, {g.activation.linear_beta} are not positive"
    if any(g.dense_layers):
        yield from _multiples(dense_width=(g.dense_width, 2))
    block = g.attn_res_block
    if block is not None and (block < 1 or -(-g.layers // block) > MAX_SNAPSHOTS):
        yield f"attn_res_block_size {block} gives more than {MAX_SNAPSHOTS} snapshots"


def _check_kda(g: Geometry) -> Iterator[str]:
    kda = g.kda
    if kda.conv_kernel != CONV_KERNEL:
        yield f"KDA conv kernel {kda.conv_kernel} is not {CONV_KERNEL}"
    yield from _multiples(
        kda_heads=(kda.heads, 1),
        kda_head_dim=(kda.dim, TILE_ROWS),
        kda_decay_rank=(kda.decay_rank, 2),
        kda_gate_rank=(kda.gate_rank, 2),
    )
    if kda.gate_lower_bound is not None and not kda.gate_lower_bound < 0:
        yield f"KDA gate_lower_bound {kda.gate_lower_bound} is not negative"


def _check_mla(g: Geometry) -> Iterator[str]:
    mla = g.mla
    yield from _multiples(
        mla_heads=(mla.heads, 1),
        q_lora_rank=(mla.q_lora, 2),
        kv_lora_rank=(mla.kv_lora, LATENT_MULTIPLE),
        qk_nope_head_dim=(mla.nope, 2),
        qk_rope_head_dim=(mla.rope, 1),
        v_head_dim=(mla.v_dim, 2),
    )
    if mla.cache_dim > MAX_RECORD - LATENT_MULTIPLE:
        yield f"kv_lora_rank + qk_rope_head_dim {mla.cache_dim} is above {MAX_RECORD}"


def _check_moe(g: Geometry) -> Iterator[str]:
    moe = g.moe
    if moe.expert_format not in ("mxfp4", "bf16"):
        yield f"expert format {moe.expert_format!r} is not mxfp4 or bf16"
    if not 1 <= moe.top_k <= moe.experts:
        yield f"top_k {moe.top_k} is not in 1..{moe.experts} experts"
    unit = FP4_GROUP if moe.expert_format == "mxfp4" else 2
    width_in = g.hidden if moe.latent is None else moe.latent
    yield from _multiples(
        expert_width=(moe.expert_width, unit),
        expert_input_width=(width_in, unit),
        shared_width=(moe.shared_width or None, 2),
    )
