"""MXFP4 and BF16 experts on every level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepfuse.core.config import ActivationGeometry, ExpertFormat
from stepfuse.ops.experts import native as experts_native
from stepfuse.ops.linear.ref import activate
from stepfuse.ops.mxfp4 import decode_mxfp4, encode_mxfp4
from stepfuse.ops.packed import (
    PackedExperts,
    expert_layout,
    interleave_gate_up,
    pack_nibbles,
    pack_rows,
    pack_scales,
)
from tests.support.levels import U32, dot_bound, each_level, on_level, same_bits, teams

SITU = ActivationGeometry("situ", 4.0, 25.0)
# SwiGLU with a huge gate and its sigmoid at 1 passes products through unchanged.
SILU = ActivationGeometry("silu", 1.0, 1.0)

Mxfp4 = tuple[Tensor, Tensor]


def _put(block: Tensor, offset: int, part: Tensor) -> None:
    data = part.contiguous().view(torch.uint8).flatten()
    block[offset : offset + data.numel()] = data


def pack_mxfp4(experts: list[tuple[Mxfp4, Mxfp4, Mxfp4]]) -> PackedExperts:
    """Per expert w1, w3 [width, in] and w2 [in, width], each (nibbles, scales)."""
    width, half = experts[0][0][0].shape
    layout = expert_layout("mxfp4", half * 2, width)
    data = torch.zeros(len(experts), layout.bytes, dtype=torch.uint8)
    for block, (w1, w3, w2) in zip(data, experts, strict=True):
        nibbles, scales = (interleave_gate_up(a, b) for a, b in zip(w1, w3, strict=True))
        _put(block, layout.w13, pack_nibbles(nibbles))
        _put(block, layout.w13_scale, pack_scales(scales))
        _put(block, layout.w2, pack_nibbles(w2[0]))
        _put(block, layout.w2_scale, pack_scales(w2[1]))
    offsets = (layout.w13, layout.w13_scale, layout.w2, layout.w2_scale)
    return PackedExperts(data, "mxfp4", len(experts), half * 2, width, *offsets)


def pack_bf16(experts: list[tuple[Tensor, Tensor, Tensor]]) -> PackedExperts:
    width, inputs = experts[0][0].shape
    layout = expert_layout("bf16", inputs, width)
    data = torch.zeros(len(experts), layout.bytes, dtype=torch.uint8)
    for block, (w1, w3, w2) in zip(data, experts, strict=True):
        _put(block, layout.w13, pack_rows(interleave_gate_up(w1, w3)))
        _put(block, layout.w2, pack_rows(w2))
    offsets = (layout.w13, layout.w13_scale, layout.w2, layout.w2_scale)
    return PackedExperts(data, "bf16", len(experts), inputs, width, *offsets)


def random_experts(
    form: ExpertFormat, inputs: int, width: int, count: int = 7
) -> tuple[PackedExperts, list[list[Tensor]]]:
    """Packed experts and their plain FP64 matrices [w1, w3, w2]."""
    generator = torch.Generator().manual_seed(inputs + width)
    shapes = ((width, inputs), (width, inputs), (inputs, width))
    plain = [
        [torch.randn(*s, generator=generator) / s[1] ** 0.5 for s in shapes] for _ in range(count)
    ]
    if form == "bf16":
        rounded = [[m.to(torch.bfloat16) for m in e] for e in plain]
        return pack_bf16([tuple(e) for e in rounded]), [[m.double() for m in e] for e in rounded]
    coded = [[encode_mxfp4(m) for m in e] for e in plain]
    return pack_mxfp4([tuple(e) for e in coded]), [
        [decode_mxfp4(*m).double() for m in e] for e in coded
    ]


def routing(rows: int, count: int, chosen: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = [torch.randperm(count, generator=generator)[:chosen].sort().values for _ in range(rows)]
    return torch.stack(ids).int(), torch.rand(rows, chosen, generator=generator) + 0.1


def one_row(x: Tensor, plain: list[Tensor], weight: float) -> tuple[Tensor, Tensor]:
    """FP64 result of one expert for one row, and a bound of the kernels' error.

    The hidden activations are rounded to BF16, where a last-bit difference before rounding can
    move a value by one BF16 step (2^-8 relative).
    """
    w1, w3, w2 = plain
    g, u = w1 @ x, w3 @ x
    hidden = activate(g, u, SITU)
    near = dot_bound(x.unsqueeze(0).float(), w1)[0] * (u.abs() + 1) * 1.2
    near = near + dot_bound(x.unsqueeze(0).float(), w3)[0] * (g.abs() + 1)
    step = torch.where(near > 0, hidden.abs() * 2.0**-8, 0.0) + near
    rounded = hidden.to(torch.bfloat16).double()
    out = w2 @ rounded
    # Few of the values lie within `near` of a rounding boundary; all count here.
    bound = w2.abs() @ step + dot_bound(rounded.unsqueeze(0).float(), w2)[0]
    return out * weight, bound * weight


@each_level
@pytest.mark.parametrize("form", ["mxfp4", "bf16"])
@pytest.mark.parametrize("shape", [(32, 32), (96, 64), (224, 160)])
def test_experts(level: str, form: ExpertFormat, shape: tuple[int, int]) -> None:
    packed, plain = random_experts(form, *shape)
    with on_level(level):
        for rows in (1, 2, 3, 5, 8, 9, 40):
            ids, weights = routing(rows, 7, 3)
            x = torch.randn(rows, shape[0], generator=torch.Generator().manual_seed(rows))
            first = experts_native.experts(x, ids, weights, packed, SITU)
            for r in range(rows):
                source = x[r].to(torch.bfloat16).double()
                parts = [
                    one_row(source, plain[int(e)], float(s))
                    for e, s in zip(ids[r], weights[r], strict=True)
                ]
                want = sum(p[0] for p in parts)
                bound = sum(p[1] for p in parts)
                assert ((first[r] - want).abs() <= bound).all()
                alone = experts_native.experts(
                    x[r : r + 1], ids[r : r + 1], weights[r : r + 1], packed, SITU
                )
                assert same_bits(alone[0], first[r])


@each_level
@pytest.mark.parametrize("form", ["mxfp4", "bf16"])
def test_experts_do_not_depend_on_threads(level: str, form: ExpertFormat) -> None:
    packed, _ = random_experts(form, 96, 64)
    ids, weights = routing(33, 7, 4)
    x = torch.randn(33, 96, generator=torch.Generator().manual_seed(5))
    with on_level(level):
        first = experts_native.experts(x, ids, weights, packed, SITU)
        for team in teams():
            assert same_bits(experts_native.experts(x, ids, weights, packed, SITU, team), first)


@each_level
def test_a_long_prefill_goes_through_in_batches_of_experts(level: str) -> None:
    packed, _ = random_experts("mxfp4", 32, 32)
    ids, weights = routing(600, 7, 4)
    x = torch.randn(600, 32, generator=torch.Generator().manual_seed(5))
    with on_level(level):
        whole = experts_native.experts(x, ids, weights, packed, SITU)
        parts = [
            experts_native.experts(x[s], ids[s], weights[s], packed, SITU)
            for s in (slice(0, 8), slice(8, 600))
        ]
    assert same_bits(whole, torch.cat(parts))


def _coded(values: Tensor, scale: int) -> Mxfp4:
    """[out, in] codes 0..15 and one scale byte everywhere."""
    nibbles = (values[:, 0::2] | (values[:, 1::2] << 4)).to(torch.uint8)
    return nibbles, torch.full((values.shape[0], values.shape[1] // 32), scale, dtype=torch.uint8)


@each_level
@pytest.mark.parametrize("inputs", [32, 96, 224])
def test_every_nibble_meets_its_own_column(level: str, inputs: int) -> None:
    """The gate and up products of unit vectors show single weights, exactly."""
    generator = torch.Generator().manual_seed(inputs)
    width = 32
    up = torch.randint(0, 16, (width, inputs), generator=generator)
    # The gate reads 6 * 2^5 everywhere: its sigmoid is 1, and 192 times an E2M1 value is exact in
    # BF16. The down matrix is the identity times 1.
    gate = torch.full((width, inputs), 7)
    down = torch.zeros(inputs, width, dtype=torch.int64)
    down[torch.arange(width), torch.arange(width)] = 2
    # Hidden values within 2^6 of each other stay exact in fixed point too.
    scales = torch.randint(127, 129, (width, inputs // 32), generator=generator, dtype=torch.uint8)
    coded_up = (_coded(up, 0)[0], scales)
    packed = pack_mxfp4([(_coded(gate, 132), coded_up, _coded(down, 127))])
    x = torch.eye(inputs)
    ids, weights = torch.zeros(inputs, 1, dtype=torch.int32), torch.ones(inputs, 1)
    with on_level(level):
        got = experts_native.experts(x, ids, weights, packed, SILU)
    want = 192.0 * decode_mxfp4(*coded_up).T
    assert torch.equal(got[:, :width], want)
    assert not got[:, width:].any()


@each_level
@pytest.mark.parametrize("scale", [0, 1, 126, 127, 253, 254])
def test_scale_bytes(level: str, scale: int) -> None:
    """One down weight of 1 or 0.5 times 2^(scale - 127) times a hidden value of 1."""
    inputs = width = 32
    gate = torch.full((width, inputs), 7)  # 6 * 2^5 = 192
    up = torch.full((width, inputs), 2)  # 2^0
    down = torch.zeros(inputs, width, dtype=torch.int64)
    down[torch.arange(32), torch.arange(32)] = torch.tensor([2, 1] * 16)
    # The hidden value is 192; near the top of the range a small input keeps the result finite.
    packed = pack_mxfp4([(_coded(gate, 132), _coded(up, 127), _coded(down, scale))])
    x = torch.zeros(1, inputs)
    x[0, 0] = 1.0 if scale < 240 else 2.0**-14
    ids, weights = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    with on_level(level):
        got = experts_native.experts(x, ids, weights, packed, SILU)[0]
    small = 1.0 if scale < 240 else 2.0**-14
    g = 192.0 * small
    hidden = torch.tensor(g / (1 + 2.718281828459045**-g) * small).to(torch.bfloat16).double()
    want = hidden * torch.tensor([1.0, 0.5] * 16).double() * 2.0 ** (scale - 127)
    # The sigmoid's own error can move the hidden value by one BF16 step where it is not 1.
    step = 0.0 if small == 1.0 else 2.0**-8
    # Denormal results are multiples of 2^-149.
    assert ((got.double() - want).abs() <= want * (U32 + step) + 2.0**-149).all()


@each_level
def test_zero_rows(level: str) -> None:
    packed, _ = random_experts("mxfp4", 32, 32)
    ids, weights = torch.zeros(0, 3, dtype=torch.int32), torch.zeros(0, 3)
    with on_level(level):
        got = experts_native.experts(torch.zeros(0, 32), ids, weights, packed, SITU)
    assert got.shape == (0, 32)
