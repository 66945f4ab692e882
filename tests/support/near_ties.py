"""When two correct runs may choose different tokens: only where the choice was almost a tie."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stepfuse.core.config import Geometry

# One rounding of a product's input to BF16 (8 significant bits) moves it by at most 2^-9 of itself.
BF16_STEP = 2.0**-9
# A run and its reference round independently, and either of the two logits may move: four standard
# deviations of the sum of these.
SIGMAS = 4.0


def products_in_a_row(geometry: Geometry) -> int:
    """Matrix products one after the other from embedding to logits: their roundings add up.

    KDA: projection, low-rank second factor, output. MLA: down, up, W_UK, W_UV, output.
    Feed-forward: latent down, gate/up, down, latent up. And the head.
    """
    return 3 * len(geometry.kda_layers) + 5 * len(geometry.mla_layers) + 4 * geometry.layers + 1


def tie_tolerance(logits: torch.Tensor, geometry: Geometry) -> float:
    """Largest gap between two logits of one row [vocab] that roundings can turn around.

    Independent roundings through n products give a relative error of 2^-9 * sqrt(n) (measured:
    1.0 % median and 3.0 % maximum on models of some 60 products), of logits whose spread is their
    standard deviation.
    """
    noise = BF16_STEP * products_in_a_row(geometry) ** 0.5 * float(logits.std())
    return SIGMAS * noise * 2.0**0.5


def check_same_or_tied(
    a: Sequence[int], b: Sequence[int], logits: torch.Tensor, geometry: Geometry
) -> bool:
    """True when the token lists agree; False when they part at a near tie; else AssertionError.

    `logits` [n, vocab]: row i is what the reference had before token i of `a`.
    """
    if list(a) == list(b):
        return True
    parted = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    row = logits[parted]
    gap = abs(float(row[a[parted]] - row[b[parted]]))
    allowed = tie_tolerance(row, geometry)
    assert gap <= allowed, (
        f"token {parted}: {a[parted]} and {b[parted]} are {gap} apart > {allowed}"
    )
    return False
