"""Views of the arena as the structures of `stepfuse.weights.store`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepfuse.core.config import TILE_ROWS, Geometry
from stepfuse.ops.packed import (
    PackedExperts,
    PackedGateUp,
    PackedHeads,
    PackedLinear,
    expert_layout,
)
from stepfuse.weights.arena import aligned, view_at
from stepfuse.weights.layout import Placement, head_shapes, tile_bytes
from stepfuse.weights.store import (
    DenseWeights,
    KdaWeights,
    LayerWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    ResidualMix,
)

Field = Tensor | PackedLinear | PackedGateUp | PackedExperts | tuple[PackedHeads, PackedHeads]


def assemble(g: Geometry, arena: Tensor, placements: Sequence[Placement]) -> ModelWeights:
    """All fields of the model as views of `arena`."""
    by_layer: dict[int, dict[str, Any]] = {}
    for placement in placements:
        spec = placement.spec
        by_layer.setdefault(spec.layer, {})[spec.field] = field_view(g, arena, placement)
    model = by_layer.pop(-1)
    return ModelWeights(
        embed=model["embed"],
        layers=tuple(_layer(g, i, by_layer[i]) for i in range(g.layers)),
        final_norm=model["final_norm"],
        output_res=_mix(model, "output_res"),
        lm_head=model["lm_head"],
        arena=arena,
    )


def field_view(g: Geometry, arena: Tensor, placement: Placement) -> Field:
    """One field as the structure its rule calls for."""
    spec, offset = placement.spec, placement.offset
    rows, cols = spec.shape[0], spec.shape[-1]
    match spec.rule:
        case "linear":
            tiles = _tiles(arena, offset, (-(-rows // TILE_ROWS),), cols)
            return PackedLinear(tiles, rows, cols)
        case "gate_up":
            tiles = _tiles(arena, offset, (-(-rows // (TILE_ROWS // 2)),), cols)
            return PackedGateUp(tiles, rows, cols)
        case "plain":
            return view_at(arena, offset, (rows, cols), torch.bfloat16)
        case "vector":
            return view_at(arena, offset, (cols,), torch.bfloat16)
        case "float" | "a_log":
            return view_at(arena, offset, (cols,), torch.float32)
        case "conv":
            return view_at(arena, offset, (3, cols, rows), torch.float32)
        case "kv_b":
            return _heads(g, arena, offset)
        case "experts":
            return _experts(g, arena, placement)


def _tiles(arena: Tensor, offset: int, lead: tuple[int, ...], cols: int) -> Tensor:
    return view_at(arena, offset, (*lead, cols // 2, TILE_ROWS, 2), torch.bfloat16)


def _heads(g: Geometry, arena: Tensor, offset: int) -> tuple[PackedHeads, PackedHeads]:
    packed = []
    for rows, cols in head_shapes(g):
        tiles = _tiles(arena, offset, (g.mla.heads, -(-rows // TILE_ROWS)), cols)
        packed.append(PackedHeads(tiles, g.mla.heads, rows, cols))
        offset += aligned(g.mla.heads * tile_bytes(rows, cols))
    return packed[0], packed[1]


def _experts(g: Geometry, arena: Tensor, placement: Placement) -> PackedExperts:
    width, in_features = placement.spec.shape
    layout = expert_layout(g.moe.expert_format, in_features, width)
    return PackedExperts(
        data=view_at(arena, placement.offset, (g.moe.experts, layout.bytes), torch.uint8),
        format=g.moe.expert_format,
        experts=g.moe.experts,
        in_features=in_features,
        width=width,
        w13_offset=layout.w13,
        w13_scale_offset=layout.w13_scale,
        w2_offset=layout.w2,
        w2_scale_offset=layout.w2_scale,
    )


def _mix(fields: dict[str, Any], stem: str) -> ResidualMix | None:
    if f"{stem}.norm" not in fields:
        return None
    return ResidualMix(fields[f"{stem}.norm"], fields[f"{stem}.proj"])


def _layer(g: Geometry, layer: int, fields: dict[str, Any]) -> LayerWeights:
    mla = g.layer_kinds[layer] == "mla"
    return LayerWeights(
        input_norm=fields["input_norm"],
        post_norm=fields["post_norm"],
        attn_res=_mix(fields, "attn_res"),
        mlp_res=_mix(fields, "mlp_res"),
        attention=_mla(fields) if mla else _kda(fields),
        ffn=_dense(fields) if g.dense_layers[layer] else _moe(fields),
    )


def _kda(fields: dict[str, Any]) -> KdaWeights:
    names = ("q", "k", "v", "conv", "f_a", "f_b", "b", "a_log", "dt_bias", "o_norm", "o")
    gates: dict[str, Any] = {n: fields.get(f"attention.{n}") for n in ("g", "g_a", "g_b")}
    return KdaWeights(**{name: fields[f"attention.{name}"] for name in names}, **gates)


def _mla(fields: dict[str, Any]) -> MlaWeights:
    w_uk, w_uv = fields["attention.w_u"]
    names = ("q_b", "kv_a", "kv_a_norm", "o")
    optional: dict[str, Any] = {n: fields.get(f"attention.{n}") for n in ("q_a", "q_a_norm", "g")}
    needed = {name: fields[f"attention.{name}"] for name in names}
    return MlaWeights(w_uk=w_uk, w_uv=w_uv, **needed, **optional)


def _dense(fields: dict[str, Any]) -> DenseWeights:
    return DenseWeights(fields["ffn.gate_up"], fields["ffn.down"])


def _moe(fields: dict[str, Any]) -> MoeWeights:
    optional = ("latent_down", "latent_norm", "latent_up", "shared_gate_up", "shared_down")
    return MoeWeights(
        router=fields["ffn.router"],
        bias=fields["ffn.bias"],
        experts=fields["ffn.experts"],
        **{name: fields.get(f"ffn.{name}") for name in optional},
    )
