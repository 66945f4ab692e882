"""How many distinct experts decode steps really choose, counted on the standard path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from torch import Tensor

from stepfuse.bench.step import decode_wave
from stepfuse.engine.engine import Engine
from stepfuse.model import moe
from stepfuse.ops.router import route


def count_distinct(engine: Engine, rows: int, tokens: int, seed: int) -> list[float]:
    """Experts a step of `rows` requests chooses in each mixture layer, mean over `tokens` steps of
    the prompts the step bench starts with at this seed; empty for a model without mixtures.
    """
    layers = engine.parts.geometry.dense_layers.count(False)
    standard = Engine.of(replace(engine.parts, backend="standard"))
    with _tap() as seen:
        for _ in decode_wave(standard, rows, tokens, np.random.default_rng(seed)):
            pass
    full = [count for width, count in seen if width == rows]
    return [float(np.mean(full[layer::layers])) for layer in range(layers)] if full else []


@contextmanager
def _tap() -> Iterator[list[tuple[int, int]]]:
    """Collect (rows, distinct experts) of every router call, in layer order within a step."""
    seen: list[tuple[int, int]] = []

    def counting(
        logits: Tensor, bias: Tensor, top_k: int, scaling: float, renormalize: bool
    ) -> tuple[Tensor, Tensor]:
        ids, weights = route(logits, bias, top_k, scaling, renormalize)
        seen.append((len(ids), len(set(ids.flatten().tolist()))))
        return ids, weights

    # The model's own name is replaced for the time of the count: a hook in the model itself would
    # be there in every step for the sake of a table.
    names = vars(moe)
    names["route"] = counting
    try:
        yield seen
    finally:
        names["route"] = route
