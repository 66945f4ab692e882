"""Random checkpoints as the released files look: config.json and one safetensors shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from stepfuse.core.config import Geometry


def released_config(g: Geometry) -> dict[str, Any]:
    """config.json of a checkpoint of this shape; K3 nests the text model in `text_config`."""
    text = _text_config(g)
    if g.member == "kimi_linear":
        return {"architectures": ["KimiLinearForCausalLM"], **text}
    text |= _k3_config(g)
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": text,
    }


def _text_config(g: Geometry) -> dict[str, Any]:
    one_based = {
        kind: [i + 1 for i, own in enumerate(g.layer_kinds) if own == kind]
        for kind in ("kda", "mla")
    }
    return {
        "model_type": "kimi_linear",
        "vocab_size": g.vocab,
        "hidden_size": g.hidden,
        "num_hidden_layers": g.layers,
        "num_attention_heads": g.mla.heads,
        "num_key_value_heads": g.mla.heads,
        "intermediate_size": g.dense_width,
        "hidden_act": g.activation.kind,
        "rms_norm_eps": g.norm_eps,
        "model_max_length": g.max_positions,
        "q_lora_rank": g.mla.q_lora,
        "kv_lora_rank": g.mla.kv_lora,
        "qk_nope_head_dim": g.mla.nope,
        "qk_rope_head_dim": g.mla.rope,
        "v_head_dim": g.mla.v_dim,
        "mla_use_nope": True,
        "num_experts": g.moe.experts,
        "num_experts_per_token": g.moe.top_k,
        "num_shared_experts": g.moe.shared_width // g.moe.expert_width,
        "moe_intermediate_size": g.moe.expert_width,
        "moe_renormalize": g.moe.renormalize,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": g.moe.routed_scaling,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": True,
        "tie_word_embeddings": False,
        "pad_token_id": g.vocab - 1,
        "bos_token_id": g.bos_id,
        "eos_token_id": g.eos_ids[0],
        "linear_attn_config": {
            "head_dim": g.kda.dim,
            "num_heads": g.kda.heads,
            "short_conv_kernel_size": g.kda.conv_kernel,
            "kda_layers": one_based["kda"],
            "full_attn_layers": one_based["mla"],
        },
    }


def _k3_config(g: Geometry) -> dict[str, Any]:
    config: dict[str, Any] = {
        "activation_situ_beta": g.activation.beta,
        "activation_situ_linear_beta": g.activation.linear_beta,
        "routed_expert_hidden_size": g.moe.latent,
        "attn_res_block_size": g.attn_res_block,
        "latent_moe_use_norm": g.moe.latent_norm,
        "mla_use_output_gate": g.mla.output_gate,
        "max_position_embeddings": g.max_positions,
    }
    if g.moe.expert_format == "mxfp4":
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
        }
    linear = _text_config(g)["linear_attn_config"]
    config["linear_attn_config"] = linear | {
        "gate_lower_bound": g.kda.gate_lower_bound,
        "use_full_rank_gate": True,
    }
    return config


def save_released(path: Path, g: Geometry, tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors; `tensors` without the member's prefix."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(released_config(g), indent=1))
    named = {g.tensor_prefix + name: t.contiguous() for name, t in tensors.items()}
    save_file(named, str(path / "model.safetensors"), metadata={"format": "pt"})
