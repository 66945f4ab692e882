"""stepfuse: a latency-specialized decode runtime for the Kimi K3 model family."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stepfuse.core.errors import StepfuseError

if TYPE_CHECKING:
    from stepfuse.engine.engine import Engine
    from stepfuse.engine.request import RequestOutput, SamplingParams, StreamDelta

__version__ = "0.1.0"
__all__ = ["Engine", "RequestOutput", "SamplingParams", "StepfuseError", "StreamDelta"]

# Imported on first use: torch takes seconds to load and `stepfuse --version` needs none of it.
_HOMES = {
    "Engine": "stepfuse.engine.engine",
    "RequestOutput": "stepfuse.engine.request",
    "SamplingParams": "stepfuse.engine.request",
    "StreamDelta": "stepfuse.engine.request",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepfuse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
