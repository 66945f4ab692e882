"""Block attention residuals: a softmax mix of block snapshots and the running prefix."""

from __future__ import annotations

from torch import Tensor

from stepfuse.ops.dispatch import implementation

__all__ = ["attn_res"]


def attn_res(sources: Tensor, norm: Tensor, proj: Tensor, eps: float) -> Tensor:
    """sources FP32 [S, R, n] (the last one is the prefix), norm and proj BF16 [n], to FP32 [R, n].

    Scores are proj . RMSNorm(source; norm); their softmax over S mixes the raw sources. With one
    source the result is that source. The result is a new tensor.
    """
    out: Tensor = implementation("attn_res").attn_res(sources, norm, proj, eps)
    return out
