"""Loading moves the file's values bit for bit into the arena; nothing else stands in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.weights.load import LoadedModel, LoadOptions, load
from stepfuse.weights.store import KdaWeights, LayerWeights, MlaWeights, MoeWeights
from tests.support import unpack
from tests.support.files import read_tensors
from tests.support.tiny import tiny_k3, tiny_kimi_linear

QUIET = LoadOptions(quiet=True)


class Bits:
    """Compares fields with the file's tensors by bit pattern and remembers what it has seen."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.tensors = read_tensors(path)
        self.prefix = prefix
        self.seen: set[str] = set()

    def same(self, got: Tensor, name: str) -> None:
        want = self.tensors[self.prefix + name]
        self.seen.add(self.prefix + name)
        want = want.reshape(got.shape)
        assert got.dtype == want.dtype, name
        raw = torch.int16 if got.dtype == torch.bfloat16 else torch.uint8
        assert torch.equal(got.contiguous().view(raw), want.contiguous().view(raw)), name

    def values(self, got: Tensor, name: str) -> None:
        """Equal as numbers, where FP32 holds what the file stores in BF16 or FP32."""
        self.seen.add(self.prefix + name)
        assert got.dtype == torch.float32
        want = self.tensors[self.prefix + name].float()
        assert torch.equal(got.reshape(-1), want.reshape(-1)[: got.numel()]), name


def check_model(path: Path, model: LoadedModel) -> None:
    g, w = model.geometry, model.weights
    bits = Bits(path, g.tensor_prefix)
    bits.same(w.embed, "model.embed_tokens.weight")
    bits.same(w.final_norm, "model.norm.weight")
    bits.same(unpack.linear(w.lm_head), "lm_head.weight")
    if w.output_res is not None:
        bits.same(w.output_res.norm, "model.output_attn_res_norm.weight")
        bits.same(w.output_res.proj, "model.output_attn_res_proj.weight")
    for i, layer in enumerate(w.layers):
        check_layer(bits, g, f"model.layers.{i}.", layer)
    assert bits.seen == set(bits.tensors)


def check_layer(bits: Bits, g: Geometry, stem: str, layer: LayerWeights) -> None:
    bits.same(layer.input_norm, f"{stem}input_layernorm.weight")
    bits.same(layer.post_norm, f"{stem}post_attention_layernorm.weight")
    for mix, name in ((layer.attn_res, "self_attention_res"), (layer.mlp_res, "mlp_res")):
        assert (mix is None) == (g.attn_res_block is None)
        if mix is not None:
            bits.same(mix.norm, f"{stem}{name}_norm.weight")
            bits.same(mix.proj, f"{stem}{name}_proj.weight")
    if isinstance(layer.attention, KdaWeights):
        check_kda(bits, f"{stem}self_attn.", layer.attention)
    else:
        check_mla(bits, g, f"{stem}self_attn.", layer.attention)
    if isinstance(layer.ffn, MoeWeights):
        check_moe(bits, g, f"{stem}block_sparse_moe.", layer.ffn)
        return
    gate, up = unpack.gate_up(layer.ffn.gate_up)
    bits.same(gate, f"{stem}mlp.gate_proj.weight")
    bits.same(up, f"{stem}mlp.up_proj.weight")
    bits.same(unpack.linear(layer.ffn.down), f"{stem}mlp.down_proj.weight")


def check_kda(bits: Bits, stem: str, kda: KdaWeights) -> None:
    for name in ("q", "k", "v", "o", "f_a", "f_b", "b", "g", "g_a", "g_b"):
        packed = getattr(kda, name)
        if packed is not None:
            bits.same(unpack.linear(packed), f"{stem}{name}_proj.weight")
    bits.values(kda.a_log, f"{stem}A_log")
    bits.values(kda.dt_bias, f"{stem}dt_bias")
    bits.values(kda.o_norm, f"{stem}o_norm.weight")
    for part, name in enumerate("qkv"):
        bits.values(kda.conv[part].t().contiguous(), f"{stem}{name}_conv1d.weight")


def check_mla(bits: Bits, g: Geometry, stem: str, mla: MlaWeights) -> None:
    bits.same(unpack.linear(mla.kv_a), f"{stem}kv_a_proj_with_mqa.weight")
    bits.same(mla.kv_a_norm, f"{stem}kv_a_layernorm.weight")
    bits.same(unpack.linear(mla.o), f"{stem}o_proj.weight")
    w_uk, w_uv = unpack.heads(mla.w_uk), unpack.heads(mla.w_uv)
    assert w_uk.shape == (g.mla.heads, g.mla.kv_lora, g.mla.nope)
    assert w_uv.shape == (g.mla.heads, g.mla.v_dim, g.mla.kv_lora)
    bits.same(torch.cat((w_uk.transpose(1, 2), w_uv), dim=1), f"{stem}kv_b_proj.weight")
    if mla.q_a is None:
        bits.same(unpack.linear(mla.q_b), f"{stem}q_proj.weight")
    else:
        assert mla.q_a_norm is not None
        bits.same(unpack.linear(mla.q_a), f"{stem}q_a_proj.weight")
        bits.same(mla.q_a_norm, f"{stem}q_a_layernorm.weight")
        bits.same(unpack.linear(mla.q_b), f"{stem}q_b_proj.weight")
    if mla.g is not None:
        bits.same(unpack.linear(mla.g), f"{stem}g_proj.weight")


def check_moe(bits: Bits, g: Geometry, stem: str, moe: MoeWeights) -> None:
    bits.same(unpack.linear(moe.router), f"{stem}gate.weight")
    bits.values(moe.bias, f"{stem}gate.e_score_correction_bias")
    if moe.latent_down is not None:
        assert moe.latent_up is not None
        assert moe.latent_norm is not None
        bits.same(unpack.linear(moe.latent_down), f"{stem}routed_expert_down_proj.weight")
        bits.same(unpack.linear(moe.latent_up), f"{stem}routed_expert_up_proj.weight")
        bits.same(moe.latent_norm, f"{stem}routed_expert_norm.weight")
    if moe.shared_gate_up is not None:
        assert moe.shared_down is not None
        gate, up = unpack.gate_up(moe.shared_gate_up)
        bits.same(gate, f"{stem}shared_experts.gate_proj.weight")
        bits.same(up, f"{stem}shared_experts.up_proj.weight")
        bits.same(unpack.linear(moe.shared_down), f"{stem}shared_experts.down_proj.weight")
    for expert in range(g.moe.experts):
        base = f"{stem}experts.{expert}."
        if moe.experts.format == "mxfp4":
            for part, tensor in unpack.experts_mxfp4(moe.experts, expert).items():
                name, kind = part.split("_")
                bits.same(tensor, f"{base}{name}.weight_{kind}")
        else:
            parts = unpack.experts_bf16(moe.experts, expert)
            for name, tensor in zip(("w1", "w2", "w3"), parts, strict=True):
                bits.same(tensor, f"{base}{name}.weight")


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"expert_format": "bf16", "width": 24},
        {"hidden": 96, "vocab": 301, "dense": 70, "latent": 96, "width": 160, "experts": 5},
        {"shared": 0, "kv_lora": 40, "v_dim": 18, "nope": 24, "q_lora": 34},
        {"kda_heads": 8, "mla_layers": (0,), "layers": 2},
    ],
)
def test_k3_bit_for_bit(tmp_path: Path, overrides: dict[str, object]) -> None:
    path = tiny_k3(tmp_path, **overrides)
    check_model(path, load(path, QUIET))


@pytest.mark.parametrize(
    "overrides",
    [{}, {"hidden": 70, "width": 22, "kda_heads": 5}, {"experts": 3, "top_k": 1, "q_lora": 32}],
)
def test_kimi_linear_bit_for_bit(tmp_path: Path, overrides: dict[str, object]) -> None:
    path = tiny_kimi_linear(tmp_path, **overrides)
    check_model(path, load(path, QUIET))


def test_several_shards(tmp_path: Path) -> None:
    from stepfuse.weights.synth import SynthOptions, synth_shape
    from tests.support.tiny import TINY_K3

    synth_shape(TINY_K3, tmp_path / "m", SynthOptions(quiet=True, shard_bytes=100_000))
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 3
    check_model(tmp_path / "m", load(tmp_path / "m", QUIET))


def test_every_field_is_an_aligned_view_of_the_arena(tmp_path: Path) -> None:
    w = load(tiny_k3(tmp_path), QUIET).weights
    arena = w.arena
    assert arena.data_ptr() % (2 << 20) == 0
    for tensor in [*tensors_of(w.layers), w.embed, w.lm_head.data, w.final_norm]:
        assert tensor.data_ptr() % 64 == 0
        begin = tensor.data_ptr() - arena.data_ptr()
        assert 0 <= begin <= begin + tensor.numel() * tensor.element_size() <= arena.numel()


def tensors_of(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [t for part in value for t in tensors_of(part)]
    slots = getattr(type(value), "__slots__", ())
    return [t for name in slots for t in tensors_of(getattr(value, name))]


def test_padding_is_zero(tmp_path: Path) -> None:
    """Rows behind `out` in the last tile contribute exactly 0."""
    w = load(tiny_k3(tmp_path, kda_heads=3, vocab=301), QUIET).weights
    assert w.lm_head.data.shape[0] == 10
    assert w.lm_head.data[-1, :, 301 % 32 :].abs().max() == 0
    kda = w.layers[0].attention
    assert isinstance(kda, KdaWeights)
    assert kda.b.data[-1, :, 3:].abs().max() == 0


@pytest.mark.parametrize("name", ["kda", "mla"])
def test_nan_patterns_survive(tmp_path: Path, name: str) -> None:
    """A payload in a NaN is a bit pattern like any other."""
    from tests.support.files import edit_tensors

    path = tiny_kimi_linear(tmp_path)
    target = "model.layers.0.self_attn.q_proj.weight"
    if name == "mla":
        target = "model.layers.3.self_attn.kv_b_proj.weight"

    def put(tensors: dict[str, Tensor]) -> None:
        tensors[target].view(torch.int16)[1, 2:5] = torch.tensor([0x7FA1, -0x5F, 0x0001]).short()

    edit_tensors(path, put)
    check_model(path, load(path, QUIET))
