"""The facts of a machine that every figure carries, and its memory measured in the same run."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

import stepfuse


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: processors this process may use; `commit`: of the source tree, or the version."""

    cpu: str
    cores: int
    memory_gib: float
    python: str
    torch: str
    commit: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement: read bandwidth of all threads [GB/s], line ping-pong of two cores [ns]."""

    read_gbps: float
    ping_pong_ns: float | None


def this_machine() -> Machine:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages * size / 2**30, 1),
        python=platform.python_version(),
        torch=torch.__version__,
        commit=_commit(),
    )


def median_reading(readings: list[Reading]) -> Reading:
    """Medians over the readings of one run; ping-pong None where no reading has it."""
    pings = [r.ping_pong_ns for r in readings if r.ping_pong_ns is not None]
    return Reading(median(r.read_gbps for r in readings), median(pings) if pings else None)


def machine_class(threads: int, level: str) -> str:
    """What ratios of two machines can be compared by: processor, threads and level.

    Family and model are named because guests often hide which of a vendor's processors they run on.
    """
    facts = _cpu_facts()
    model = f" {facts['cpu family']}/{facts['model']}" if "cpu family" in facts else ""
    return f"{_cpu_model()}{model}, {threads} threads, {level}"


def _cpu_model() -> str:
    return _cpu_facts().get("model name") or platform.processor() or platform.machine()


def _cpu_facts() -> dict[str, str]:
    """What the system says of its first processor; empty where it says nothing."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _commit() -> str:
    """Short commit of the source tree, `+` behind it when files differ; else the version."""
    root = Path(stepfuse.__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return stepfuse.__version__
    return found.stdout.strip() or stepfuse.__version__
