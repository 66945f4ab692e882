"""What every part of the model needs besides its input and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepfuse.core.config import Geometry
from stepfuse.ops.views import Span

if TYPE_CHECKING:
    from stepfuse.ops.native import Team


@dataclass(frozen=True, slots=True)
class Context:
    """`spans`: which rows belong to which sequence; `team` None where ops run in PyTorch."""

    geometry: Geometry
    spans: Sequence[Span]
    team: Team | None = None
