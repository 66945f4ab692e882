"""Where every field stands in the arena: a pure function of the geometry, known before loading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepfuse.core.config import TILE_ROWS, Geometry
from stepfuse.ops.packed import expert_layout
from stepfuse.weights.arena import aligned
from stepfuse.weights.names import FieldSpec, layer_fields, model_fields


@dataclass(frozen=True, slots=True)
class Placement:
    """`shape` and `itemsize` of the packed field at byte `offset`; `kv_b` holds w_uk, then w_uv."""

    spec: FieldSpec
    offset: int
    bytes: int


def tile_bytes(rows: int, cols: int) -> int:
    """Bytes of a packed BF16 matrix, rows padded to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS * cols * 2


def head_shapes(g: Geometry) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, columns) of one head's w_uk and w_uv."""
    return (g.mla.kv_lora, g.mla.nope), (g.mla.v_dim, g.mla.kv_lora)


def field_bytes(g: Geometry, spec: FieldSpec) -> int:
    """Bytes a field takes in the arena, without the padding behind it."""
    rows, cols = spec.shape[0], spec.shape[-1]
    match spec.rule:
        case "linear":
            return tile_bytes(rows, cols)
        case "gate_up":
            half = TILE_ROWS // 2
            return -(-rows // half) * TILE_ROWS * cols * 2
        case "plain":
            return rows * cols * 2
        case "vector":
            return cols * 2
        case "float" | "a_log":
            return cols * 4
        case "conv":
            return 3 * rows * cols * 4
        case "kv_b":
            return sum(aligned(g.mla.heads * tile_bytes(*shape)) for shape in head_shapes(g))
        case "experts":
            return g.moe.experts * expert_layout(g.moe.expert_format, cols, rows).bytes


def all_fields(g: Geometry) -> Iterator[FieldSpec]:
    """Every field of the model in arena order: embedding and head, then layer by layer."""
    yield from model_fields(g)
    for layer in range(g.layers):
        yield from layer_fields(g, layer)


def arena_layout(g: Geometry) -> tuple[Placement, ...]:
    """Placements of all fields, each at a multiple of 64 bytes."""
    placements = []
    offset = 0
    for spec in all_fields(g):
        size = field_bytes(g, spec)
        placements.append(Placement(spec, offset, size))
        offset += aligned(size)
    return tuple(placements)


def arena_bytes(g: Geometry) -> int:
    """Bytes of the whole arena."""
    return sum(aligned(field_bytes(g, spec)) for spec in all_fields(g))
