"""Every refusal stepfuse makes, as one family of types."""

from __future__ import annotations


class StepfuseError(Exception):
    """Base of every error stepfuse raises on purpose. The message names thing, value and remedy."""


class ConfigError(StepfuseError):
    """A model config that is missing a key, holds a contradiction or a key that is not known."""


class CheckpointError(StepfuseError):
    """A checkpoint file that cannot be read as what it claims to be (header, shard, tensor)."""


class MemoryPlanError(StepfuseError):
    """What was asked for does not fit the memory it may use."""


class UnsupportedError(StepfuseError):
    """The specialized path was asked for where it cannot serve; `reasons` lists every reason."""

    def __init__(self, what: str, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__(f"{what}: " + "; ".join(reasons))


class RequestError(StepfuseError):
    """A request (prompt, sampling parameters) that cannot be served as asked."""


class CacheError(StepfuseError):
    """Out of pages or slots, or a restore that does not match what was saved."""


class NativeError(StepfuseError):
    """The native core is missing, or the ISA level asked for cannot run here."""
