"""The residual stream: plain, or K3's block attention residuals."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stepfuse.core.config import Geometry
from stepfuse.ops.attn_res import attn_res
from stepfuse.weights.store import ResidualMix


class Residual(Protocol):
    """One step's stream, FP32 [R, hidden]. Calls come in the order of the methods, per layer."""

    def attention_input(self, layer: int, mix: ResidualMix | None) -> Tensor: ...
    def add_attention(self, out: Tensor) -> None: ...
    def ffn_input(self, mix: ResidualMix | None) -> Tensor: ...
    def add_ffn(self, out: Tensor) -> None: ...
    def output(self, mix: ResidualMix | None) -> Tensor: ...


class PlainResidual:
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, embedded: Tensor) -> None:
        self._x = embedded

    def attention_input(self, layer: int, mix: ResidualMix | None) -> Tensor:  # noqa: ARG002
        return self._x

    def add_attention(self, out: Tensor) -> None:
        self._x = self._x + out

    def ffn_input(self, mix: ResidualMix | None) -> Tensor:  # noqa: ARG002
        return self._x

    def add_ffn(self, out: Tensor) -> None:
        self._x = self._x + out

    def output(self, mix: ResidualMix | None) -> Tensor:  # noqa: ARG002
        return self._x


class AttentionResidual:
    """A running prefix and a bank of block snapshots; every input is a softmax mix of them.

    Bank and prefix share one buffer [blocks + 1, R, hidden] with the prefix last, so the mix reads
    them in place and taking a snapshot is moving on by one.
    """

    def __init__(self, embedded: Tensor, geometry: Geometry, block: int) -> None:
        blocks = -(-geometry.layers // block)
        self._block = block
        self._eps = geometry.norm_eps
        self._sources = embedded.new_empty((blocks + 1, *embedded.shape))
        self._sources[0] = embedded
        self._snapshots = 0
        self._fresh = False

    def attention_input(self, layer: int, mix: ResidualMix | None) -> Tensor:
        """The mix over the snapshots before this layer; a block's first layer then takes one."""
        mixed = self._mix(mix)
        self._fresh = layer % self._block == 0
        if self._fresh:
            self._snapshots += 1
        return mixed

    def add_attention(self, out: Tensor) -> None:
        """A block's first attention starts the prefix anew."""
        if self._fresh:
            self._sources[self._snapshots] = out
        else:
            self._sources[self._snapshots] += out

    def ffn_input(self, mix: ResidualMix | None) -> Tensor:
        return self._mix(mix)

    def add_ffn(self, out: Tensor) -> None:
        self._sources[self._snapshots] += out

    def output(self, mix: ResidualMix | None) -> Tensor:
        return self._mix(mix)

    def _mix(self, mix: ResidualMix | None) -> Tensor:
        assert mix is not None, "weights of a model with attention residuals hold every mix"
        sources = self._sources[: self._snapshots + 1]
        return attn_res(sources, mix.norm, mix.proj, self._eps)


def residual(embedded: Tensor, geometry: Geometry) -> Residual:
    """The stream of this member, starting from the embedded tokens FP32 [R, hidden]."""
    if geometry.attn_res_block is None:
        return PlainResidual(embedded)
    return AttentionResidual(embedded, geometry, geometry.attn_res_block)


def embed(tokens: Tensor, table: Tensor) -> Tensor:
    """Token ids [R] and the embedding BF16 [vocab, hidden] to FP32 [R, hidden]."""
    return table.index_select(0, tokens.to(torch.int64)).float()
