"""Tensors under the released names to `ModelWeights`, by `stepfuse.ops.packed` alone."""

from __future__ import annotations

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.ops.packed import (
    PackedExperts,
    PackedGateUp,
    PackedHeads,
    PackedLinear,
    expert_layout,
    interleave_gate_up,
    pack_nibbles,
    pack_rows,
    pack_scales,
)
from stepfuse.weights.store import (
    DenseWeights,
    KdaWeights,
    LayerWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    ResidualMix,
)

Tensors = dict[str, Tensor]


def pack_linear(weight: Tensor) -> PackedLinear:
    return PackedLinear(pack_rows(weight).contiguous(), *weight.shape)


def pack_gate_up(gate: Tensor, up: Tensor) -> PackedGateUp:
    return PackedGateUp(pack_rows(interleave_gate_up(gate, up)).contiguous(), *gate.shape)


def pack_heads(weight: Tensor) -> PackedHeads:
    return PackedHeads(pack_rows(weight).contiguous(), *weight.shape)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def pack_experts(stacked: Tensors, form: str) -> PackedExperts:
    """`stacked`: w1, w2, w3 [E, out, in] BF16, or their _packed and _scale bytes."""
    if form == "bf16":
        width, in_features = stacked["w1"].shape[1:]
        parts = {
            "w13": pack_rows(interleave_gate_up(stacked["w1"], stacked["w3"])),
            "w2": pack_rows(stacked["w2"]),
        }
    else:
        width, in_features = stacked["w1_packed"].shape[1], stacked["w1_packed"].shape[2] * 2
        both = [interleave_gate_up(stacked[f"w1_{k}"], stacked[f"w3_{k}"]) for k in _KINDS]
        parts = {
            "w13": pack_nibbles(both[0]),
            "w13_scale": pack_scales(both[1]),
            "w2": pack_nibbles(stacked["w2_packed"]),
            "w2_scale": pack_scales(stacked["w2_scale"]),
        }
    layout = expert_layout(form, in_features, width)  # type: ignore[arg-type]
    count = next(iter(stacked.values())).shape[0]
    data = torch.zeros((count, layout.bytes), dtype=torch.uint8)
    for name, part in parts.items():
        start = getattr(layout, name)
        for e in range(count):
            raw = _bytes(part[e])
            data[e, start : start + len(raw)] = raw
    offsets = (layout.w13, layout.w13_scale, layout.w2, layout.w2_scale)
    return PackedExperts(data, form, count, in_features, width, *offsets)  # type: ignore[arg-type]


_KINDS = ("packed", "scale")


def pack_model(g: Geometry, tensors: Tensors) -> ModelWeights:
    """The whole model; `arena` is a placeholder, the fields are tensors of their own."""
    return ModelWeights(
        embed=tensors["model.embed_tokens.weight"],
        layers=tuple(_layer(g, i, tensors) for i in range(g.layers)),
        final_norm=tensors["model.norm.weight"],
        output_res=_mix(tensors, "model.output_attn_res"),
        lm_head=pack_linear(tensors["lm_head.weight"]),
        arena=torch.zeros(0, dtype=torch.uint8),
    )


def _mix(tensors: Tensors, stem: str) -> ResidualMix | None:
    if f"{stem}_norm.weight" not in tensors:
        return None
    return ResidualMix(tensors[f"{stem}_norm.weight"], tensors[f"{stem}_proj.weight"].reshape(-1))


def _layer(g: Geometry, layer: int, tensors: Tensors) -> LayerWeights:
    prefix = f"model.layers.{layer}."
    own = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    attention = {k[len("self_attn.") :]: v for k, v in own.items() if k.startswith("self_attn.")}
    is_kda = g.layer_kinds[layer] == "kda"
    return LayerWeights(
        input_norm=own["input_layernorm.weight"],
        post_norm=own["post_attention_layernorm.weight"],
        attn_res=_mix(own, "self_attention_res"),
        mlp_res=_mix(own, "mlp_res"),
        attention=_kda(attention) if is_kda else _mla(g, attention),
        ffn=_dense(own) if g.dense_layers[layer] else _moe(g, own),
    )


def _maybe(tensors: Tensors, name: str) -> PackedLinear | None:
    return pack_linear(tensors[name]) if name in tensors else None


def _kda(t: Tensors) -> KdaWeights:
    taps = [t[f"{p}_conv1d.weight"].float().reshape(len(t["dt_bias"]), -1).T for p in "qkv"]
    return KdaWeights(
        q=pack_linear(t["q_proj.weight"]),
        k=pack_linear(t["k_proj.weight"]),
        v=pack_linear(t["v_proj.weight"]),
        conv=torch.stack(taps).contiguous(),
        f_a=pack_linear(t["f_a_proj.weight"]),
        f_b=pack_linear(t["f_b_proj.weight"]),
        b=pack_linear(t["b_proj.weight"]),
        a_log=t["A_log"].reshape(-1),
        dt_bias=t["dt_bias"],
        o_norm=t["o_norm.weight"].float(),
        g=_maybe(t, "g_proj.weight"),
        g_a=_maybe(t, "g_a_proj.weight"),
        g_b=_maybe(t, "g_b_proj.weight"),
        o=pack_linear(t["o_proj.weight"]),
    )


def _mla(g: Geometry, t: Tensors) -> MlaWeights:
    mla = g.mla
    kv_b = t["kv_b_proj.weight"].view(mla.heads, mla.nope + mla.v_dim, mla.kv_lora)
    q_b = "q_proj.weight" if mla.q_lora is None else "q_b_proj.weight"
    return MlaWeights(
        q_a=_maybe(t, "q_a_proj.weight"),
        q_a_norm=t.get("q_a_layernorm.weight"),
        q_b=pack_linear(t[q_b]),
        kv_a=pack_linear(t["kv_a_proj_with_mqa.weight"]),
        kv_a_norm=t["kv_a_layernorm.weight"],
        w_uk=pack_heads(kv_b[:, : mla.nope].transpose(1, 2).contiguous()),
        w_uv=pack_heads(kv_b[:, mla.nope :].contiguous()),
        g=_maybe(t, "g_proj.weight"),
        o=pack_linear(t["o_proj.weight"]),
    )


def _dense(own: Tensors) -> DenseWeights:
    gate_up = pack_gate_up(own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"])
    return DenseWeights(gate_up, pack_linear(own["mlp.down_proj.weight"]))


def _moe(g: Geometry, own: Tensors) -> MoeWeights:
    t = {k.removeprefix("block_sparse_moe."): v for k, v in own.items()}
    kinds = [".weight"] if g.moe.expert_format == "bf16" else [".weight_packed", ".weight_scale"]
    stacked = {
        (part + kind).replace(".weight", ""): torch.stack(
            [t[f"experts.{e}.{part}{kind}"] for e in range(g.moe.experts)]
        )
        for part in ("w1", "w2", "w3")
        for kind in kinds
    }
    shared = "shared_experts.gate_proj.weight" in t
    return MoeWeights(
        router=pack_linear(t["gate.weight"]),
        bias=t["gate.e_score_correction_bias"],
        latent_down=_maybe(t, "routed_expert_down_proj.weight"),
        latent_norm=t.get("routed_expert_norm.weight"),
        latent_up=_maybe(t, "routed_expert_up_proj.weight"),
        shared_gate_up=pack_gate_up(
            t["shared_experts.gate_proj.weight"], t["shared_experts.up_proj.weight"]
        )
        if shared
        else None,
        shared_down=_maybe(t, "shared_experts.down_proj.weight"),
        experts=pack_experts(stacked, g.moe.expert_format),
    )
