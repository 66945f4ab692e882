"""Norms, products, mixes and experts against their references, every shape that hurts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.attn_res import attn_res
from stepfuse.ops.attn_res.ref import attn_res as attn_res_ref
from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.experts import experts
from stepfuse.ops.experts.ref import PlainExperts
from stepfuse.ops.experts.ref import experts as experts_ref
from stepfuse.ops.linear import gate_up, heads, linear, linear_fp32
from stepfuse.ops.linear.ref import activate, rounded
from stepfuse.ops.mxfp4 import decode_mxfp4, encode_mxfp4
from stepfuse.ops.norm import rms_norm
from stepfuse.ops.norm.ref import rms_norm as rms_norm_ref
from tests.support.implementations import each_implementation, running
from tests.support.pack_weights import pack_experts, pack_gate_up, pack_heads, pack_linear
from tests.support.tolerance import U_BF16, U_FP32, U_GATE, assert_within, product_bound

SITU = ActivationGeometry("situ", 4.0, 25.0)
SILU = ActivationGeometry("silu", 1.0, 1.0)
# (rows, out, in): one row, odd rows, outputs that are no multiple of a tile, tiny and wide inputs.
SHAPES = [(1, 1, 2), (1, 32, 64), (3, 33, 96), (8, 31, 130), (9, 100, 576), (17, 64, 32)]


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _weight(seed: int, *shape: int) -> Tensor:
    return (_random(seed, *shape) * shape[-1] ** -0.5).to(torch.bfloat16)


@each_implementation
@pytest.mark.parametrize(("rows", "n"), [(1, 32), (3, 7), (5, 96), (2, 7168)])
def test_rms_norm(which: Implementation, rows: int, n: int) -> None:
    x, weight = _random(1, rows, n) * 3, (1 + 0.1 * _random(2, n)).to(torch.bfloat16)
    with running(which):
        out = rms_norm(x, weight, 1e-5)
    want = rms_norm_ref(x.double(), weight, 1e-5)
    assert_within(out, want, (n / 2 + 8) * U_FP32 * want.abs())


@each_implementation
@pytest.mark.parametrize(("rows", "out", "width"), SHAPES)
def test_linear_rounds_its_input(which: Implementation, rows: int, out: int, width: int) -> None:
    x, weight = _random(1, rows, width), _weight(2, out, width)
    with running(which):
        got = linear(x, pack_linear(weight))
    given = rounded(x)
    want = given.double() @ weight.double().T
    assert_within(got, want, product_bound(given, weight))


@each_implementation
@pytest.mark.parametrize(("rows", "out", "width"), SHAPES)
def test_linear_fp32_does_not(which: Implementation, rows: int, out: int, width: int) -> None:
    x, weight = _random(1, rows, width), _weight(2, out, width)
    with running(which):
        got = linear_fp32(x, pack_linear(weight))
    assert_within(got, x.double() @ weight.double().T, product_bound(x, weight))


@each_implementation
@pytest.mark.parametrize("activation", [SITU, SILU])
@pytest.mark.parametrize(("rows", "width", "inside"), SHAPES)
def test_gate_up(
    which: Implementation, activation: ActivationGeometry, rows: int, width: int, inside: int
) -> None:
    x, gate, up = _random(1, rows, inside) * 4, _weight(2, width, inside), _weight(3, width, inside)
    with running(which):
        got = gate_up(x, pack_gate_up(gate, up), activation)
    given = rounded(x)
    g, u = given.double() @ gate.double().T, given.double() @ up.double().T
    want = activate(g, u, activation)
    # Both activations change by at most 1.1 per unit of gate and by their gate part per unit of up.
    gate_part, up_part = want / u, want / (want / u)
    moved = 1.1 * product_bound(given, gate) * up_part.abs()
    moved += product_bound(given, up) * gate_part.abs()
    assert_within(got, want, moved + 4 * U_GATE * want.abs() + 1e-30)


@each_implementation
@pytest.mark.parametrize(("count", "out", "width"), [(1, 32, 32), (3, 64, 48), (5, 33, 128)])
def test_heads(which: Implementation, count: int, out: int, width: int) -> None:
    x, weight = _random(1, 4, count, width), _weight(2, count, out, width)
    with running(which):
        got = heads(x, pack_heads(weight))
    given = rounded(x)
    for head in range(count):
        want = given[:, head].double() @ weight[head].double().T
        assert_within(got[:, head], want, product_bound(given[:, head], weight[head]))


@each_implementation
@pytest.mark.parametrize(("count", "rows", "n"), [(1, 2, 32), (2, 3, 96), (9, 1, 7168), (4, 9, 33)])
def test_attn_res(which: Implementation, count: int, rows: int, n: int) -> None:
    sources = _random(1, count, rows, n) * torch.logspace(-1, 1, count).view(-1, 1, 1)
    norm, proj = (1 + 0.1 * _random(2, n)).to(torch.bfloat16), _weight(3, n)
    with running(which):
        out = attn_res(sources, norm, proj, 1e-5)
    trace = attn_res_ref(sources.double(), norm, proj, 1e-5)
    # A score is a sum of n products of about |proj|; an error of it moves every weight by as much.
    moved = (n * U_FP32 * 4 + U_GATE) * (1 + trace.scores.abs().amax(-1, keepdim=True))
    assert_within(out, trace.out, 2 * moved * sources.abs().amax(0).double() + 1e-30)


def _random_experts(form: str, count: int, width: int, inside: int) -> tuple[dict, PlainExperts]:
    shapes = {"w1": (width, inside), "w2": (inside, width), "w3": (width, inside)}
    stacked: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for i, (name, shape) in enumerate(shapes.items()):
        weight = _weight(20 + i, count, *shape)
        if form == "bf16":
            stacked[name] = plain[name] = weight
        else:
            packed, scale = encode_mxfp4(weight.float())
            stacked[f"{name}_packed"], stacked[f"{name}_scale"] = packed, scale
            plain[name] = decode_mxfp4(packed, scale)
    return stacked, PlainExperts(plain["w1"], plain["w3"], plain["w2"])


@each_implementation
@pytest.mark.parametrize("form", ["mxfp4", "bf16"])
@pytest.mark.parametrize(("rows", "count", "k", "width", "inside"), [
    (1, 4, 4, 32, 32), (3, 7, 2, 64, 96), (9, 16, 3, 96, 160), (20, 5, 1, 32, 64),
])  # fmt: skip
def test_experts(
    which: Implementation, form: str, rows: int, count: int, k: int, width: int, inside: int
) -> None:
    stacked, plain = _random_experts(form, count, width, inside)
    make = torch.Generator().manual_seed(9)
    ids = torch.stack(
        [torch.randperm(count, generator=make)[:k].sort().values for _ in range(rows)]
    )
    ids[-1, -1] = count - 1  # the last expert, too
    ids = ids.sort(dim=1).values
    weights = torch.rand(rows, k, generator=make)
    x = _random(3, rows, inside)
    with running(which):
        got = experts(x, ids.to(torch.int32), weights, pack_experts(stacked, form), SITU)
    want = experts_ref(x.double(), (ids, weights.double()), plain, SITU, rounded)
    # The hidden values are rounded to BF16; where an FP32 sum sits at a rounding's edge the two
    # may round apart, which moves one of `width` inputs by one unit of BF16.
    flip = 2 * U_BF16 * want.hidden.abs().amax() * plain.down.abs().amax()
    sums = (inside + width) * U_FP32 * 8
    assert_within(got, want.out, k * (flip + sums * want.parts.abs().amax()))


@each_implementation
def test_expert_width_that_is_no_multiple_of_a_tile(which: Implementation) -> None:
    """BF16 experts of width 48: the padded tail contributes exactly nothing."""
    stacked, plain = _random_experts("bf16", 3, 48, 40)
    ids, weights = torch.tensor([[0, 2]]), torch.tensor([[0.25, 0.75]])
    x = _random(3, 1, 40)
    with running(which):
        got = experts(x, ids.to(torch.int32), weights, pack_experts(stacked, "bf16"), SILU)
    want = experts_ref(x.double(), (ids, weights.double()), plain, SILU, rounded)
    flip = 2 * U_BF16 * want.hidden.abs().amax() * plain.down.abs().amax()
    assert_within(got, want.out, 2 * (flip + 100 * U_FP32))
