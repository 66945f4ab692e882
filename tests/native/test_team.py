"""The team and the measuring functions as Python sees them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stepfuse import _native


def test_threads_and_processors() -> None:
    allowed = os.sched_getaffinity(0)
    for threads in (1, 2, 3):
        team = _native.Team(threads)
        assert team.threads == threads
        assert len(team.cpus) == threads
        assert set(team.cpus) <= allowed
    # The caller's own mask stays as it was: its later threads inherit it.
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("threads", [0, -3, 257])
def test_a_team_has_1_to_256_threads(threads: int) -> None:
    with pytest.raises(ValueError, match=str(threads)):
        _native.Team(threads)


@pytest.mark.parametrize(
    "arguments", [{"cpus": [0]}, {"spin_us": -1.0}, {"stop_s": 0.0}, {"stop_s": float("nan")}]
)
def test_bad_options_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"one per thread|spin_us"):
        _native.Team(2, **arguments)  # type: ignore[arg-type]


def test_topology_of_this_machine() -> None:
    cpus = _native.topology()
    assert {c["cpu"] for c in cpus} == os.sched_getaffinity(0)
    assert _native.cores() == len({c["core"] for c in cpus})


def test_a_tree_without_files_leaves_every_processor_alone(tmp_path: Path) -> None:
    for entry in _native.topology(str(tmp_path)):
        assert entry["core"] == entry["complex"] == entry["cpu"]


def test_measures_are_plausible() -> None:
    team = _native.Team(2)
    found = _native.read_bandwidth(team, 1 << 22, 3)
    assert found["passes"] == 3
    assert found["threads"] == 2
    assert 0.01 < found["median_gbps"] <= found["best_gbps"] < 1e4
    assert 1.0 < _native.ping_pong(team, 200) < 1e8
    assert _native.ping_pong(_native.Team(1), 200) == 0.0


def test_two_callers_take_turns() -> None:
    team = _native.Team(3)
    found: list[float] = []

    def call() -> None:
        for _ in range(20):
            found.append(_native.read_bandwidth(team, 1 << 12, 1)["best_gbps"])

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert len(found) == 60
