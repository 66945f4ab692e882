"""config.json to Geometry: real configs validate, everything else is refused by name.

Longer than the house's size: one table of keys, one place that tries each of them.
"""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from stepfuse.core.errors import ConfigError
from stepfuse.core.parse_config import parse_config

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


def load(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return raw


def text(raw: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = raw.get("text_config", raw)
    return inner


@pytest.fixture
def k3() -> dict[str, Any]:
    return load("kimi-k3")


@pytest.fixture
def linear() -> dict[str, Any]:
    return load("kimi-linear-48b")


@pytest.fixture
def saved() -> dict[str, Any]:
    return load("kimi-linear-transformers-saved")


def test_full_k3_config(k3: dict[str, Any]) -> None:
    parsed = parse_config(k3)
    g = parsed.geometry
    assert (g.member, g.layers, g.hidden, g.vocab) == ("k3", 93, 7168, 163840)
    assert g.mla_layers == (*range(3, 92, 4), 92)
    assert len(g.kda_layers) == 69
    assert g.layer_kinds[0] == "kda"
    assert g.dense_layers == (True,) + (False,) * 92
    assert (g.kda.heads, g.kda.dim, g.kda.gate_rank, g.kda.gate_lower_bound) == (96, 128, None, -5)
    assert (g.mla.q_lora, g.mla.cache_dim, g.mla.output_gate) == (1536, 576, True)
    assert (g.moe.experts, g.moe.top_k, g.moe.latent, g.moe.shared_width) == (896, 16, 3584, 6144)
    assert g.moe.expert_format == "mxfp4"
    assert (g.activation.kind, g.activation.beta, g.activation.linear_beta) == ("situ", 4.0, 25.0)
    assert (g.attn_res_block, g.tensor_prefix, g.max_positions) == (12, "language_model.", 1 << 20)
    assert (g.bos_id, g.eos_ids) == (163584, (163586,))
    assert (parsed.form, parsed.notices, parsed.kv_cache_dtype) == ("released", (), None)


def test_full_kimi_linear_config(linear: dict[str, Any]) -> None:
    g = parse_config(linear).geometry
    assert (g.member, g.layers, g.hidden) == ("kimi_linear", 27, 2304)
    assert g.mla_layers == (3, 7, 11, 15, 19, 23, 26)
    assert (g.kda.gate_rank, g.kda.gate_lower_bound) == (128, None)
    assert (g.mla.q_lora, g.mla.output_gate) == (None, False)
    assert (g.moe.latent, g.moe.routed_scaling, g.moe.expert_format) == (None, 2.446, "bf16")
    assert (g.attn_res_block, g.activation.kind, g.tensor_prefix) == (None, "silu", "")


def test_the_form_transformers_saves(saved: dict[str, Any]) -> None:
    parsed = parse_config(saved)
    g = parsed.geometry
    assert parsed.form == "transformers"
    assert g.mla_layers == (4,)
    assert g.dense_layers == (True, False, False, False, False)
    assert (g.kda.heads, g.kda.dim, g.kda.gate_rank) == (2, 32, 32)


def test_text_model_of_k3_without_its_wrapper(k3: dict[str, Any]) -> None:
    parsed = parse_config(text(k3))
    assert (parsed.geometry.member, parsed.geometry.tensor_prefix) == ("k3", "")


@pytest.mark.parametrize("name", ["kimi-k3", "kimi-linear-48b", "kimi-linear-transformers-saved"])
@pytest.mark.parametrize("value", [None, 0, -1, 2**62, "12", True, 1.5])
@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_token",
        "vocab_size",
        "kv_lora_rank",
        "v_head_dim",
        "moe_intermediate_size",
        "intermediate_size",
    ],
)
def test_absurd_sizes_are_refused_by_name(name: str, key: str, value: object) -> None:
    raw = load(name)
    text(raw)[key] = value
    with pytest.raises(ConfigError, match=key):
        parse_config(raw)


def test_unknown_key_is_refused_by_name_and_accepted_on_request(k3: dict[str, Any]) -> None:
    text(k3)["hyper_residual_rank"] = 4
    k3["new_top"] = 1
    text(k3)["linear_attn_config"]["delta_order"] = 2
    text(k3)["quantization_config"]["rotation"] = "x"
    with pytest.raises(ConfigError) as error:
        parse_config(k3)
    for key in ("text_config.hyper_residual_rank", "new_top", "linear_attn_config.delta_order"):
        assert key in str(error.value)
    assert "--allow-config-keys" in str(error.value)
    names = frozenset(
        (
            "text_config.hyper_residual_rank",
            "new_top",
            "text_config.linear_attn_config.delta_order",
            "text_config.quantization_config.rotation",
        )
    )
    for name in names:
        with pytest.raises(ConfigError, match=name.rpartition(".")[2]):
            parse_config(k3, names - {name})
    parsed = parse_config(k3, names)
    assert len(parsed.notices) == 4
    assert any("hyper_residual_rank" in notice for notice in parsed.notices)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mla_use_nope", False),
        ("num_expert_group", 8),
        ("topk_group", 4),
        ("topk_method", "greedy"),
        ("moe_router_activation_func", "softmax"),
        ("moe_layer_freq", 2),
        ("num_nextn_predict_layers", 1),
        ("tie_word_embeddings", True),
        ("rope_scaling", {"type": "yarn", "factor": 4}),
        ("hidden_act", "silu"),
        ("hidden_act", "gelu"),
        ("num_key_value_heads", 8),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
        ("routed_scaling_factor", float("inf")),
        ("moe_renormalize", 1),
        ("eos_token_id", 163840),
        ("bos_token_id", -1),
        ("num_experts_per_token", 897),
        ("moe_intermediate_size", 3056),
        ("routed_expert_hidden_size", 3600),
        ("first_k_dense_replace", 94),
        ("attention_bias", True),
    ],
)
def test_contradictions_are_refused_by_name(k3: dict[str, Any], key: str, value: object) -> None:
    text(k3)[key] = value
    with pytest.raises(ConfigError, match=key):
        parse_config(k3)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("full_attn_layers", [0, 4], "counts? from 1|count from 1"),
        ("full_attn_layers", [4, 94], "94"),
        ("full_attn_layers", [4, 4], "twice"),
        ("full_attn_layers", [4, 8], "neither"),
        ("kda_layers", list(range(1, 94)), "both"),
        ("kda_layers", "all", "list"),
        ("short_conv_kernel_size", 3, "short_conv_kernel_size"),
        ("head_dim", 80, "multiple of 32"),
        ("num_heads", 0, "num_heads"),
        ("gate_lower_bound", 0.5, "gate_lower_bound"),
        ("gate_lower_bound", None, "gate_lower_bound"),
        ("use_full_rank_gate", None, "use_full_rank_gate"),
    ],
)
def test_linear_attention_is_checked(
    k3: dict[str, Any], key: str, value: object, word: str
) -> None:
    text(k3)["linear_attn_config"][key] = value
    with pytest.raises(ConfigError, match=word):
        parse_config(k3)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("quant_method", "gptq"),
        ("format", "nvfp4-pack-quantized"),
        ("config_groups.group_0.weights.group_size", 16),
        ("config_groups.group_0.weights.num_bits", 8),
        ("config_groups.group_0.input_activations", {"num_bits": 8}),
        ("kv_cache_scheme", {"num_bits": 4, "type": "int"}),
    ],
)
def test_other_quantization_is_refused_by_name(
    k3: dict[str, Any], path: str, value: object
) -> None:
    node = text(k3)["quantization_config"]
    *parents, leaf = path.split(".")
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    with pytest.raises(ConfigError, match=leaf):
        parse_config(k3)


def test_kv_cache_scheme_is_honoured(k3: dict[str, Any]) -> None:
    text(k3)["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    parsed = parse_config(k3)
    assert parsed.kv_cache_dtype == "fp8"
    assert any("FP8 KV cache" in notice for notice in parsed.notices)


def test_several_eos_ids(linear: dict[str, Any]) -> None:
    linear["eos_token_id"] = [163586, 163585]
    assert parse_config(linear).geometry.eos_ids == (163586, 163585)


@pytest.mark.parametrize("key", ["layer_types", "mlp_layer_types"])
def test_saved_layer_lists_are_checked(saved: dict[str, Any], key: str) -> None:
    short = copy.deepcopy(saved)
    short[key].pop()
    with pytest.raises(ConfigError, match=key):
        parse_config(short)
    saved[key][1] = "sliding_attention"
    with pytest.raises(ConfigError, match="sliding_attention"):
        parse_config(saved)


@pytest.mark.parametrize("model_type", [None, "llama", 7])
def test_other_models_are_refused(linear: dict[str, Any], model_type: object) -> None:
    linear["model_type"] = model_type
    with pytest.raises(ConfigError, match="model_type"):
        parse_config(linear)


STRANGE: list[Any] = [None, [], {}, "x", -1, 0, 1e400, float("nan"), True, [[]], {"a": 1}, [None]]


@pytest.mark.parametrize("name", ["kimi-k3", "kimi-linear-48b", "kimi-linear-transformers-saved"])
def test_any_value_anywhere_is_a_geometry_or_a_config_error(name: str) -> None:
    """No key's value escapes as another error, at any depth."""
    raw = load(name)
    places = [raw, text(raw)]
    if "linear_attn_config" in text(raw):
        places.append(text(raw)["linear_attn_config"])
    if "quantization_config" in text(raw):
        scheme = text(raw)["quantization_config"]
        group = scheme["config_groups"]["group_0"]
        places += [scheme, scheme["config_groups"], group, group["weights"]]
    for node in places:
        for key in list(node):
            kept = node[key]
            for value in STRANGE:
                node[key] = value
                with contextlib.suppress(ConfigError):
                    parse_config(raw)
            node[key] = kept
    assert parse_config(raw)
