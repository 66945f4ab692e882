"""The one copy of the weights both runtimes read: views into one arena, packed for the kernels.

Packing is a permutation of the vendor's values (docs/layouts.md, `stepfuse.ops.packed`). All
tensors are views of `ModelWeights.arena`, 64-byte aligned.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stepfuse.ops.packed import PackedExperts, PackedGateUp, PackedHeads, PackedLinear


@dataclass(frozen=True, slots=True)
class KdaWeights:
    """`conv` FP32 [3 (q,k,v), 4 taps, width]; `a_log` FP32 [heads]; `dt_bias` FP32 [width];
    `o_norm` FP32 [dim]. K3's files hold all four in FP32, Kimi-Linear's hold conv and o_norm in
    BF16, which FP32 holds exactly.
    """

    q: PackedLinear
    k: PackedLinear
    v: PackedLinear
    conv: Tensor
    f_a: PackedLinear
    f_b: PackedLinear
    b: PackedLinear
    a_log: Tensor
    dt_bias: Tensor
    o_norm: Tensor
    g: PackedLinear | None
    g_a: PackedLinear | None
    g_b: PackedLinear | None
    o: PackedLinear


@dataclass(frozen=True, slots=True)
class MlaWeights:
    """`w_uk` per head [kv_lora, nope] (W_UK transposed), `w_uv` per head [v_dim, kv_lora]."""

    q_a: PackedLinear | None
    q_a_norm: Tensor | None
    q_b: PackedLinear  # q_proj where the member has no q_lora
    kv_a: PackedLinear
    kv_a_norm: Tensor
    w_uk: PackedHeads
    w_uv: PackedHeads
    g: PackedLinear | None
    o: PackedLinear


@dataclass(frozen=True, slots=True)
class DenseWeights:
    gate_up: PackedGateUp
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """`bias` FP32 [experts]; latent parts are None where experts work on the hidden width."""

    router: PackedLinear
    bias: Tensor
    latent_down: PackedLinear | None
    latent_norm: Tensor | None
    latent_up: PackedLinear | None
    shared_gate_up: PackedGateUp | None
    shared_down: PackedLinear | None
    experts: PackedExperts


@dataclass(frozen=True, slots=True)
class ResidualMix:
    """Norm weight and score projection, BF16 [hidden] each, of one attention residual mix."""

    norm: Tensor
    proj: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Tensor
    post_norm: Tensor
    attn_res: ResidualMix | None
    mlp_res: ResidualMix | None
    attention: KdaWeights | MlaWeights
    ffn: DenseWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """`embed` BF16 [vocab, hidden] row-major; `arena` uint8, 2 MiB aligned."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    output_res: ResidualMix | None
    lm_head: PackedLinear
    arena: Tensor
