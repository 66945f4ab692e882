"""Shapes of synthetic checkpoints, and the config.json a released checkpoint of that shape has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stepfuse.core.config import ExpertFormat, Member


@dataclass(frozen=True, slots=True)
class Shape:
    """One member's sizes; defaults are those every released member shares.

    `mla_layers` None: every fourth layer and the last. `shared` counts shared experts.
    """

    member: Member
    hidden: int
    layers: int
    vocab: int
    kda_heads: int
    mla_heads: int
    dense: int
    experts: int
    top_k: int
    width: int
    latent: int | None = None
    q_lora: int | None = None
    kda_dim: int = 128
    kv_lora: int = 512
    nope: int = 128
    rope: int = 64
    v_dim: int = 128
    shared: int = 1
    block: int | None = None
    expert_format: ExpertFormat = "bf16"
    routed_scaling: float = 1.0
    max_positions: int = 1 << 20
    mla_layers: tuple[int, ...] | None = None


PRESETS: Final[dict[str, Shape]] = {
    # A K3 of quarter width: what peers are measured on.
    "k3-quarter": Shape(
        "k3", 1792, 16, 32768, 24, 24, 8448, 112, 16, 768,
        latent=896, q_lora=384, shared=2, block=4, expert_format="mxfp4",
    ),
    # Real K3 widths; few layers, few experts and a small vocabulary.
    "k3-slice": Shape(
        "k3", 7168, 4, 8192, 96, 96, 33792, 32, 16, 3072,
        latent=3584, q_lora=1536, shared=2, block=12, expert_format="mxfp4",
    ),
    # Real Kimi-Linear widths and layers; few experts.
    "linear-slim": Shape(
        "kimi_linear", 2304, 27, 163840, 32, 32, 9216, 16, 8, 1024, routed_scaling=2.446
    ),
    # Every expert is chosen, so no rounding can change the routing: for exact comparisons.
    "k3-flat": Shape(
        "k3", 256, 8, 4096, 4, 4, 768, 16, 16, 128,
        latent=128, q_lora=128, kv_lora=128, shared=2, block=3, expert_format="mxfp4",
    ),
    # Fits the caches: what is left is overhead.
    "k3-cache": Shape(
        "k3", 256, 8, 4096, 4, 4, 768, 32, 8, 128,
        latent=128, q_lora=128, kv_lora=128, shared=2, block=3, expert_format="mxfp4",
    ),
}  # fmt: skip


# What every released config says alike.
_FIXED: Final = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "mla_use_nope": True,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
}


def config_of(shape: Shape) -> dict[str, Any]:
    """config.json in released form; `shape.member` decides wrapper and keys."""
    if shape.member == "kimi_linear":
        return _text_config(shape) | {"hidden_act": "silu", "model_max_length": shape.max_positions}
    text = _k3_text_config(shape)
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": text["bos_token_id"],
        "eos_token_id": text["eos_token_id"],
        "text_config": text,
    }


def _k3_text_config(shape: Shape) -> dict[str, Any]:
    text = _text_config(shape) | {
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": shape.block,
        "hidden_act": "situ",
        "latent_moe_use_norm": True,
        "max_position_embeddings": shape.max_positions,
        "mla_use_output_gate": True,
        "routed_expert_hidden_size": shape.latent,
        "topk_method": "noaux_tc",
    }
    text["linear_attn_config"] |= {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    if shape.expert_format == "mxfp4":
        text["quantization_config"] = _quantization_config()
    return text


def _text_config(shape: Shape) -> dict[str, Any]:
    return {
        **_FIXED,
        # The family's special ids are the last 256 of its vocabulary.
        "bos_token_id": max(0, shape.vocab - 256),
        "eos_token_id": max(1, shape.vocab - 254),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense,
        "kv_lora_rank": shape.kv_lora,
        "linear_attn_config": _linear_attn_config(shape),
        "moe_intermediate_size": shape.width,
        "num_attention_heads": shape.mla_heads,
        "num_experts": shape.experts,
        "num_experts_per_token": shape.top_k,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.mla_heads,
        "num_shared_experts": shape.shared,
        "q_lora_rank": shape.q_lora,
        "qk_nope_head_dim": shape.nope,
        "qk_rope_head_dim": shape.rope,
        "routed_scaling_factor": shape.routed_scaling,
        "v_head_dim": shape.v_dim,
        "vocab_size": shape.vocab,
    }


def _linear_attn_config(shape: Shape) -> dict[str, Any]:
    mla = shape.mla_layers
    if mla is None:
        mla = tuple(i for i in range(shape.layers) if i % 4 == 3 or i == shape.layers - 1)
    return {
        "full_attn_layers": [i + 1 for i in mla],
        "kda_layers": [i + 1 for i in range(shape.layers) if i not in mla],
        "head_dim": shape.kda_dim,
        "num_heads": shape.kda_heads,
        "short_conv_kernel_size": 4,
    }


def _quantization_config() -> dict[str, Any]:
    weights = {
        "group_size": 32,
        "num_bits": 4,
        "scale_dtype": "torch.uint8",
        "strategy": "group",
        "symmetric": True,
        "type": "float",
    }
    group = {"format": "mxfp4-pack-quantized", "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": "mxfp4-pack-quantized",
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
