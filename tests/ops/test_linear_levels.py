"""BF16 products on every level: exact contract, rows, tiles, threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry
from stepfuse.ops.linear import native as linear_native
from stepfuse.ops.linear.ref import activate
from stepfuse.ops.packed import PackedGateUp, PackedHeads, PackedLinear, interleave_gate_up
from stepfuse.ops.packed import pack_rows as pack
from tests.support.levels import (
    U32,
    Guarded,
    dot_bound,
    each_level,
    native,
    on_level,
    same_bits,
    teams,
)

_native = native._native
SITU = ActivationGeometry("situ", 4.0, 25.0)
SILU = ActivationGeometry("silu", 1.0, 1.0)
# (in, out): one pair, widths off the vector sizes, one k block and more, part tiles.
SHAPES = [(2, 1), (2, 5), (6, 31), (34, 33), (64, 32), (128, 64), (130, 97), (386, 40)]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 67]


def matrix(out: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out, width, generator=generator).to(torch.bfloat16)


def rows(count: int, width: int, seed: int = 7) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * 3


def product_call(x: Tensor, y: Tensor, w: PackedLinear | PackedGateUp) -> _native.ProductCall:
    call = _native.ProductCall()
    call.x, call.y, call.weight = x.data_ptr(), y.data_ptr(), w.data.data_ptr()
    call.rows, call.in_features, call.out_features = x.shape[0], x.shape[1], y.shape[1]
    return call


@each_level
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_within_the_rounding_of_its_sum(level: str, shape: tuple[int, int]) -> None:
    width, out = shape
    weight = matrix(out, width, seed=out)
    packed = PackedLinear(pack(weight), out, width)
    with on_level(level):
        for count in ROWS:
            x = rows(count, width)
            y, y32 = Guarded(count, out), Guarded(count, out)
            _native.linear(product_call(x, y.view, packed), None)
            _native.linear_fp32(product_call(x, y32.view, packed), None)
            for got, source in ((y, x.to(torch.bfloat16)), (y32, x)):
                want = source.double() @ weight.double().T
                assert ((got.result() - want).abs() <= dot_bound(source.float(), weight)).all()


@each_level
def test_linear_keeps_every_element_at_its_place(level: str) -> None:
    width, out = 34, 70
    weight = torch.arange(out * width).reshape(out, width).remainder(251).to(torch.bfloat16)
    packed = PackedLinear(pack(weight), out, width)
    with on_level(level):
        got = linear_native.linear(torch.eye(width), packed)
    assert torch.equal(got, weight.float().T)


@each_level
def test_a_row_does_not_depend_on_its_batch_nor_on_threads(level: str) -> None:
    width, out = 386, 200
    packed = PackedLinear(pack(matrix(out, width, seed=1)), out, width)
    both = PackedGateUp(pack(matrix(out // 8 * 8 // 2 * 2 + 24, width, seed=2)), 112, width)
    x = rows(67, width)
    with on_level(level):
        alone = torch.cat([linear_native.linear(x[r : r + 1], packed) for r in range(67)])
        alone32 = torch.cat([linear_native.linear_fp32(x[r : r + 1], packed) for r in range(67)])
        gated = torch.cat([linear_native.gate_up(x[r : r + 1], both, SITU) for r in range(67)])
        for team in teams():
            for count in (2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 67):
                part = x[:count].contiguous()
                assert same_bits(linear_native.linear(part, packed, team), alone[:count])
                assert same_bits(linear_native.linear_fp32(part, packed, team), alone32[:count])
                assert same_bits(linear_native.gate_up(part, both, SITU, team), gated[:count])


@each_level
@pytest.mark.parametrize("activation", [SITU, SILU])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_gate_up(level: str, activation: ActivationGeometry, width: int) -> None:
    inputs = 66
    gate, up = matrix(width, inputs, seed=3), matrix(width, inputs, seed=4)
    packed = PackedGateUp(pack(interleave_gate_up(gate, up)), width, inputs)
    with on_level(level):
        for count in (1, 2, 5, 9):
            x = rows(count, inputs).to(torch.bfloat16).float()
            y = Guarded(count, width)
            _native.gate_up(product_call(x, y.view, packed), native.activation(activation), None)
            g, u = x.double() @ gate.double().T, x.double() @ up.double().T
            want = activate(g, u, activation)
            # Both activations have slopes of at most 1.2 in the gate and 1 in the up part.
            slope = 1.2 * dot_bound(x, gate) * activate(g, u, activation).abs().clamp(min=1)
            other = (g.abs() + 1) * dot_bound(x, up)
            bound = slope * (u.abs() + 1) + other + 32 * U32 * want.abs()
            assert ((y.result() - want).abs() <= bound).all()


@each_level
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_heads(level: str, heads: int) -> None:
    width, out = 48, 40
    weight = torch.stack([matrix(out, width, seed=h) for h in range(heads)])
    packed = PackedHeads(pack(weight), heads, out, width)
    x = torch.randn(5, heads, width, generator=torch.Generator().manual_seed(1))
    with on_level(level):
        first = linear_native.heads(x, packed)
        for team in teams():
            assert same_bits(linear_native.heads(x, packed, team), first)
    for h in range(heads):
        source = x[:, h].to(torch.bfloat16)
        want = source.double() @ weight[h].double().T
        assert ((first[:, h] - want).abs() <= dot_bound(source.float(), weight[h])).all()


@each_level
def test_inputs_round_to_nearest_even_and_keep_nan(level: str) -> None:
    halves = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 3.3895e38, 2.0**-133]
    x = torch.tensor([[v, 0.0] for v in halves])
    packed = PackedLinear(pack(torch.tensor([[1.0, 0.0]]).to(torch.bfloat16)), 1, 2)
    with on_level(level):
        got = linear_native.linear(x, packed).flatten()
        nan = linear_native.linear(torch.tensor([[torch.nan, 0.0]]), packed)
    want = x[:, 0].to(torch.bfloat16).float()
    # BF16 dot instructions count denormal inputs as zero.
    normal = want.abs() >= 2.0**-126
    assert torch.equal(got[normal], want[normal])
    assert bool(nan.isnan())
