"""The line of figures behind a generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepfuse.engine.engine import Engine
    from stepfuse.engine.request import RequestOutput


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run measured.

    `steps`: counts by "path/reason". `decode_step_ms`: median per path, prefill excluded.
    `tokens_per_s`: tokens behind each request's first over the time they took, all requests
    together. `ttft_ms`: the slowest request's time to its first token.
    """

    steps: dict[str, int]
    decode_step_ms: dict[str, float]
    tokens_per_s: float | None
    ttft_ms: float | None
    prompt_tokens: int
    generated_tokens: int
    threads: int
    level: str
    kv_cache_dtype: str
    unsupported: tuple[str, ...]

    def line(self) -> str:
        """One line for people."""
        parts = ["steps: " + ", ".join(f"{key} {n}" for key, n in self.steps.items())]
        parts += [f"decode step {ms:.2f} ms ({path})" for path, ms in self.decode_step_ms.items()]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tok/s")
        if self.ttft_ms is not None:
            parts.append(f"TTFT {self.ttft_ms:.1f} ms")
        parts.append(f"{self.prompt_tokens} + {self.generated_tokens} tokens")
        parts.append(f"{self.threads} threads, {self.level}, KV {self.kv_cache_dtype}")
        if self.unsupported:
            parts.append("no specialized path: " + "; ".join(self.unsupported))
        return "[" + " | ".join(parts) + "]"


def figures(engine: Engine, outputs: list[RequestOutput]) -> Figures:
    """The figures of an engine that ran exactly these outputs."""
    stats, facts = engine.stats(), engine.parts.facts
    first = [o.ttft_s for o in outputs if o.ttft_s is not None]
    after = sum(len(o.token_ids) - 1 for o in outputs if o.token_ids)
    spent = max((o.e2e_s for o in outputs), default=0.0) - min(first, default=0.0)
    return Figures(
        steps={f"{path}/{reason}": n for (path, reason), n in sorted(stats.steps.items())},
        decode_step_ms=stats.decode_step_ms,
        tokens_per_s=after / spent if after and spent > 0 else None,
        ttft_ms=1e3 * max(first) if first else None,
        prompt_tokens=stats.prompt_tokens,
        generated_tokens=stats.generated_tokens,
        threads=facts.threads,
        level=facts.level,
        kv_cache_dtype=facts.kv_cache_dtype,
        unsupported=stats.unsupported,
    )
