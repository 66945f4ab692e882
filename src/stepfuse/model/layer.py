"""One decoder layer: attention (KDA or MLA), then feed-forward (dense or experts)."""

from __future__ import annotations

from torch import Tensor

from stepfuse.model.context import Context
from stepfuse.model.kda import kda_attention
from stepfuse.model.mla import mla_attention
from stepfuse.model.moe import dense, moe
from stepfuse.model.residual import Residual
from stepfuse.ops.norm import rms_norm
from stepfuse.ops.views import LatentView, StateView
from stepfuse.weights.store import DenseWeights, KdaWeights, LayerWeights, MlaWeights

CacheView = LatentView | StateView


def run_layer(
    index: int, w: LayerWeights, stream: Residual, view: CacheView, context: Context
) -> None:
    """Move the residual stream through layer `index`; `view` is the layer's own cache."""
    eps = context.geometry.norm_eps
    mixed = stream.attention_input(index, w.attn_res)
    stream.add_attention(_attention(rms_norm(mixed, w.input_norm, eps), w, view, context))
    mixed = stream.ffn_input(w.mlp_res)
    x = rms_norm(mixed, w.post_norm, eps)
    if isinstance(w.ffn, DenseWeights):
        stream.add_ffn(dense(x, w.ffn, context))
    else:
        stream.add_ffn(moe(x, w.ffn, context))


def _attention(x: Tensor, w: LayerWeights, view: CacheView, context: Context) -> Tensor:
    if isinstance(w.attention, KdaWeights):
        assert isinstance(view, StateView), "a KDA layer keeps state"
        return kda_attention(x, w.attention, view, context)
    assert isinstance(w.attention, MlaWeights)
    assert isinstance(view, LatentView), "an MLA layer keeps latents"
    return mla_attention(x, w.attention, view, context)
