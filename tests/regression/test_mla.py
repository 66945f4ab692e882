"""Known ways latent attention and its cache go wrong in other engines."""

from __future__ import annotations

import pytest
import torch

from stepfuse.cache.latent import LatentCache, LatentLayout
from stepfuse.core.errors import ConfigError
from stepfuse.core.parse_config import parse_config
from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.mla import latent_write, mla
from stepfuse.ops.views import KvDtype, LatentView, record_bytes
from tests.support.geometries import small_k3, small_linear
from tests.support.implementations import each_implementation, running
from tests.support.mla_cases import canary_view, page_table, random_rows, reference, span
from tests.support.saved_checkpoint import released_config
from tests.support.tolerance import U_BF16, U_E4M3, relative_error

SCALE = 48**-0.5


def _run(which: Implementation, dtype: KvDtype, tokens: int, heads: int = 3) -> tuple[float, float]:
    """Last row's relative error against the cached values, and against the unrounded ones."""
    rows = random_rows(tokens, heads, 64, 16)
    view = canary_view(dtype, -(-tokens // 16), 16, 64, 16)
    pages = page_table(*reversed(range(len(view.data))))
    with running(which):
        latent_write(rows[0], rows[1], view, [span(0, tokens, 0, pages)])
        out = mla(rows[2][-1:], rows[3][-1:], view, [span(0, 1, tokens - 1, pages)], SCALE)
    exact = reference(rows, "none", SCALE, 1)  # type: ignore[arg-type]
    want = reference(rows, dtype, SCALE, 1)
    return float(relative_error(out, want).max()), float(relative_error(out, exact).max())


@each_implementation
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_no_accuracy_cliff_with_length(which: Implementation, dtype: KvDtype) -> None:
    """Rounding errors of many tokens average out: the error must not grow with the length."""
    rounding = {"bf16": U_BF16, "fp8": U_E4M3}[dtype]
    for tokens in (1, 2, 17, 300, 1500):
        against_cached, against_exact = _run(which, dtype, tokens)
        assert against_cached <= 1e-5, tokens
        # A score moves by about |q| rounding, a weight by that much, a value by its own rounding.
        assert against_exact <= 3 * rounding, tokens


@each_implementation
@pytest.mark.parametrize("factor", [2.0**-20, 1.0, 3.0, 2.0**12])
def test_fp8_scales_follow_the_values(which: Implementation, factor: float) -> None:
    """Without scales, values above 448 saturate and small ones vanish."""
    rows = random_rows(8, 2, 64, 16)
    latent, pe = rows[0] * factor, rows[1]
    view = canary_view("fp8", 1, 8, 64, 16)
    with running(which):
        latent_write(latent, pe, view, [span(0, 8, 0, page_table(0))])
    codes = view.data[0, :, :64].contiguous().view(torch.float8_e4m3fn).double()
    scales = view.data[0, :, 80:88].contiguous().view(torch.float32).double()
    assert torch.equal(torch.exp2(torch.log2(scales).round()), scales)
    amax = latent.abs().amax(-1).double()
    assert ((amax / scales[:, 0] <= 448) & (amax / scales[:, 0] > 224)).all()
    got = codes * scales[:, :1]
    smallest = scales[:, :1] * 2.0**-9  # e4m3's least denormal
    assert ((got - latent).abs() <= U_E4M3 * latent.abs() + smallest / 2).all()


@each_implementation
def test_fp8_record_of_zeros(which: Implementation) -> None:
    view = canary_view("fp8", 1, 2, 64, 16)
    with running(which):
        latent_write(torch.zeros(1, 64), torch.ones(1, 16), view, [span(0, 1, 0, page_table(0))])
    scales = view.data[0, 0, 80:88].contiguous().view(torch.float32)
    assert scales[0] == 1.0
    assert (view.data[0, 0, :64] & 0x7F == 0).all()


@each_implementation
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 12])
def test_head_counts_that_are_no_power_of_two(which: Implementation, heads: int) -> None:
    against_cached, _ = _run(which, "bf16", 40, heads)
    assert against_cached <= 1e-5


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_576_numbers_per_token_are_cached(dtype: KvDtype) -> None:
    """Latent and pe, not expanded heads: 512 + 64 numbers whatever the head count."""
    assert record_bytes(dtype, 512, 64) == {"bf16": 1152, "fp8": 584}[dtype]
    for geometry in (small_k3(), small_linear()):
        layout = LatentLayout.of(geometry, dtype, 16)
        cache = LatentCache(layout, 4)
        numbers = geometry.mla.kv_lora + geometry.mla.rope
        assert cache.data.shape[-1] == record_bytes(dtype, numbers, 0)


def test_rotation_is_refused() -> None:
    config = released_config(small_linear())
    config["mla_use_nope"] = False
    with pytest.raises(ConfigError, match="mla_use_nope"):
        parse_config(config)


@each_implementation
def test_pages_beyond_32_bit_offsets(which: Implementation) -> None:
    """Page 1 of a pool whose pages lie past 2^31 bytes apart."""
    rows = random_rows(20, 2, 64, 16)
    record, stride = record_bytes("bf16", 64, 16), 2**31 + 64
    # Sparse: only the touched pages of the mapping become memory.
    storage = torch.empty(stride + 32 * record, dtype=torch.uint8)
    data = storage.as_strided((2, 32, record), (stride, record, 1))
    view = LatentView(data, "bf16", 64, 16)
    with running(which):
        latent_write(rows[0], rows[1], view, [span(0, 20, 0, page_table(1))])
        out = mla(rows[2], rows[3], view, [span(0, 20, 0, page_table(1))], SCALE)
    assert float(relative_error(out, reference(rows, "bf16", SCALE, 20)).max()) <= 1e-5
