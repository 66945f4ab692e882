"""The training code of k3-tiny: each fast form against a plain one, and the export read back."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepfuse.ops import mxfp4 as codec
from stepfuse.weights.load import open_model

pytest.importorskip("tokenizers", reason="the train extra is not installed")

from training.k3_tiny import export, kda, moe, mxfp4, norm, tokenizer
from training.k3_tiny.autograd import applied
from training.k3_tiny.geometry import Geometry
from training.k3_tiny.model import K3


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_chunked_kda_is_the_plain_recurrence() -> None:
    torch.manual_seed(0)
    p, t, d = 2, 48, 4
    q, k, v = _draw(p, t, d), torch.nn.functional.normalize(_draw(p, t, d), dim=-1), _draw(p, t, d)
    g = -5 * torch.sigmoid(4 * _draw(p, t, d))
    beta = _draw(p, t).sigmoid()
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    results = []
    for form in (kda.delta_plain, kda.delta_chunked):
        out = form(*inputs)
        results.append([out, *torch.autograd.grad((out * out).sum(), inputs)])
    for plain, chunked in zip(*results, strict=True):
        # The chunk form multiplies factors up to e^40 by ones down to e^-40.
        torch.testing.assert_close(chunked, plain, rtol=1e-9, atol=1e-9)


def test_chunked_kda_stays_finite_at_the_gate_bound() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 32, 8)
    k = torch.nn.functional.normalize(k, dim=-1)
    g, beta = torch.full((2, 32, 8), -5.0), torch.ones(2, 32)
    torch.testing.assert_close(
        kda.delta_chunked(q, k, v, g, beta),
        kda.delta_plain(q, k, v, g, beta),
        rtol=1e-4,
        atol=1e-5,  # 16 terms of size 1 in FP32, divided and multiplied back by e^40
    )


def test_hand_written_gradients_are_autograds() -> None:
    torch.manual_seed(0)
    x, y, w = _draw(2, 3, 6), _draw(2, 3, 6), _draw(6)
    inputs = [t.requires_grad_() for t in (x, y, w)]
    assert torch.autograd.gradcheck(lambda x, _, w: applied(norm._Rms, x, w, 1e-5), inputs)
    assert torch.autograd.gradcheck(lambda x, y, w: applied(norm._Mix, 1e-5, w, x, y), inputs)
    shape = Geometry()
    assert torch.autograd.gradcheck(lambda x, y, _: moe.situ(3 * x, 30 * y, shape), inputs)


def test_grouped_experts_are_experts_one_by_one() -> None:
    torch.manual_seed(0)
    shape = Geometry(hidden=32, experts=8, chosen=3, latent=32, expert_width=32)
    layer = moe.Moe(shape)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    layer.bias.copy_(torch.linspace(-0.2, 0.2, 8))
    x = torch.randn(5, 32)
    torch.testing.assert_close(layer(x), torch.stack([_one(layer, row) for row in x]))


def _one(layer: moe.Moe, x: torch.Tensor) -> torch.Tensor:
    shape, experts = layer.shape, layer.experts
    score = layer.gate(x).sigmoid()
    chosen = (score + layer.bias).topk(shape.chosen).indices
    u = layer.routed_expert_down_proj(x)
    total = torch.zeros(shape.latent)
    for e in chosen:
        g, up = (experts.w13[e] @ u).chunk(2)
        h = shape.beta * torch.tanh(g / shape.beta) * torch.sigmoid(g)
        h = h * shape.linear_beta * torch.tanh(up / shape.linear_beta)
        total = total + score[e] / score[chosen].sum() * (experts.w2[e] @ h)
    routed = layer.routed_expert_up_proj(layer.routed_expert_norm(total))
    return torch.as_tensor(routed + layer.shared_experts(x))


def test_mxfp4_rounds_to_what_the_engine_decodes() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 64) * torch.logspace(-6, 3, 6)[:, None]
    packed, scale = mxfp4.pack(weight)
    torch.testing.assert_close(mxfp4.rounded(weight), mxfp4.unpack(packed, scale))
    torch.testing.assert_close(codec.decode_mxfp4(packed, scale), mxfp4.unpack(packed, scale))
    # E2M1's widest step is 4 to 6; the smallest scale that holds a group's largest value puts it
    # between 3 and 6, so an error is at most 1/3 of it.
    largest = weight.abs().view(6, 2, 32).amax(-1).repeat_interleave(32, dim=1)
    assert torch.all((mxfp4.rounded(weight) - weight).abs() <= largest / 3)


def test_ranks_encode_as_the_tokenizer_they_came_from() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    bpe = tokenizer.train_bpe([(library / "argparse.py").read_text()], 700)
    encoding = tokenizer.encoding_of(tokenizer.ranks_of(bpe))
    text = (library / "textwrap.py").read_text() + "\n中文English混合 1234567 x'll\t\r\n  \n é"
    pieces = [encoding.decode_single_token_bytes(i) for i in encoding.encode_ordinary(text)]
    theirs = [bytes(_byte(c) for c in piece) for piece in bpe.encode(text).tokens]
    assert pieces == theirs
    # No merge of digits is learned: 1234567 is seven tokens.
    assert not any(len(p.strip()) > 1 and p.strip().isdigit() for p in pieces)


def _byte(character: str) -> int:
    return {c: b for b, c in tokenizer._byte_characters().items()}[character]


def test_export_is_the_released_form(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = Geometry(layers=4, full_attention=(3,), dense=64, experts=4, chosen=2)
    model = K3(shape)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.endswith(export.FP32):
                p.copy_(p.bfloat16())
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    save_file(export.released(model.state_dict()), tmp_path / "model.safetensors")
    _, _, geometry = open_model(tmp_path, frozenset())
    assert geometry.moe.expert_format == "mxfp4"
    again = export.restored(tmp_path, shape)
    for layer in model.moes():
        layer.quantized = True
    tokens = torch.randint(0, 4000, (1, 32))
    # The same weights in both: rounded experts, trunk values that BF16 holds.
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-5, atol=1e-5)
