"""The step's own checks: what it is prepared from, and what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepfuse import _native
from stepfuse.runtime.prepare import geometry_fields, weight_addresses
from tests.support.steps import MODELS, Driver, Setting, packed, team


def parts(name: str) -> tuple[dict[str, Any], dict[str, int]]:
    return geometry_fields(MODELS[name], 4), weight_addresses(packed(name))


@pytest.mark.parametrize("name", ["k3", "linear"])
def test_every_geometry_entry_is_needed(name: str) -> None:
    geometry, weights = parts(name)
    for entry in geometry:
        less = {k: v for k, v in geometry.items() if k != entry}
        with pytest.raises(ValueError, match=f"'{entry}'"):
            _native.Step(less, weights, team(1), "scalar")


@pytest.mark.parametrize("name", ["k3", "linear"])
@pytest.mark.parametrize("fault", ["missing", "null", "unaligned"])
def test_every_weight_is_needed(name: str, fault: str) -> None:
    geometry, weights = parts(name)
    numbers = ("expert_bytes", "_offset")
    for entry, address in weights.items():
        if entry.endswith(numbers) and fault != "missing":
            continue
        broken = {k: v for k, v in weights.items() if k != entry or fault != "missing"}
        if fault != "missing":
            broken[entry] = 0 if fault == "null" else address + 2
        with pytest.raises(ValueError, match=f"'{entry}'"):
            _native.Step(geometry, broken, team(1), "scalar")


def test_an_unbound_step_does_not_run() -> None:
    step = _native.Step(*parts("k3"), team(1), "scalar")
    with pytest.raises(ValueError, match="not bound"):
        step.run(1)


def test_levels_are_named() -> None:
    for level in _native.levels():
        assert _native.Step(*parts("k3"), team(1), level).level == level
    with pytest.raises(ValueError, match="sse9"):
        _native.Step(*parts("k3"), team(1), "sse9")


def test_regions_have_names_and_shapes() -> None:
    driver = Driver("k3", Setting(2, max_rows=4))
    step = driver.runtime.native
    driver.step([(driver.start(0, 0), [3, 4])])
    assert step.region("residual.0").shape == (4, 96)
    assert step.region("x").shape == (2, 4, 96)
    x = step.region("x")
    np.testing.assert_array_equal(x[0, :2], x[1, :2])
    with pytest.raises(KeyError, match="nothing"):
        step.region("nothing")
    with pytest.raises(ValueError, match="caller"):
        step.region("logits")
    assert set(step.regions()) >= {"kda.q", "mla.latent", "moe.h", "cache.state"}


def test_running_until_a_stage_leaves_the_rest_alone() -> None:
    driver = Driver("k3", Setting(1))
    step = driver.runtime.native
    driver.step([(driver.start(0, 0), [3])])
    step.poison()
    step.run_until(1, 1)
    assert np.isfinite(step.region("residual.0")[0]).all()
    assert np.isnan(step.region("kda.q")).all()
    with pytest.raises(ValueError, match="stage 9999"):
        step.run_until(1, 9999)


def test_stages_tell_what_they_touch() -> None:
    step = Driver("k3", Setting(1)).runtime.native
    stages = step.stages()
    assert stages[0]["name"] == "embed"
    assert stages[-1]["writes"] == ["logits"]
    assert sum(s["barrier"] for s in stages) == step.barriers
    names = [s["name"] for s in stages]
    assert len(set(names)) == len(names)
    assert "L2.mla.attend" in names
