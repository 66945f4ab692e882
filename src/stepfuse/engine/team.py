"""The native core as an engine uses it, or what stands in where it is not built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stepfuse.core import env
from stepfuse.core.config import Geometry
from stepfuse.ops.dispatch import chosen
from stepfuse.ops.views import LatentView, StateView
from stepfuse.weights.store import ModelWeights

if TYPE_CHECKING:
    from stepfuse.engine.parts import Runtime
    from stepfuse.ops.native import Team

Views = tuple[Sequence[LatentView], Sequence[StateView]]


@dataclass(frozen=True, slots=True)
class Core:
    """`level` "eager" and no team where ops run in PyTorch."""

    level: str
    threads: int
    team: Team | None


def level_here() -> str | None:
    """The ISA level ops run on; None where there is no native core."""
    if chosen() != "native":
        return None
    # Imported here: the module cannot be imported where the core is not built.
    from stepfuse.ops import native

    return native.level()


def start_core(threads: int | None) -> Core:
    """A team of `threads`; None: STEPFUSE_THREADS, else one per core this process may use."""
    threads = env.threads() if threads is None else threads
    level = level_here()
    if level is None:
        if threads is not None:
            torch.set_num_threads(threads)
        return Core("eager", torch.get_num_threads(), None)
    from stepfuse.ops import native

    team = native.Team(native.cores() if threads is None else threads)
    return Core(level, team.threads, team)


def fused_runtime(
    model: tuple[Geometry, ModelWeights], views: Views, core: Core, rows: int
) -> Runtime:
    """The specialized runtime of a model it supports, prepared for `rows` rows."""
    from stepfuse.runtime.fused import FusedRuntime

    assert core.team is not None
    return FusedRuntime(*model, *views, core.team, rows)
