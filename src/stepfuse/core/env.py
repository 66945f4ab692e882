"""The only reader of the process's environment; docs/environment.md lists the variables."""

from __future__ import annotations

import os

from stepfuse.core.errors import ConfigError

THREADS_MAX = 256
_LEVELS = ("scalar", "avx2", "avx512", "avx512_bf16")


def forced_level() -> str | None:
    """`STEPFUSE_LEVEL`, None when unset or empty.

    Raises ConfigError on a name no level has; whether this machine can run it is the core's to say.
    """
    level = os.environ.get("STEPFUSE_LEVEL") or None
    if level is not None and level not in _LEVELS:
        raise ConfigError(f"STEPFUSE_LEVEL={level!r} is no level; use one of {', '.join(_LEVELS)}")
    return level


def threads() -> int | None:
    """`STEPFUSE_THREADS`, None when unset or empty. Raises ConfigError outside 1 to 256."""
    text = os.environ.get("STEPFUSE_THREADS")
    if not text:
        return None
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= THREADS_MAX:
        raise ConfigError(f"STEPFUSE_THREADS={text!r} is no thread count; use 1 to {THREADS_MAX}")
    return count
