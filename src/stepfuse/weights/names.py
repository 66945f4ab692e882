"""One table: which tensors of a checkpoint make up which field, and their shapes.

A row is (field, rule, names, shape). `names` lack the prefix and `model.layers.N.`; `shape` is in
the dimensions `dimensions()` names. Rules say how a field is laid out (docs/layouts.md):
`linear` tiles, `gate_up` interleaved tiles of two tensors, `vector` BF16, `float` FP32, `plain`
row-major BF16, `conv`, `a_log`, `kv_b` and `experts` as `stepfuse.weights.pack` says.
Source: the tensor lists of the two released checkpoints, and what transformers 5.24 saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stepfuse.core.config import Geometry

Rule = Literal["linear", "gate_up", "vector", "float", "plain", "conv", "a_log", "kv_b", "experts"]
_Row = tuple[str, Rule, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field of LayerWeights (`layer` >= 0) or ModelWeights (-1) and the tensors it comes from.

    `names` are complete; each of them has `shape`. For `experts` they are prefixes up to
    `experts.` and the shape is that of one w1.
    """

    layer: int
    field: str
    rule: Rule
    names: tuple[str, ...]
    shape: tuple[int, ...]


_MODEL: Final[tuple[_Row, ...]] = (
    ("embed", "plain", ("model.embed_tokens.weight",), ("vocab", "hidden")),
    ("final_norm", "vector", ("model.norm.weight",), ("hidden",)),
    ("lm_head", "linear", ("lm_head.weight",), ("vocab", "hidden")),
)
_MODEL_RES: Final[tuple[_Row, ...]] = (
    ("output_res.norm", "vector", ("model.output_attn_res_norm.weight",), ("hidden",)),
    ("output_res.proj", "vector", ("model.output_attn_res_proj.weight",), ("one", "hidden")),
)
_NORMS: Final[tuple[_Row, ...]] = (
    ("input_norm", "vector", ("input_layernorm.weight",), ("hidden",)),
    ("post_norm", "vector", ("post_attention_layernorm.weight",), ("hidden",)),
)
_RES: Final[tuple[_Row, ...]] = (
    ("attn_res.norm", "vector", ("self_attention_res_norm.weight",), ("hidden",)),
    ("attn_res.proj", "vector", ("self_attention_res_proj.weight",), ("one", "hidden")),
    ("mlp_res.norm", "vector", ("mlp_res_norm.weight",), ("hidden",)),
    ("mlp_res.proj", "vector", ("mlp_res_proj.weight",), ("one", "hidden")),
)
_CONV: Final = tuple(f"self_attn.{part}_conv1d.weight" for part in "qkv")
_KDA: Final[tuple[_Row, ...]] = (
    ("attention.q", "linear", ("self_attn.q_proj.weight",), ("kda", "hidden")),
    ("attention.k", "linear", ("self_attn.k_proj.weight",), ("kda", "hidden")),
    ("attention.v", "linear", ("self_attn.v_proj.weight",), ("kda", "hidden")),
    ("attention.conv", "conv", _CONV, ("kda", "one", "taps")),
    ("attention.f_a", "linear", ("self_attn.f_a_proj.weight",), ("decay", "hidden")),
    ("attention.f_b", "linear", ("self_attn.f_b_proj.weight",), ("kda", "decay")),
    ("attention.b", "linear", ("self_attn.b_proj.weight",), ("kda_heads", "hidden")),
    ("attention.a_log", "a_log", ("self_attn.A_log",), ("kda_heads",)),
    ("attention.dt_bias", "float", ("self_attn.dt_bias",), ("kda",)),
    ("attention.o_norm", "float", ("self_attn.o_norm.weight",), ("kda_dim",)),
    ("attention.o", "linear", ("self_attn.o_proj.weight",), ("hidden", "kda")),
)
_KDA_FULL_GATE: Final[tuple[_Row, ...]] = (
    ("attention.g", "linear", ("self_attn.g_proj.weight",), ("kda", "hidden")),
)
_KDA_LOW_GATE: Final[tuple[_Row, ...]] = (
    ("attention.g_a", "linear", ("self_attn.g_a_proj.weight",), ("gate", "hidden")),
    ("attention.g_b", "linear", ("self_attn.g_b_proj.weight",), ("kda", "gate")),
)
_MLA: Final[tuple[_Row, ...]] = (
    ("attention.kv_a", "linear", ("self_attn.kv_a_proj_with_mqa.weight",), ("kv_a", "hidden")),
    ("attention.kv_a_norm", "vector", ("self_attn.kv_a_layernorm.weight",), ("kv_lora",)),
    ("attention.w_u", "kv_b", ("self_attn.kv_b_proj.weight",), ("kv_b", "kv_lora")),
    ("attention.o", "linear", ("self_attn.o_proj.weight",), ("hidden", "mla_v")),
)
_MLA_DIRECT_Q: Final[tuple[_Row, ...]] = (
    ("attention.q_b", "linear", ("self_attn.q_proj.weight",), ("mla_q", "hidden")),
)
_MLA_LORA_Q: Final[tuple[_Row, ...]] = (
    ("attention.q_a", "linear", ("self_attn.q_a_proj.weight",), ("q_lora", "hidden")),
    ("attention.q_a_norm", "vector", ("self_attn.q_a_layernorm.weight",), ("q_lora",)),
    ("attention.q_b", "linear", ("self_attn.q_b_proj.weight",), ("mla_q", "q_lora")),
)
_MLA_GATE: Final[tuple[_Row, ...]] = (
    ("attention.g", "linear", ("self_attn.g_proj.weight",), ("mla_v", "hidden")),
)
_DENSE: Final[tuple[_Row, ...]] = (
    (
        "ffn.gate_up",
        "gate_up",
        ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        ("dense", "hidden"),
    ),
    ("ffn.down", "linear", ("mlp.down_proj.weight",), ("hidden", "dense")),
)
_MOE: Final[tuple[_Row, ...]] = (
    ("ffn.router", "linear", ("block_sparse_moe.gate.weight",), ("experts", "hidden")),
    ("ffn.bias", "float", ("block_sparse_moe.gate.e_score_correction_bias",), ("experts",)),
    ("ffn.experts", "experts", ("block_sparse_moe.experts.",), ("width", "expert_in")),
)
_LATENT: Final[tuple[_Row, ...]] = (
    (
        "ffn.latent_down",
        "linear",
        ("block_sparse_moe.routed_expert_down_proj.weight",),
        ("expert_in", "hidden"),
    ),
    (
        "ffn.latent_up",
        "linear",
        ("block_sparse_moe.routed_expert_up_proj.weight",),
        ("hidden", "expert_in"),
    ),
)
_LATENT_NORM: Final[tuple[_Row, ...]] = (
    ("ffn.latent_norm", "vector", ("block_sparse_moe.routed_expert_norm.weight",), ("expert_in",)),
)
_SHARED_PROJ: Final = tuple(
    f"block_sparse_moe.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")
)
_SHARED: Final[tuple[_Row, ...]] = (
    ("ffn.shared_gate_up", "gate_up", _SHARED_PROJ[:2], ("shared", "hidden")),
    ("ffn.shared_down", "linear", _SHARED_PROJ[2:], ("hidden", "shared")),
)
# transformers saves the dense layer's MLP under the name its mixture modules have.
ALIASES: Final = {
    f"mlp.{part}_proj.weight": f"block_sparse_moe.{part}_proj.weight"
    for part in ("gate", "up", "down")
}


def dimensions(g: Geometry) -> dict[str, int]:
    """The sizes the table speaks of."""
    return {
        "one": 1,
        "vocab": g.vocab,
        "hidden": g.hidden,
        "taps": g.kda.conv_kernel,
        "kda": g.kda.width,
        "kda_heads": g.kda.heads,
        "kda_dim": g.kda.dim,
        "decay": g.kda.decay_rank,
        "gate": g.kda.gate_rank or 0,
        "q_lora": g.mla.q_lora or 0,
        "kv_lora": g.mla.kv_lora,
        "kv_a": g.mla.cache_dim,
        "kv_b": g.mla.heads * (g.mla.nope + g.mla.v_dim),
        "mla_q": g.mla.heads * (g.mla.nope + g.mla.rope),
        "mla_v": g.mla.heads * g.mla.v_dim,
        "dense": g.dense_width,
        "experts": g.moe.experts,
        "expert_in": g.moe.latent or g.hidden,
        "width": g.moe.expert_width,
        "shared": g.moe.shared_width,
    }


def model_fields(g: Geometry) -> tuple[FieldSpec, ...]:
    """Fields outside the layers."""
    rows = _MODEL + (_MODEL_RES if g.attn_res_block is not None else ())
    return _specs(g, rows, -1, g.tensor_prefix)


def layer_fields(g: Geometry, layer: int) -> tuple[FieldSpec, ...]:
    """Fields of one layer, in the order they stand in the arena."""
    rows = _NORMS + (_RES if g.attn_res_block is not None else ())
    if g.layer_kinds[layer] == "kda":
        rows += _KDA + (_KDA_FULL_GATE if g.kda.gate_rank is None else _KDA_LOW_GATE)
    else:
        rows += _MLA_DIRECT_Q if g.mla.q_lora is None else _MLA_LORA_Q
        rows += _MLA + (_MLA_GATE if g.mla.output_gate else ())
    if g.dense_layers[layer]:
        rows += _DENSE
    else:
        rows += (_SHARED if g.moe.shared_width else ()) + _MOE
        rows += _LATENT if g.moe.latent is not None else ()
        rows += _LATENT_NORM if g.moe.latent_norm else ()
    return _specs(g, rows, layer, f"{g.tensor_prefix}model.layers.{layer}.")


def _specs(g: Geometry, rows: tuple[_Row, ...], layer: int, prefix: str) -> tuple[FieldSpec, ...]:
    sizes = dimensions(g)
    return tuple(
        FieldSpec(layer, field, rule, tuple(prefix + n for n in names), _resolve(shape, sizes))
        for field, rule, names, shape in rows
    )


def _resolve(shape: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] for dim in shape)
