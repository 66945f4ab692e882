"""Known ways to be wrong with MXFP4: scales, nibble order, odd widths, the last expert, tails."""

from __future__ import annotations

import math

import pytest
import torch

from stepfuse.ops.mxfp4 import decode_mxfp4, decode_scales, encode_mxfp4

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def test_scale_bytes_decode_as_powers_of_two() -> None:
    decoded = decode_scales(torch.arange(256, dtype=torch.uint8))
    for byte in range(255):
        assert decoded[byte].item() == math.ldexp(1.0, byte - 127), byte
    assert math.isnan(decoded[255].item())


@pytest.mark.parametrize("byte", [0, 1, 127, 254])
def test_edge_scales_are_exact(byte: int) -> None:
    packed = torch.full((1, 16), 0x12, dtype=torch.uint8)  # even columns 1.0, odd columns 0.5
    row = decode_mxfp4(packed, torch.tensor([[byte]], dtype=torch.uint8))[0]
    assert row[0].item() == math.ldexp(1.0, byte - 127)
    assert row[1].item() == math.ldexp(0.5, byte - 127)


def test_low_nibble_is_the_even_element() -> None:
    """Swapped nibbles keep every statistic of a group, so compare element by element."""
    byte = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    decoded = decode_mxfp4(byte, torch.full((16, 1), 128, dtype=torch.uint8))
    for value in range(256):
        row, col = divmod(value, 16)
        pair = decoded[row, 2 * col : 2 * col + 2].tolist()
        assert pair == [2 * VALUES[value & 15], 2 * VALUES[value >> 4]], value


@pytest.mark.parametrize("cols", [32, 96, 224, 256, 288, 3584 // 16])
def test_widths_that_are_no_multiple_of_256(cols: int) -> None:
    gen = torch.Generator().manual_seed(cols)
    packed = torch.randint(0, 256, (5, cols // 2), generator=gen, dtype=torch.uint8)
    scales = torch.randint(100, 150, (5, cols // 32), generator=gen, dtype=torch.uint8)
    decoded = decode_mxfp4(packed, scales)
    for row in range(5):
        for col in range(cols):
            nibble = (int(packed[row, col // 2]) >> (4 * (col % 2))) & 15
            want = VALUES[nibble] * 2.0 ** (int(scales[row, col // 32]) - 127)
            assert decoded[row, col].item() == want


def test_codes_survive_encoding() -> None:
    """encode(decode(x)) is x where a group uses its scale: its largest magnitude is 4 or 6."""
    gen = torch.Generator().manual_seed(3)
    packed = torch.randint(0, 256, (7, 8, 48), generator=gen, dtype=torch.uint8)
    packed[..., ::16] = (packed[..., ::16] & 0xF0) | 6
    scales = torch.randint(1, 252, (7, 8, 3), generator=gen, dtype=torch.uint8)
    again, again_scales = encode_mxfp4(decode_mxfp4(packed, scales))
    assert torch.equal(again, packed)
    assert torch.equal(again_scales, scales)


def test_encoding_takes_the_nearest_value_ties_to_even() -> None:
    ties = torch.zeros(1, 32)
    ties[0, :9] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 6.0])
    packed, scales = encode_mxfp4(ties)
    got = decode_mxfp4(packed, scales)[0, :9].tolist()
    assert got == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0, 6.0]


def test_encoding_error_is_within_half_a_step() -> None:
    gen = torch.Generator().manual_seed(5)
    weight = torch.randn(64, 256, generator=gen)
    back = decode_mxfp4(*encode_mxfp4(weight))
    amax = weight.reshape(64, 8, 32).abs().amax(-1)
    step = torch.exp2(torch.floor(torch.log2(amax / 7 * 2)) - 1) * 2  # widest step: 4 to 6
    error = (weight - back).reshape(64, 8, 32).abs()
    assert (error <= step.unsqueeze(-1) * 1.0001).all()


@pytest.mark.parametrize("power", [-149, -140, -126, 100, 127])
def test_encoding_at_the_ends_of_the_range_stays_finite(power: int) -> None:
    weight = torch.full((1, 32), math.ldexp(1.0, power))
    packed, scales = encode_mxfp4(weight)
    back = decode_mxfp4(packed, scales)
    assert scales.max() < 255
    assert torch.isfinite(back).all()
    if power >= -128:
        assert torch.equal(back, weight)


def test_a_zero_group_is_zero() -> None:
    packed, scales = encode_mxfp4(torch.zeros(2, 64))
    assert decode_mxfp4(packed, scales).abs().max() == 0
    assert scales.max() < 255
