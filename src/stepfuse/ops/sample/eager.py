"""Sampling on the host: NumPy in FP64, one row at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepfuse.ops.sample import Sampled, SampleParams

Row = NDArray[np.float32]
Weights = NDArray[np.float64]


def log_sum_exp(row: Row) -> float:
    """log(sum(exp(row))) in FP64; `row` has a finite maximum."""
    wide = row.astype(np.float64)
    largest = wide.max()
    return float(largest + np.log(np.exp(wide - largest).sum()))


def uniform(seed: int, position: int) -> float:
    """One number in [0, 1) that depends on seed and position alone (counter-based Philox)."""
    bits = np.random.Philox(key=seed, counter=position)
    return float(np.random.Generator(bits).random())


def keep_top_k(weights: Weights, count: int) -> Weights:
    """Zero all but the `count` largest; the lower index stays on ties."""
    if count <= 0 or count >= len(weights):
        return weights
    bound = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = weights > bound
    ties = np.flatnonzero(weights == bound)[: count - int(above.sum())]
    above[ties] = True
    return np.where(above, weights, 0.0)


def keep_top_p(weights: Weights, p: float) -> Weights:
    """Zero all but the shortest prefix, largest first, that reaches p of the sum."""
    if p >= 1.0:
        return weights
    order = np.argsort(-weights, kind="stable")
    reached = np.cumsum(weights[order])
    kept = 1 + int(np.searchsorted(reached, p * reached[-1], side="left"))
    left = np.zeros_like(weights)
    left[order[:kept]] = weights[order[:kept]]
    return left


def filtered(row: Row, params: SampleParams, i: int) -> Weights:
    """Unnormalised weights of row i after temperature and filters."""
    wide = row.astype(np.float64)
    weights = np.exp((wide - wide.max()) / float(params.temperature[i]))
    weights[weights < float(params.min_p[i])] = 0.0
    return keep_top_p(keep_top_k(weights, int(params.top_k[i])), float(params.top_p[i]))


def draw(row: Row, params: SampleParams, i: int) -> int:
    """One token id of row i."""
    weights = filtered(row, params, i)
    reached = np.cumsum(weights)
    u = uniform(int(params.seed[i]), int(params.position[i]))
    index = int(np.searchsorted(reached, u * reached[-1], side="right"))
    # u < 1, but its product with the total may round to the total, behind the last kept token.
    return min(index, int(np.flatnonzero(weights)[-1]))


def sample(logits: Tensor, params: SampleParams, want_logprobs: bool = False) -> Sampled:
    """See `stepfuse.ops.sample.sample`."""
    rows: NDArray[np.float32] = logits.detach().float().numpy()
    best = rows.argmax(axis=1)  # the first of equals; the first NaN if there is one
    largest = rows[np.arange(len(rows)), best]
    failed = ~np.isfinite(largest)
    ids = np.where(failed, -1, best).astype(np.int64)
    logprobs = np.full(len(rows), np.nan)
    for i in np.flatnonzero(~failed).tolist():
        if params.temperature[i] > 0:
            ids[i] = draw(rows[i], params, i)
        if want_logprobs:
            logprobs[i] = float(rows[i, ids[i]]) - log_sum_exp(rows[i])
    return Sampled(ids, logprobs, failed)


def top_logprobs(row: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """See `stepfuse.ops.sample.top_logprobs`."""
    values: Row = row.detach().float().numpy()
    order = np.argsort(-values, kind="stable")[:count].astype(np.int64)
    return order, values[order].astype(np.float64) - log_sum_exp(values)
