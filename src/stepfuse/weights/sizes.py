"""Bytes of the weights by kind, from the geometry alone."""

from __future__ import annotations

import math

from stepfuse.core.config import FP4_GROUP, Geometry
from stepfuse.weights.arena import aligned
from stepfuse.weights.layout import all_fields, field_bytes
from stepfuse.weights.names import FieldSpec


def weight_bytes(g: Geometry) -> dict[str, int]:
    """Arena bytes by kind, tile padding included; their sum is the arena."""
    kinds: dict[str, int] = {}
    for spec in all_fields(g):
        kind = _weight_kind(g, spec)
        kinds[kind] = kinds.get(kind, 0) + aligned(field_bytes(g, spec))
    return kinds


def expert_bytes(g: Geometry) -> int:
    """One routed expert, bytes of values (no padding)."""
    values = 3 * (g.moe.latent or g.hidden) * g.moe.expert_width
    if g.moe.expert_format == "bf16":
        return 2 * values
    return values // 2 + values // FP4_GROUP


def trunk_bytes(g: Geometry, rows: int) -> int:
    """All weights but the experts, each once; of the embedding only the rows' own lines."""
    total = rows * g.hidden * 2
    for spec in all_fields(g):
        if spec.rule in ("experts", "plain"):
            continue
        count = len(spec.names) * math.prod(spec.shape)
        total += count * (4 if spec.rule in ("float", "a_log", "conv") else 2)
    return total


def _weight_kind(g: Geometry, spec: FieldSpec) -> str:
    """The kind of a field in the plan."""
    if spec.layer < 0:
        return {"embed": "embedding", "lm_head": "head"}.get(spec.field, "norms and mixes")
    part, _, field = spec.field.partition(".")
    if part == "attention":
        return f"attention {g.layer_kinds[spec.layer].upper()}"
    if part != "ffn":
        return "norms and mixes"
    if g.dense_layers[spec.layer]:
        return "dense MLP"
    for start, kind in (("experts", "experts"), ("shared", "shared expert"), ("latent", "latent")):
        if field.startswith(start):
            return kind
    return "router"
