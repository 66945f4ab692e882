"""Random checkpoints in memory, under the released names, and their packed form.

Packing here uses nothing but `stepfuse.ops.packed`, so that a fault of the loader cannot hide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.ops.mxfp4 import encode_mxfp4

Tensors = dict[str, Tensor]


class _Maker:
    """NumPy's RandomState: its streams are frozen, so stored oracle outputs keep their inputs.

    Cloned into PyTorch's memory, which is 64-byte aligned as the kernels want weights to be.
    """

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self._state.standard_normal(shape).astype(np.float32)).clone()

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(self._state.uniform(low, high, shape).astype(np.float32)).clone()

    def matrix(self, out: int, width: int, gain: float = 1.0) -> Tensor:
        """Outputs of `gain` variance for inputs of unit variance, BF16."""
        return (self.normal(out, width) * (gain / math.sqrt(width))).to(torch.bfloat16)

    def norm(self, n: int) -> Tensor:
        return (1 + 0.1 * self.normal(n)).to(torch.bfloat16)


def random_tensors(geometry: Geometry, seed: int = 0) -> Tensors:
    """Every tensor of a checkpoint, names without the member's prefix."""
    make = _Maker(seed)
    hidden = geometry.hidden
    tensors: Tensors = {
        "model.embed_tokens.weight": make.normal(geometry.vocab, hidden).to(torch.bfloat16),
        "model.norm.weight": make.norm(hidden),
        "lm_head.weight": make.matrix(geometry.vocab, hidden),
    }
    if geometry.attn_res_block is not None:
        tensors |= dict(_mix("model.output_attn_res", hidden, make))
    for layer in range(geometry.layers):
        prefix = f"model.layers.{layer}."
        for name, tensor in _layer(geometry, layer, make):
            tensors[prefix + name] = tensor
    return tensors


def _mix(stem: str, hidden: int, make: _Maker) -> Iterator[tuple[str, Tensor]]:
    yield f"{stem}_norm.weight", make.norm(hidden)
    yield f"{stem}_proj.weight", make.matrix(1, hidden)


def _layer(g: Geometry, layer: int, make: _Maker) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", make.norm(g.hidden)
    yield "post_attention_layernorm.weight", make.norm(g.hidden)
    if g.attn_res_block is not None:
        yield from _mix("self_attention_res", g.hidden, make)
        yield from _mix("mlp_res", g.hidden, make)
    attention = _kda if g.layer_kinds[layer] == "kda" else _mla
    for name, tensor in attention(g, make):
        yield "self_attn." + name, tensor
    if g.dense_layers[layer]:
        yield from _mlp("mlp", (g.hidden, g.dense_width), make)
    else:
        for name, tensor in _moe(g, make):
            yield "block_sparse_moe." + name, tensor


def _kda(g: Geometry, make: _Maker) -> Iterator[tuple[str, Tensor]]:
    kda, hidden = g.kda, g.hidden
    # K3's files hold these in FP32 and A_log as [H], Kimi-Linear's in BF16 and as [1, 1, H, 1].
    own, a_log = {
        "k3": (torch.float32, (kda.heads,)),
        "kimi_linear": (torch.bfloat16, (1, 1, kda.heads, 1)),
    }[g.member]
    for part in "qkv":
        yield f"{part}_proj.weight", make.matrix(kda.width, hidden)
        taps = make.normal(kda.width, 1, kda.conv_kernel) * 0.5
        yield f"{part}_conv1d.weight", taps.to(own)
    yield "f_a_proj.weight", make.matrix(kda.decay_rank, hidden)
    yield "f_b_proj.weight", make.matrix(kda.width, kda.decay_rank)
    yield "b_proj.weight", make.matrix(kda.heads, hidden)
    # Linear, not a logarithm: libraries differ in the last bit of one.
    yield "A_log", make.uniform(-0.7, 1.4, *a_log)
    yield "dt_bias", make.uniform(-6.0, 1.0, kda.width)
    yield "o_norm.weight", (1 + 0.1 * make.normal(kda.dim)).to(own)
    if kda.gate_rank is None:
        yield "g_proj.weight", make.matrix(kda.width, hidden)
    else:
        yield "g_a_proj.weight", make.matrix(kda.gate_rank, hidden)
        yield "g_b_proj.weight", make.matrix(kda.width, kda.gate_rank)
    yield "o_proj.weight", make.matrix(hidden, kda.width)


def _mla(g: Geometry, make: _Maker) -> Iterator[tuple[str, Tensor]]:
    mla, hidden = g.mla, g.hidden
    q_width = mla.heads * (mla.nope + mla.rope)
    if mla.q_lora is None:
        yield "q_proj.weight", make.matrix(q_width, hidden)
    else:
        yield "q_a_proj.weight", make.matrix(mla.q_lora, hidden)
        yield "q_a_layernorm.weight", make.norm(mla.q_lora)
        yield "q_b_proj.weight", make.matrix(q_width, mla.q_lora)
    yield "kv_a_proj_with_mqa.weight", make.matrix(mla.cache_dim, hidden)
    yield "kv_a_layernorm.weight", make.norm(mla.kv_lora)
    yield "kv_b_proj.weight", make.matrix(mla.heads * (mla.nope + mla.v_dim), mla.kv_lora)
    if mla.output_gate:
        yield "g_proj.weight", make.matrix(mla.heads * mla.v_dim, hidden)
    yield "o_proj.weight", make.matrix(hidden, mla.heads * mla.v_dim)


def _mlp(stem: str, sizes: tuple[int, int], make: _Maker) -> Iterator[tuple[str, Tensor]]:
    hidden, width = sizes
    yield f"{stem}.gate_proj.weight", make.matrix(width, hidden, 2.0)
    yield f"{stem}.up_proj.weight", make.matrix(width, hidden, 2.0)
    yield f"{stem}.down_proj.weight", make.matrix(hidden, width)


def _moe(g: Geometry, make: _Maker) -> Iterator[tuple[str, Tensor]]:
    moe, hidden = g.moe, g.hidden
    yield "gate.weight", make.matrix(moe.experts, hidden)
    yield "gate.e_score_correction_bias", make.uniform(-0.1, 0.1, moe.experts)
    if moe.latent is not None:
        yield "routed_expert_down_proj.weight", make.matrix(moe.latent, hidden)
        yield "routed_expert_up_proj.weight", make.matrix(hidden, moe.latent)
    if moe.latent is not None and moe.latent_norm:
        yield "routed_expert_norm.weight", make.norm(moe.latent)
    if moe.shared_width:
        yield from _mlp("shared_experts", (hidden, moe.shared_width), make)
    width_in = moe.latent or hidden
    shapes = {
        "w1": (moe.expert_width, width_in),
        "w2": (width_in, moe.expert_width),
        "w3": (moe.expert_width, width_in),
    }
    for expert in range(moe.experts):
        for part, (out, width) in shapes.items():
            weight = make.matrix(out, width, 2.0 if part != "w2" else 1.0)
            name = f"experts.{expert}.{part}.weight"
            if moe.expert_format == "bf16":
                yield name, weight
            else:
                packed, scale = encode_mxfp4(weight.float())
                yield f"{name}_packed", packed
                yield f"{name}_scale", scale
