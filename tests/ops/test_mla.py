"""Latent attention and its cache records against the reference."""

from __future__ import annotations

import pytest
import torch

from stepfuse.ops.dispatch import Implementation
from stepfuse.ops.mla import eager, latent_write, mla
from stepfuse.ops.mla.records import power_scale
from stepfuse.ops.mla.ref import fp8_rounded
from stepfuse.ops.views import KvDtype
from tests.support.implementations import each_implementation, running
from tests.support.mla_cases import CANARY, canary_view, page_table, random_rows, reference, span
from tests.support.tolerance import U_FP32, U_GATE, assert_within

SCALE = 48**-0.5


def _bound(tokens: int) -> float:
    """Values of about 4 with weights moved by the scores' error and the softmax's own."""
    scores = 80 * U_FP32 * 80 * SCALE
    return 4 * (2 * scores + (tokens + 16) * U_FP32 + 2 * U_GATE)


@each_implementation
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("page_tokens", [1, 7, 16])
def test_spans_over_scattered_pages(
    which: Implementation, dtype: KvDtype, page_tokens: int
) -> None:
    """A decode row, a chunk that continues and a fresh prompt in one call."""
    lengths = {0: (30, 1), 1: (13, 9), 2: (0, 20)}  # sequence: cached, rows
    view = canary_view(dtype, 120, page_tokens, 64, 16)
    rows = {i: random_rows(c + n, 3, 64, 16, seed=i) for i, (c, n) in lengths.items()}
    free = iter(torch.randperm(120, generator=torch.Generator().manual_seed(3)).tolist())
    tables = {
        i: page_table(*(next(free) for _ in range(-(-(c + n) // page_tokens))))
        for i, (c, n) in lengths.items()
    }
    spans, start = [], 0
    with running(which):
        for i, (c, n) in lengths.items():
            latent_write(rows[i][0][:c], rows[i][1][:c], view, [span(0, c, 0, tables[i])])
            spans.append(span(start, n, c, tables[i]))
            start += n
        step = [
            torch.cat([rows[i][part][-n:] for i, (_, n) in lengths.items()]) for part in range(4)
        ]
        latent_write(step[0], step[1], view, spans)
        out = mla(step[2], step[3], view, spans, SCALE)
    for (i, (c, n)), s in zip(lengths.items(), spans, strict=True):
        want = reference(rows[i], dtype, SCALE, n)
        assert_within(out[s.start : s.start + n], want, _bound(c + n))
    used = {int(p) for table in tables.values() for p in table}
    untouched = [p for p in range(120) if p not in used]
    assert (view.data[untouched] == CANARY).all()


@each_implementation
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_latent_write_touches_its_records_only(which: Implementation, dtype: KvDtype) -> None:
    view = canary_view(dtype, 3, 4, 64, 16)
    latent, pe, _, _ = random_rows(2, 1, 64, 16)
    with running(which):
        latent_write(latent, pe, view, [span(0, 2, 3, page_table(2, 0))])
    written = {(2, 3), (0, 0)}
    for page in range(3):
        for place in range(4):
            same = bool((view.data[page, place] == CANARY).all())
            assert same == ((page, place) not in written)


def test_rows_in_blocks_equal_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view = canary_view("bf16", 4, 16, 64, 16)
    rows = random_rows(50, 2, 64, 16)
    where = [span(0, 50, 0, page_table(3, 1, 2, 0))]
    eager.latent_write(rows[0], rows[1], view, where)
    whole = eager.mla(rows[2], rows[3], view, where, SCALE)
    monkeypatch.setattr(eager, "_SCORES_MAX", 700)
    assert_within(eager.mla(rows[2], rows[3], view, where, SCALE), whole, 2 * _bound(50))


def test_power_scale_at_its_edges() -> None:
    x = torch.tensor([[448.0], [448.0001], [224.0], [0.0], [torch.inf], [1e-42], [3.0]])
    scales = power_scale(x)[:, 0].tolist()
    assert scales[:5] == [1.0, 2.0, 0.5, 1.0, 1.0]
    assert scales[5] == 2.0**-126
    assert scales[6] == 2.0**-7


def test_fp8_reference_holds_what_e4m3_can() -> None:
    x = torch.tensor([448.0, 1.0, 2.0**-9, 17.0], dtype=torch.float64)
    assert fp8_rounded(x).tolist() == [448.0, 1.0, 2.0**-9, 16.0]
