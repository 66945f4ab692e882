"""Choosing the next token of each row; a row's draw depends only on its own seed and position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["SampleParams", "Sampled", "sample", "top_logprobs"]


@dataclass(frozen=True, slots=True)
class SampleParams:
    """One value per row, n rows.

    `temperature` float [n]: 0 is greedy. `top_k` int [n]: 0 is off. `top_p` float [n]: 1 is off.
    `min_p` float [n]: 0 is off. `seed` uint64 [n], `position` int64 [n]: the index of the token
    that is drawn, counted from the start of its sequence.
    """

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]

    @classmethod
    def greedy(cls, rows: int) -> SampleParams:
        """Temperature 0 for every row."""
        zero = np.zeros(rows, dtype=np.int64)
        nothing = np.zeros(rows)
        return cls(nothing, zero, np.ones(rows), nothing, zero.astype(np.uint64), zero)


@dataclass(frozen=True, slots=True)
class Sampled:
    """`ids` int64 [n], -1 for a failed row; `logprobs` float64 [n]; `failed` bool [n].

    A row fails when its logits hold a NaN or +inf, or are all -inf: it has no distribution. Log
    probabilities are those of the model (temperature 1, no filter), NaN in failed rows.
    """

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    failed: NDArray[np.bool_]


def sample(logits: Tensor, params: SampleParams, want_logprobs: bool = False) -> Sampled:
    """logits FP32 [n, V] to one token id per row.

    Filters in order: temperature, min_p (probability relative to the largest), top_k (exactly k,
    the lower index on ties), top_p (the shortest prefix of the sorted rest that reaches p of its
    sum; the token that crosses p stays). Then one uniform number of Philox(seed, position) picks
    from the cumulative distribution in token-id order, in FP64. Greedy takes the lower index on
    ties. Without `want_logprobs` they are NaN.
    """
    from stepfuse.ops.sample import eager

    return eager.sample(logits, params, want_logprobs)


def top_logprobs(row: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` likeliest ids of one row of logits [V] and their log probabilities, best first;
    the lower index on ties.
    """
    from stepfuse.ops.sample import eager

    return eager.top_logprobs(row, count)
