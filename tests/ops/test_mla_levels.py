"""Latent attention and its records on every level."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse.core.errors import NativeError
from stepfuse.ops.mla import native as mla_native
from stepfuse.ops.mla.records import decode, encode
from stepfuse.ops.mla.ref import mla as mla_ref
from stepfuse.ops.views import KvDtype, LatentView, Span, record_bytes
from tests.support.levels import U32, each_level, on_level, same_bits, teams

PAGE_TOKENS = 4
PAGES = 24
KV_DTYPES: list[KvDtype] = ["bf16", "fp8"]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def empty_view(dtype: KvDtype, latent: int, rope: int, spare: int = 12) -> LatentView:
    """Pages full of 0xAA, with `spare` bytes behind each record."""
    size = record_bytes(dtype, latent, rope) + spare
    data = torch.full((PAGES, PAGE_TOKENS, size), 0xAA, dtype=torch.uint8)
    return LatentView(data, dtype, latent, rope)


def page_list(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(PAGES)[:count].astype(np.int32)


@each_level
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("latent", "rope"), [(16, 8), (48, 16), (32, 5), (512, 64)])
def test_records_match_the_codec_and_touch_nothing_else(
    level: str, dtype: KvDtype, latent: int, rope: int
) -> None:
    view = empty_view(dtype, latent, rope)
    pages = page_list(6)
    rows = 9
    values, pe = randn(rows, latent) * 20, randn(rows, rope, seed=1) * 1e-3
    values[2], pe[3] = 0.0, 0.0
    values[6], values[7] = 448.0, values[7] * 1e-36
    with on_level(level):
        spans = [Span(0, 5, 0, 2, pages[:3]), Span(5, 4, 1, 0, pages[3:])]
        mla_native.latent_write(values, pe, view, spans)
    want = empty_view(dtype, latent, rope).data
    records = encode(values, pe, dtype)
    for row in range(rows):
        place, table = (row + 2, pages[:3]) if row < 5 else (row - 5, pages[3:])
        page = int(table[place // PAGE_TOKENS])
        want[page, place % PAGE_TOKENS, : records.shape[1]] = records[row]
    assert torch.equal(view.data, want)


@each_level
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows_in_the_record(level: str, dtype: KvDtype, bad: float) -> None:
    view = empty_view(dtype, 16, 8)
    values, pe = randn(1, 16), randn(1, 8)
    values[0, 3], pe[0, 2] = bad, bad
    with on_level(level):
        mla_native.latent_write(values, pe, view, [Span(0, 1, 0, 0, page_list(1))])
    kept, kept_pe = decode(view.data[int(page_list(1)[0]), :1], view)
    for got, at in ((kept, 3), (kept_pe, 2)):
        assert not got[0, at].isfinite()
        assert int(got.isfinite().sum()) == got.numel() - 1
    again = view.data[int(page_list(1)[0]), :1].clone()
    again[:, :-12] = encode(values, pe, dtype)
    for got, at in zip(decode(again, view), (3, 2), strict=True):
        assert not got[0, at].isfinite()


@each_level
def test_every_fp8_code_decodes_exactly(level: str) -> None:
    """One token: its weight is 1 and the output is its latent."""
    latent, rope = 256, 8
    view = empty_view("fp8", latent, rope)
    codes = torch.arange(256).to(torch.uint8)
    nan = (codes & 0x7F) == 0x7F
    view.data[3, 0, :latent] = torch.where(nan, 0, codes)
    view.data[3, 0, latent : latent + rope] = 0
    scales = torch.tensor([2.0**-9, 1.0]).view(torch.uint8)
    view.data[3, 0, latent + rope : latent + rope + 8] = scales
    span = [Span(0, 1, 0, 0, np.array([3], np.int32))]
    q = torch.zeros(1, 1, latent), torch.zeros(1, 1, rope)
    with on_level(level):
        got = mla_native.mla(*q, view, span, 0.1)
        view.data[3, 0, 127] = 0x7F
        poisoned = mla_native.mla(*q, view, span, 0.1)
    want = torch.where(nan, 0, codes).view(torch.float8_e4m3fn).float() * 2.0**-9
    assert torch.equal(got.flatten(), want)
    assert poisoned.isnan().any()


@each_level
def test_every_value_encodes_as_the_codec_says(level: str) -> None:
    """All codes, the midpoints between them, and their neighbours."""
    exact = torch.arange(127).to(torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (exact[1:] + exact[:-1]) / 2
    near = [torch.nextafter(middle, torch.tensor(t)) for t in (0.0, 1e9)]
    values = torch.cat([exact, middle, *near])
    values = torch.cat([values, -values, torch.full((16 - 2 * len(values) % 16,), 448.0)])
    view = empty_view("fp8", len(values), 8)
    with on_level(level):
        span = [Span(0, 1, 0, 0, np.array([0], np.int32))]
        mla_native.latent_write(values.unsqueeze(0), torch.ones(1, 8), view, span)
    want = encode(values.unsqueeze(0), torch.ones(1, 8), "fp8")
    assert torch.equal(view.data[0, 0, : want.shape[1]], want[0])


def filled(dtype: KvDtype, latent: int, rope: int) -> tuple[LatentView, list[np.ndarray]]:
    """Two sequences of 41 and 17 cached tokens in shuffled pages."""
    view = empty_view(dtype, latent, rope)
    pages = page_list(16)
    tables = [pages[:11], pages[11:]]
    from stepfuse.ops.mla import eager

    spans = [Span(0, 41, 0, 0, tables[0]), Span(41, 17, 1, 0, tables[1])]
    eager.latent_write(randn(58, latent), randn(58, rope, seed=1), view, spans)
    return view, tables


@each_level
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", [1, 3, 12])
@pytest.mark.parametrize(("latent", "rope"), [(16, 8), (48, 16), (64, 24)])
def test_attention(level: str, dtype: KvDtype, heads: int, latent: int, rope: int) -> None:
    view, tables = filled(dtype, latent, rope)
    spans = [
        Span(0, 5, 0, 36, tables[0]),
        Span(5, 0, 2, 0, tables[1]),
        Span(5, 2, 1, 15, tables[1]),
    ]
    q_latent, q_pe = randn(7, heads, latent, seed=2), randn(7, heads, rope, seed=3)
    scale = 0.7
    with on_level(level):
        first = mla_native.mla(q_latent, q_pe, view, spans, scale)
        for team in teams():
            assert same_bits(mla_native.mla(q_latent, q_pe, view, spans, scale, team), first)
        for span in (spans[0], spans[2]):
            for t in range(span.rows):
                row = slice(span.start + t, span.start + t + 1)
                one = [Span(0, 1, span.slot, span.cached + t, span.pages)]
                q = q_latent[row].contiguous(), q_pe[row].contiguous()
                assert same_bits(mla_native.mla(*q, view, one, scale), first[row])
    for span in (spans[0], spans[2]):
        tokens = np.arange(span.cached + span.rows)
        places = torch.from_numpy(span.pages[tokens // PAGE_TOKENS].astype(np.int64))
        records = view.data[places, torch.from_numpy(tokens % PAGE_TOKENS)]
        kept, kept_pe = decode(records, view)
        rows = slice(span.start, span.start + span.rows)
        q = q_latent[rows].double(), q_pe[rows].double()
        want = mla_ref(q, kept.double(), kept_pe.double(), scale).out
        # A score's error moves its weight by as much; then a sum over the tokens.
        sizes = q[0].abs() @ kept.double().abs().T + q[1].abs() @ kept_pe.double().abs().T
        score = (latent + rope + 2) * U32 * sizes.max() * scale
        bound = (2 * score + (len(tokens) + 16) * U32) * kept.abs().max()
        assert (first[rows] - want).abs().max() <= bound


@each_level
def test_scores_far_apart_stay_finite(level: str) -> None:
    view, tables = filled("bf16", 16, 8)
    q_latent = randn(1, 2, 16, seed=2) * 1e4
    with on_level(level):
        got = mla_native.mla(
            q_latent, torch.zeros(1, 2, 8), view, [Span(0, 1, 0, 40, tables[0])], 1.0
        )
    assert got.isfinite().all()


def test_short_page_tables_and_foreign_pages_are_refused() -> None:
    view, tables = filled("bf16", 16, 8)
    q = torch.zeros(1, 1, 16), torch.zeros(1, 1, 8)
    with pytest.raises(NativeError, match="11 are needed"):
        mla_native.mla(*q, view, [Span(0, 1, 0, 43, tables[0][:10])], 1.0)
    with pytest.raises(NativeError, match="page"):
        mla_native.mla(*q, view, [Span(0, 1, 0, 0, np.array([PAGES], np.int32))], 1.0)
