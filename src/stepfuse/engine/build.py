"""stub"""

from __future__ import annotations

from stepfuse.engine.parts import EngineOptions, Parts


def build(options: EngineOptions) -> Parts:
    raise NotImplementedError
