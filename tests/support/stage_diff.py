"""Runs two specialized runtimes side by side, stage by stage, and names the first that differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepfuse._native import Step


@dataclass(frozen=True, slots=True)
class StageDifference:
    """`error`: the largest difference relative to the region's largest magnitude, inf for NaN on
    one side only.
    """

    index: int
    stage: str
    region: str
    error: float


def stage_diff(left: Step, right: Step, rows: int, tolerance: float) -> StageDifference | None:
    """The first stage that writes a region which differs by more than `tolerance`, or None.

    Both steps must be bound to equal batches and to caches of their own in equal state; every look
    runs from the first stage on, so caches must allow running the same step again (a fresh
    sequence does). Private regions are compared by member 0; regions of bytes (activations in a
    level's own form) and the caller's memory are not compared.
    """
    stages = left.stages()
    if [s["name"] for s in stages] != [s["name"] for s in right.stages()]:
        raise ValueError("the two steps have different stages: fuse_heads must agree")
    for index, stage in enumerate(stages):
        left.run_until(rows, index + 1)
        right.run_until(rows, index + 1)
        for region in stage["writes"]:
            error = _difference(left, right, region, rows)
            if error > tolerance:
                return StageDifference(index, stage["name"], region, error)
    return None


def _difference(left: Step, right: Step, region: str, rows: int) -> float:
    a, b = _floats(left, region), _floats(right, region)
    if a is None or b is None:
        return 0.0
    if len(a.shape) > 1 and not region.startswith("mla.part"):
        a, b = a[:rows], b[:rows]
    known = ~(np.isnan(a) & np.isnan(b))
    if np.isnan(a[known]).any() or np.isnan(b[known]).any():
        return float("inf")
    largest = float(np.abs(a[known]).max(initial=0.0))
    return float(np.abs(a[known] - b[known]).max(initial=0.0)) / max(largest, 1e-30)


def _floats(step: Step, region: str) -> NDArray[np.float32] | None:
    try:
        array = step.region(region)
    except ValueError:  # the caller's memory
        return None
    if array.dtype != np.float32:
        return None
    private = step.is_private(region)
    return array[0] if private else array
