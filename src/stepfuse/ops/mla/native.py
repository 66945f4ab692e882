"""Latent attention in the native core, on the paged cache in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.ops.native import Team, check_range, floats, page_table, span_rows, want
from stepfuse.ops.views import LatentView, Span, record_bytes

RECORD_MAX = 2048
_LATENT_STEP = 16


def _check(view: LatentView) -> None:
    want(
        view.latent % _LATENT_STEP == 0 and view.latent + view.rope <= RECORD_MAX,
        f"mla: latent {view.latent}, rope {view.rope}; the kernels want a latent that is a "
        f"multiple of {_LATENT_STEP} and at most {RECORD_MAX} numbers together",
    )
    need = record_bytes(view.dtype, view.latent, view.rope)
    want(
        view.data.dtype == torch.uint8
        and view.data.shape[2] >= need
        and view.data.stride(2) == 1
        and view.data.device.type == "cpu",
        f"latent cache: {view.data.dtype} {tuple(view.data.shape)}; records of {need} bytes on "
        "cpu are needed",
    )


def _bind_cache(call: _native.MlaCall | _native.LatentCall, view: LatentView) -> None:
    _check(view)
    call.kv_base = view.data.data_ptr()
    call.page_bytes, call.token_bytes = view.data.stride(0), view.data.stride(1)
    call.page_tokens, call.rope, call.fp8 = view.page_tokens, view.rope, view.dtype == "fp8"


def latent_write(latent: Tensor, pe: Tensor, view: LatentView, spans: Sequence[Span]) -> None:
    """See `stepfuse.ops.mla.latent_write`."""
    table, pages = span_rows(spans), page_table(spans, view.page_tokens)
    check_range(pages, view.data.shape[0], "page")
    want(
        latent.shape[1] == view.latent and pe.shape[1] == view.rope,
        f"latent_write: {tuple(latent.shape)} and {tuple(pe.shape)} for {view.latent}+{view.rope}",
    )
    call = _native.LatentCall()
    _bind_cache(call, view)
    call.latent, call.pe, call.latent_dim = floats(latent, "latent"), floats(pe, "pe"), view.latent
    call.spans, call.span_count = table.ctypes.data, len(table)
    call.pages, call.pages_stride = pages.ctypes.data, pages.shape[1]
    _native.latent_write(call)


def mla(
    q_latent: Tensor,
    q_pe: Tensor,
    view: LatentView,
    spans: Sequence[Span],
    scale: float,
    team: Team | None = None,
) -> Tensor:
    """See `stepfuse.ops.mla.mla`."""
    table, pages = span_rows(spans), page_table(spans, view.page_tokens)
    check_range(pages, view.data.shape[0], "page")
    want(
        q_latent.shape[2] == view.latent and q_pe.shape[2] == view.rope,
        f"mla: q {tuple(q_latent.shape)} and {tuple(q_pe.shape)} for {view.latent}+{view.rope}",
    )
    out = torch.empty_like(q_latent)
    call = _native.MlaCall()
    _bind_cache(call, view)
    call.q_latent, call.q_pe = floats(q_latent, "q_latent"), floats(q_pe, "q_pe")
    call.out, call.heads, call.latent = floats(out, "out"), q_latent.shape[1], view.latent
    call.scale = scale
    call.spans, call.span_count = table.ctypes.data, len(table)
    call.pages, call.pages_stride = pages.ctypes.data, pages.shape[1]
    _native.mla(call, team)
    return out
