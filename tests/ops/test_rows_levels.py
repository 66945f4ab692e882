"""Row kernels and elementary functions on every level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepfuse.ops.attn_res import native as attn_res_native
from stepfuse.ops.attn_res.ref import attn_res as attn_res_ref
from stepfuse.ops.norm.ref import rms_norm as rms_norm_ref
from tests.support.levels import U32, Guarded, each_level, native, on_level

_native = native._native
LENGTHS = [1, 3, 8, 16, 17, 31, 64, 77, 256]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@each_level
@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(level: str, n: int) -> None:
    x, weight = randn(5, n) * 3, randn(n, seed=1).to(torch.bfloat16)
    out = Guarded(5, n)
    with on_level(level):
        _native.rms_norm(x.data_ptr(), weight.data_ptr(), out.view.data_ptr(), [5, n], 1e-5)
    want = rms_norm_ref(x.double(), weight, 1e-5)
    # Half the relative error of the sum of squares, then root, division and two products.
    assert ((out.result() - want).abs() <= (n / 2 + 6) * U32 * want.abs() + 1e-38).all()


@each_level
@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("n", LENGTHS)
def test_attn_res(level: str, count: int, n: int) -> None:
    sources = randn(count, 3, n)
    norm, proj = (randn(n, seed=s).to(torch.bfloat16) for s in (1, 2))
    with on_level(level):
        got = attn_res_native.attn_res(sources, norm, proj, 1e-5)
    trace = attn_res_ref(sources.double(), norm, proj, 1e-5)
    terms = (norm.double() * proj.double()).abs().sum() * sources.abs().max()
    score = 4 * (n + 8) * U32 * (terms + 1)
    bound = (score + (count + 8) * U32) * 4 * sources.abs().max()
    assert (got - trace.out).abs().max() <= bound
    if count == 1:
        assert torch.equal(got, sources[0])


@each_level
@pytest.mark.parametrize("aliased", [0, 1, 2])
def test_attn_res_into_one_of_its_sources(level: str, aliased: int) -> None:
    n = 77
    sources = randn(3, 1, n)
    norm, proj = (randn(n, seed=s).to(torch.bfloat16) for s in (1, 2))
    with on_level(level):
        want = attn_res_native.attn_res(sources, norm, proj, 1e-5)
        call = _native.MixCall()
        call.sources, call.norm, call.proj = (t.data_ptr() for t in (sources, norm, proj))
        call.out = sources[aliased].data_ptr()
        call.count, call.rows, call.n, call.eps = 3, 1, n, 1e-5
        _native.attn_res(call)
    assert torch.equal(sources[aliased], want)


@each_level
def test_sigmoid_over_the_whole_range(level: str) -> None:
    grid = np.concatenate([np.linspace(-110, 110, 40001), [0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30]])
    gate = torch.from_numpy(grid.astype(np.float32))
    gate = torch.cat([gate, torch.tensor([torch.inf, -torch.inf])])
    x = torch.ones_like(gate)
    with on_level(level):
        _native.sigmoid_gate(gate.data_ptr(), len(gate), x.data_ptr())
    want = 1 / (1 + torch.exp(-gate.double()))
    # Below -87 the exponential nears FP32's range: results are denormal, then 0.
    assert ((x - want).abs() <= 5 * U32 * want + 2.0**-126).all()


@each_level
def test_sigmoid_keeps_nan(level: str) -> None:
    gate = torch.full((19,), torch.nan)
    x = torch.ones(19)
    with on_level(level):
        _native.sigmoid_gate(gate.data_ptr(), 19, x.data_ptr())
    assert x.isnan().all()


@each_level
@pytest.mark.parametrize("n", LENGTHS)
def test_add_and_widen(level: str, n: int) -> None:
    a, b, half = randn(n), randn(n, seed=1), randn(n, seed=2).to(torch.bfloat16)
    total, wide = Guarded(n), Guarded(n)
    with on_level(level):
        _native.add(a.data_ptr(), b.data_ptr(), n, total.view.data_ptr())
        _native.widen(half.data_ptr(), n, wide.view.data_ptr())
        aliased = a.clone()
        _native.add(aliased.data_ptr(), b.data_ptr(), n, aliased.data_ptr())
    assert torch.equal(total.result(), a + b)
    assert torch.equal(aliased, a + b)
    assert torch.equal(wide.result(), half.float())


@each_level
@pytest.mark.parametrize("n", [1, 2, 7, 16, 33, 1000])
def test_argmax(level: str, n: int) -> None:
    with on_level(level):
        for seed in range(20):
            x = randn(n, seed=seed).mul(4).round()
            want = int(np.argmax(x.numpy()))
            assert _native.argmax(x.data_ptr(), n) == want
            for bad in {0, n // 2, n - 1}:
                broken = x.clone()
                broken[bad] = torch.nan
                assert _native.argmax(broken.data_ptr(), n) == -1
        for value in (-torch.inf, 0.0, torch.inf):
            assert _native.argmax(torch.full((n,), value).data_ptr(), n) == 0
        zeros = torch.zeros(n)
        zeros[0] = -0.0
        assert _native.argmax(zeros.data_ptr(), n) == 0
