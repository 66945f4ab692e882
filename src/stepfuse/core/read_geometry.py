"""Typed keys to Geometry, one reader per part of the model. Raises ConfigError naming the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepfuse.core.config import (
    TILE_ROWS,
    ActivationGeometry,
    ExpertFormat,
    Geometry,
    KdaGeometry,
    LayerKind,
    Member,
    MlaGeometry,
    MoeGeometry,
)
from stepfuse.core.key_reader import KeyReader

ConfigForm = Literal["released", "transformers"]
# Taps of the causal convolution the kernels and the conv state are built for.
CONV_TAPS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """The text model's keys, and what the wrapper around them decided."""

    text: KeyReader
    top: KeyReader
    member: Member
    form: ConfigForm
    prefix: str


def read_geometry(source: Source, expert_format: ExpertFormat) -> Geometry:
    """The shape the keys describe; every key it needs is known to be present."""
    text = source.text
    layers = text.size("num_hidden_layers", high=4096)
    vocab = text.size("vocab_size")
    k3 = source.member == "k3"
    return Geometry(
        member=source.member,
        vocab=vocab,
        hidden=text.multiple("hidden_size", 2),
        layer_kinds=_layer_kinds(source, layers),
        dense_layers=_dense_layers(source, layers),
        dense_width=text.multiple("intermediate_size", 2),
        activation=_activation(source),
        norm_eps=text.number("rms_norm_eps", low=0.0, high=1.0),
        attn_res_block=text.size("attn_res_block_size") if k3 else None,
        max_positions=_max_positions(text),
        kda=_kda(source),
        mla=_mla(source),
        moe=_moe(source, expert_format),
        bos_id=next(iter(_ids(source, "bos_token_id", vocab)), None),
        eos_ids=_ids(source, "eos_token_id", vocab),
        tensor_prefix=source.prefix,
    )


def _layer_kinds(source: Source, layers: int) -> tuple[LayerKind, ...]:
    if source.form == "transformers":
        names = {"linear_attention": "kda", "full_attention": "mla"}
        return tuple(source.text.words("layer_types", names, layers))
    linear = source.text.mapping("linear_attn_config")
    kda = linear.layer_numbers("kda_layers", layers)
    mla = linear.layer_numbers("full_attn_layers", layers)
    both, neither = kda & mla, set(range(layers)) - kda - mla
    if both or neither:
        listed = [i + 1 for i in sorted(both or neither)]
        how = "both lists name" if both else "neither list names"
        raise linear.fail("kda_layers", f"and full_attn_layers: {how} layers {listed} (1-based)")
    return tuple("kda" if i in kda else "mla" for i in range(layers))


def _dense_layers(source: Source, layers: int) -> tuple[bool, ...]:
    if source.form == "transformers":
        names = {"dense": True, "sparse": False}
        return tuple(source.text.words("mlp_layer_types", names, layers))
    dense = source.text.size("first_k_dense_replace", low=0, high=layers)
    return tuple(i < dense for i in range(layers))


def _activation(source: Source) -> ActivationGeometry:
    text, want = source.text, "situ" if source.member == "k3" else "silu"
    if text.raw["hidden_act"] != want:
        raise text.fail("hidden_act", f"is {text.raw['hidden_act']!r}: expected {want!r} here")
    if source.member == "kimi_linear":
        return ActivationGeometry("silu", 1.0, 1.0)
    beta = text.number("activation_situ_beta", low=0.0, high=1e6)
    return ActivationGeometry(
        "situ", beta, text.number("activation_situ_linear_beta", low=0.0, high=1e6)
    )


def _max_positions(text: KeyReader) -> int:
    for key in ("max_position_embeddings", "model_max_length"):
        if key in text.raw:
            return text.size(key, high=1 << 40)
    raise text.fail("max_position_embeddings", "is missing, and so is 'model_max_length'")


def _kda(source: Source) -> KdaGeometry:
    if source.form == "transformers":
        reader = source.text
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    else:
        reader = source.text.mapping("linear_attn_config")
        names = ("num_heads", "head_dim", "short_conv_kernel_size")
    dim = reader.multiple(names[1], TILE_ROWS)
    if reader.size(names[2]) != CONV_TAPS:
        raise reader.fail(names[2], f"is {reader.raw[names[2]]}: only {CONV_TAPS} is implemented")
    bound = None
    if source.member == "k3" or reader.raw.get("gate_lower_bound") is not None:
        bound = reader.number("gate_lower_bound", low=-1e4, high=0.0)
    full_rank = reader.flag("use_full_rank_gate", None if source.member == "k3" else False)
    return KdaGeometry(
        heads=reader.size(names[0], high=65536),
        dim=dim,
        conv_kernel=CONV_TAPS,
        decay_rank=dim,
        gate_rank=None if full_rank else dim,
        gate_lower_bound=bound,
    )


def _mla(source: Source) -> MlaGeometry:
    text = source.text
    heads = text.size("num_attention_heads", high=65536)
    nope, rope = text.multiple("qk_nope_head_dim", 2), text.multiple("qk_rope_head_dim", 2)
    for key, value in (("num_key_value_heads", heads), ("qk_head_dim", nope + rope)):
        if text.raw.get(key) is not None and text.size(key) != value:
            raise text.fail(key, f"is {text.raw[key]}: expected {value}, as the other keys say")
    q_lora = text.optional_size("q_lora_rank")
    if q_lora is not None:
        q_lora = text.multiple("q_lora_rank", 2)
    return MlaGeometry(
        heads=heads,
        q_lora=q_lora,
        kv_lora=text.multiple("kv_lora_rank", 2),
        nope=nope,
        rope=rope,
        v_dim=text.multiple("v_head_dim", 2),
        output_gate=text.flag("mla_use_output_gate", None if source.member == "k3" else False),
    )


def _moe(source: Source, expert_format: ExpertFormat) -> MoeGeometry:
    text, k3 = source.text, source.member == "k3"
    width = text.multiple("moe_intermediate_size", 2)
    return MoeGeometry(
        experts=text.size("num_experts", high=65536),
        top_k=text.size("num_experts_per_token", high=65536),
        expert_width=width,
        latent=text.multiple("routed_expert_hidden_size", 2) if k3 else None,
        latent_norm=text.flag("latent_moe_use_norm") if k3 else False,
        shared_width=text.size("num_shared_experts", low=0, high=1024) * width,
        routed_scaling=text.number("routed_scaling_factor", low=0.0, high=1e4),
        renormalize=text.flag("moe_renormalize"),
        expert_format=expert_format,
    )


def _ids(source: Source, key: str, vocab: int) -> tuple[int, ...]:
    """Ids of the wrapper, then of the text model, each once."""
    found: dict[int, None] = {}
    for reader in (source.top, source.text):
        for token in reader.token_ids(key):
            if token >= vocab:
                raise reader.fail(key, f"is {token}: the vocabulary ends at {vocab - 1}")
            found[token] = None
    return tuple(found)
