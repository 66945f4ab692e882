"""The plan's figures against those published for the full models and measured for the presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepfuse.core.config import Geometry
from stepfuse.core.parse_config import parse_config
from stepfuse.weights import memory
from stepfuse.weights.layout import arena_bytes, arena_layout
from stepfuse.weights.presets import PRESETS, config_of
from stepfuse.weights.sizes import expert_bytes, weight_bytes

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


def released(name: str) -> Geometry:
    return parse_config(json.loads((CONFIGS / f"{name}.json").read_text())).geometry


def preset(name: str) -> Geometry:
    return parse_config(config_of(PRESETS[name])).geometry


def test_k3_in_full_size() -> None:
    """1.56 TB of files; 111 GB of trunk and 25.8 GB of experts per row; 0.87 GB of state."""
    g = released("kimi-k3")
    assert arena_bytes(g) == pytest.approx(1.56e12, rel=0.005)
    one = memory.bytes_per_step(g, 1, None, 0, "bf16")
    assert one.trunk == pytest.approx(111e9, rel=0.005)
    assert one.experts == pytest.approx(25.8e9, rel=0.005)
    kda_only = 2 * 69 * 96 * 128 * 128 * 4
    assert kda_only == pytest.approx(0.87e9, rel=0.01)
    assert one.state == kda_only + 2 * 69 * 9 * 96 * 128 * 2
    assert memory.kv_bytes_per_token(g, "bf16") == 24 * 576 * 2
    assert memory.kv_bytes_per_token(g, "fp8") == 24 * (576 + 8)
    assert memory._expected_experts(g, 8) == pytest.approx(120.3, abs=0.1)


def test_kimi_linear_in_full_size() -> None:
    g = released("kimi-linear-48b")
    assert arena_bytes(g) == pytest.approx(91.5 * 2**30, rel=0.001)
    assert weight_bytes(g)["experts"] == 26 * 256 * 3 * 1024 * 2304 * 2


@pytest.mark.parametrize(("rows", "gb"), [(1, 1.64), (2, 1.87), (4, 2.23), (8, 2.68)])
def test_bytes_touched_by_the_quarter_width_k3(rows: int, gb: float) -> None:
    step = memory.bytes_per_step(preset("k3-quarter"), rows, None, 0, "bf16")
    assert step.total - step.state == pytest.approx(gb * 1e9, rel=0.005)


def test_known_routing_is_counted_exactly() -> None:
    g = preset("k3-quarter")
    chosen = [16 + layer for layer in range(15)]
    step = memory.bytes_per_step(g, 2, chosen, 1000, "fp8")
    assert step.experts == sum(chosen) * 3 * 896 * 768 * 17 // 32
    assert step.kv == 2 * 1000 * 4 * (576 + 8)
    assert step.total == step.trunk + step.experts + step.kv + step.state


def test_flat_routing_touches_every_expert() -> None:
    g = preset("k3-flat")
    one, eight = (memory.bytes_per_step(g, rows, None, 0, "bf16").experts for rows in (1, 8))
    assert one == eight == 7 * 16 * expert_bytes(g)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_kinds_sum_to_the_arena(name: str) -> None:
    g = preset(name)
    assert sum(weight_bytes(g).values()) == arena_bytes(g)
    end = 0
    for placement in arena_layout(g):
        assert placement.offset % 64 == 0
        assert placement.offset >= end
        end = placement.offset + placement.bytes
    assert arena_bytes(g) - 64 < end <= arena_bytes(g)


def test_sequences_that_fit() -> None:
    g = preset("k3-quarter")
    weights = arena_bytes(g) + memory.LOAD_MARGIN_BYTES
    per_sequence = memory.state_bytes(g) + 1024 * memory.kv_bytes_per_token(g, "fp8")
    assert memory.sequences_that_fit(g, weights + 3 * per_sequence + 1, 1024, "fp8") == 3
    assert memory.sequences_that_fit(g, weights - 1, 1024, "fp8") == 0
