"""What the native step is prepared from: the geometry as numbers, the weights as addresses.

The names are the field names of native/include/stepfuse/geometry.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.core.errors import CacheError
from stepfuse.ops.packed import PackedExperts, PackedGateUp, PackedHeads, PackedLinear
from stepfuse.ops.views import LatentView, StateView
from stepfuse.weights.store import (
    KdaWeights,
    LayerWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    ResidualMix,
)

ACTIVATION_KINDS: Final = {"silu": 0, "situ": 1}
EXPERT_FORMATS: Final = {"mxfp4": 0, "bf16": 1}
KV_DTYPES: Final = {"bf16": 0, "fp8": 1}

Field = int | float | bool | list[bool]
Part = Tensor | PackedLinear | PackedGateUp | PackedHeads | None


def geometry_fields(g: Geometry, max_rows: int) -> dict[str, Field]:
    """Absent parts (no latent, no q_lora, full-rank g, plain residuals, softplus gate) are 0."""
    return {
        "hidden": g.hidden,
        "vocab": g.vocab,
        "layers": g.layers,
        "max_rows": max_rows,
        "norm_eps": g.norm_eps,
        "attn_res_block": g.attn_res_block or 0,
        "activation_kind": ACTIVATION_KINDS[g.activation.kind],
        "activation_beta": g.activation.beta,
        "activation_linear_beta": g.activation.linear_beta,
        "dense_width": g.dense_width,
        "mla": [kind == "mla" for kind in g.layer_kinds],
        "dense": list(g.dense_layers),
        **_attention_fields(g),
        **_moe_fields(g),
    }


def _attention_fields(g: Geometry) -> dict[str, Field]:
    kda, mla = g.kda, g.mla
    return {
        "kda_heads": kda.heads,
        "kda_dim": kda.dim,
        "decay_rank": kda.decay_rank,
        "gate_rank": kda.gate_rank or 0,
        "gate_lower_bound": kda.gate_lower_bound or 0.0,
        "mla_heads": mla.heads,
        "q_lora": mla.q_lora or 0,
        "kv_lora": mla.kv_lora,
        "nope": mla.nope,
        "rope": mla.rope,
        "v_dim": mla.v_dim,
        "mla_output_gate": mla.output_gate,
    }


def _moe_fields(g: Geometry) -> dict[str, Field]:
    moe = g.moe
    return {
        "experts": moe.experts,
        "top_k": moe.top_k,
        "expert_width": moe.expert_width,
        "shared_width": moe.shared_width,
        "latent": moe.latent or 0,
        "latent_norm": moe.latent is not None and moe.latent_norm,
        "routed_scaling": moe.routed_scaling,
        "renormalize": moe.renormalize,
        "expert_format": EXPERT_FORMATS[moe.expert_format],
    }


def weight_addresses(weights: ModelWeights) -> dict[str, int]:
    """Address of every tensor by name; the weights must outlive whoever uses them."""
    model: dict[str, Part] = {
        "embed": weights.embed,
        "final_norm": weights.final_norm,
        "lm_head": weights.lm_head,
    }
    found = dict(_addresses("", model))
    found |= dict(_mix("output_res", weights.output_res))
    for i, layer in enumerate(weights.layers):
        found |= {f"layers.{i}.{name}": address for name, address in _layer(layer)}
    return found


def _addresses(prefix: str, parts: dict[str, Part]) -> Iterator[tuple[str, int]]:
    for name, part in parts.items():
        if part is not None:
            data = part if isinstance(part, Tensor) else part.data
            yield prefix + name, data.data_ptr()


def _mix(stem: str, mix: ResidualMix | None) -> Iterator[tuple[str, int]]:
    if mix is not None:
        yield from _addresses(f"{stem}_", {"norm": mix.norm, "proj": mix.proj})


def _layer(layer: LayerWeights) -> Iterator[tuple[str, int]]:
    yield from _addresses("", {"input_norm": layer.input_norm, "post_norm": layer.post_norm})
    yield from _mix("attn_res", layer.attn_res)
    yield from _mix("mlp_res", layer.mlp_res)
    attention, ffn = layer.attention, layer.ffn
    kind = "kda." if isinstance(attention, KdaWeights) else "mla."
    yield from _addresses(kind, _parts(attention))
    if isinstance(ffn, MoeWeights):
        yield from _moe(ffn)
    else:
        yield from _addresses("dense.", {"gate_up": ffn.gate_up, "down": ffn.down})


def _parts(attention: KdaWeights | MlaWeights) -> dict[str, Part]:
    return {name: getattr(attention, name) for name in attention.__slots__}


def _moe(moe: MoeWeights) -> Iterator[tuple[str, int]]:
    parts = {name: getattr(moe, name) for name in moe.__slots__ if name != "experts"}
    yield from _addresses("moe.", parts)
    experts: PackedExperts = moe.experts
    yield "moe.experts", experts.data.data_ptr()
    yield "moe.expert_bytes", experts.data.stride(0)
    for name in ("w13_offset", "w13_scale_offset", "w2_offset", "w2_scale_offset"):
        yield f"moe.{name}", getattr(experts, name)


def latent_tuple(view: LatentView) -> tuple[int, int, int, int, int]:
    """Address, page bytes, token bytes, tokens per page, dtype of one MLA layer's cache."""
    data = view.data
    if data.stride(2) != 1:
        raise CacheError(f"latent view with strides {data.stride()}: records must be contiguous")
    dtype = KV_DTYPES[view.dtype]
    return data.data_ptr(), data.stride(0), data.stride(1), view.page_tokens, dtype


def state_tuple(view: StateView) -> tuple[int, int, int, int]:
    """Address and stride of the states and of the conv windows of one KDA layer, in elements."""
    for name, tensor in (("state", view.state), ("conv", view.conv)):
        if not tensor[0].is_contiguous():
            raise CacheError(
                f"{name} view with strides {tensor.stride()}: slots must be contiguous"
            )
    state, conv = view.state, view.conv
    return state.data_ptr(), state.stride(0), conv.data_ptr(), conv.stride(0)
