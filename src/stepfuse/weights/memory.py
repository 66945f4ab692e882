"""The memory plan: bytes by kind, known from the geometry before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from stepfuse.core.errors import MemoryPlanError


def available_bytes() -> int | None:
    """Memory this process may still take: the smaller of the system's and the control group's.

    None where the system does not say.
    """
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None
    for line in info.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def check_fits(size: int, what: str) -> None:
    """Raise MemoryPlanError where `size` bytes are more than this machine can give."""
    free = available_bytes()
    if free is not None and size > free:
        raise MemoryPlanError(
            f"{what} need {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are available: use a machine "
            "with more memory, or a smaller member of the family"
        )
