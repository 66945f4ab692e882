"""Absorbed latent attention over paged caches it does not own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from stepfuse.ops.dispatch import implementation
from stepfuse.ops.views import LatentView, Span

if TYPE_CHECKING:
    from stepfuse.ops.native import Team

__all__ = ["latent_write", "mla"]


def latent_write(latent: Tensor, pe: Tensor, view: LatentView, spans: Sequence[Span]) -> None:
    """Cache the rows of a step: latent FP32 [R, L] (already normalised) and pe FP32 [R, P].

    Row i of a span goes to token cached + i of its page table, rounded to BF16, or to e4m3 with
    one power-of-two scale for latent and one for pe: 2^ceil(log2(amax / 448)), 1 when amax is 0.
    Nothing else of the pages is written.
    """
    implementation("mla").latent_write(latent, pe, view, spans)


# Six parameters: q is two tensors because the latent part comes out of a product with W_UK.
def mla(
    q_latent: Tensor,
    q_pe: Tensor,
    view: LatentView,
    spans: Sequence[Span],
    scale: float,
    team: Team | None = None,
) -> Tensor:
    """q_latent FP32 [R, H, L], q_pe FP32 [R, H, P] to the latent sums FP32 [R, H, L].

    Row i of a span attends to tokens 0 .. cached + i, all read from the cache (its own included:
    call `latent_write` first). Scores, softmax and sums are FP32; `scale` multiplies the scores.
    """
    out: Tensor = implementation("mla").mla(q_latent, q_pe, view, spans, scale, team)
    return out
