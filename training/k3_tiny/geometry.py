"""The shape of `k3-tiny`, and its config as the release writes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training.k3_tiny import tokenizer


@dataclass(frozen=True)
class Geometry:
    """Every number the model and its config share; layer indices are 0-based."""

    hidden: int = 192
    layers: int = 8
    vocab: int = tokenizer.VOCAB
    full_attention: tuple[int, ...] = (3, 7)
    heads: int = 6
    head_dim: int = 32
    conv: int = 4
    gate_lower_bound: float = -5.0
    q_lora: int = 96
    kv_lora: int = 64
    nope: int = 32
    rope: int = 32
    v_dim: int = 32
    dense: int = 384
    experts: int = 24
    chosen: int = 4
    latent: int = 96
    expert_width: int = 96
    shared: int = 2
    beta: float = 4.0
    linear_beta: float = 25.0
    block: int = 4
    eps: float = 1e-5
    context: int = 8192

    def config(self) -> dict[str, Any]:
        """`config.json` of the release's shape."""
        return {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "dtype": "bfloat16",
            "pad_token_id": 0,
            "bos_token_id": tokenizer.BOS,
            "eos_token_id": tokenizer.END_OF_MSG,
            "text_config": self._text(),
        }

    def _text(self) -> dict[str, Any]:
        layers = range(self.layers)
        return {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "dtype": "bfloat16",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.dense,
            "hidden_act": "situ",
            "activation_situ_beta": self.beta,
            "activation_situ_linear_beta": self.linear_beta,
            "attn_res_block_size": self.block,
            "rms_norm_eps": self.eps,
            "initializer_range": 0.02,
            "use_cache": True,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": False,
            "bos_token_id": tokenizer.BOS,
            "eos_token_id": tokenizer.END_OF_MSG,
            "pad_token_id": 0,
            "linear_attn_config": {
                "kda_layers": [n + 1 for n in layers if n not in self.full_attention],
                "full_attn_layers": [n + 1 for n in self.full_attention],
                "num_heads": self.heads,
                "head_dim": self.head_dim,
                "short_conv_kernel_size": self.conv,
                "gate_lower_bound": self.gate_lower_bound,
                "use_full_rank_gate": True,
            },
            **self._attention(),
            **self._moe(),
            "quantization_config": _quantization(),
        }

    def _attention(self) -> dict[str, Any]:
        return {
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_lora,
            "kv_lora_rank": self.kv_lora,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.v_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
        }

    def _moe(self) -> dict[str, Any]:
        return {
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "num_experts": self.experts,
            "num_experts_per_token": self.chosen,
            "num_shared_experts": self.shared,
            "moe_intermediate_size": self.expert_width,
            "routed_expert_hidden_size": self.latent,
            "latent_moe_use_norm": True,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "routed_scaling_factor": 1.0,
            "num_expert_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
        }


def _quantization() -> dict[str, Any]:
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        "scale_dtype": "torch.uint8",
        "dynamic": False,
    }
    group = {
        "format": "mxfp4-pack-quantized",
        "targets": ["Linear"],
        "input_activations": None,
        "output_activations": None,
        "weights": weights,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [
            r"re:.*self_attn.*",
            r"re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            r"re:.*routed_expert_(down|up)_proj.*",
            r"re:.*block_sparse_moe\.gate.*",
            r"re:.*_res_proj.*",
            r"re:.*lm_head.*",
        ],
    }
