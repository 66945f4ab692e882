"""A released Kimi-Linear checkpoint rewritten as transformers 5.24 would save it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.support.files import edit_tensors


def to_saved_form(path: Path, dtype: torch.dtype) -> None:
    """Rename the dense MLP, cast everything to `dtype` and rewrite config.json, in place."""

    def rewrite(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensor = tensors.pop(name)
            tensors[name.replace(".mlp.", ".block_sparse_moe.")] = tensor.to(dtype)

    edit_tensors(path, rewrite)
    file = path / "config.json"
    file.write_text(json.dumps(_saved_config(json.loads(file.read_text()))))


def _saved_config(raw: dict[str, Any]) -> dict[str, Any]:
    linear = raw.pop("linear_attn_config")
    layers = raw["num_hidden_layers"]
    dense = raw.pop("first_k_dense_replace")
    for key in (
        "mla_use_nope",
        "moe_layer_freq",
        "moe_router_activation_func",
        "num_nextn_predict_layers",
        "use_grouped_topk",
    ):
        raw.pop(key, None)
    full = set(linear["full_attn_layers"])
    return raw | {
        "layer_types": [
            "full_attention" if i + 1 in full else "linear_attention" for i in range(layers)
        ],
        "mlp_layer_types": ["dense" if i < dense else "sparse" for i in range(layers)],
        "linear_head_dim": linear["head_dim"],
        "linear_num_heads": linear["num_heads"],
        "linear_conv_kernel_dim": linear["short_conv_kernel_size"],
        "qk_head_dim": raw["qk_nope_head_dim"] + raw["qk_rope_head_dim"],
        "attention_bias": False,
        "head_dim": raw["qk_rope_head_dim"],
        "pretraining_tp": 1,
        "output_router_logits": False,
    }
