"""Counting distinct experts on real small models."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfuse import Engine
from stepfuse.bench.routing import count_distinct
from stepfuse.model import moe
from tests.support.tiny import tiny_k3


def test_one_row_chooses_exactly_top_k(tmp_path: Path) -> None:
    before = vars(moe)["route"]
    with Engine(tiny_k3(tmp_path), max_model_len=64) as engine:
        geometry = engine.parts.geometry
        layers = geometry.dense_layers.count(False)
        assert count_distinct(engine, 1, 6, seed=0) == [geometry.moe.top_k] * layers
        several = count_distinct(engine, 4, 6, seed=0)
        assert len(several) == layers
        assert all(geometry.moe.top_k < n <= geometry.moe.experts for n in several)
    assert vars(moe)["route"] is before


def test_the_probe_measures(tmp_path: Path) -> None:
    pytest.importorskip("stepfuse._native")
    from stepfuse.bench.probe import probe_of

    with Engine(tiny_k3(tmp_path), max_model_len=64, threads=2) as engine:
        probe = probe_of(engine)
        reading = probe.read()
        assert reading.read_gbps > 0
        assert reading.ping_pong_ns is not None
        assert reading.ping_pong_ns > 0
        one, eight = probe.bytes_per_step(1, 16), probe.bytes_per_step(8, 16)
        assert 0 < one < eight < engine.parts.geometry.vocab * 10**5
