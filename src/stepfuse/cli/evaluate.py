"""`stepfuse eval ...`: quality on a held-out file, through either backend and KV dtype."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepfuse.cli import options

if TYPE_CHECKING:
    from stepfuse.engine.engine import Engine
    from stepfuse.evals.heldout import Heldout

app = typer.Typer(help="Evaluate a model on its held-out file.", no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option("--file", help="A held-out file; default: the one of the model.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead.")]


@app.callback()
def _eval() -> None:
    """Evaluate a model on its held-out file."""


@app.command()
def perplexity(
    model: options.Model,
    file: File = None,
    decode_backend: options.DecodeBackend = options.Backend.auto,
    kv_cache_dtype: options.KvDtype = options.KvCacheDtype.bf16,
    threads: options.Threads = None,
    window: Annotated[int, typer.Option(min=3, help="Tokens per window.")] = 2048,
    limit: Annotated[int | None, typer.Option(min=1, help="Texts to use.")] = None,
    as_json: AsJson = False,
) -> None:
    """Perplexity of the held-out texts."""
    from stepfuse.cli.progress import ticking
    from stepfuse.evals.perplexity import perplexity as measure
    from stepfuse.evals.perplexity import tokenizer_of, windows

    choice = options.EngineChoice(
        model, decode_backend, kv_cache_dtype, threads, max_model_len=window
    )
    heldout = _heldout(model, file)
    with options.open_engine(choice) as engine:
        texts = heldout.texts[:limit]
        total = sum(1 for _ in windows(tokenizer_of(engine), texts, window))
        with ticking(total) as tick:
            result = measure(engine, texts, window, tick)
        line = (
            f"perplexity {result.perplexity:.4f} ({result.nll:.4f} nats per token, "
            f"{result.bits_per_byte:.4f} bits per byte) on {result.tokens} tokens"
        )
        _print(_Report(line, asdict(result)), engine, as_json)


@app.command()
def tasks(
    model: options.Model,
    file: File = None,
    decode_backend: options.DecodeBackend = options.Backend.auto,
    kv_cache_dtype: options.KvDtype = options.KvCacheDtype.bf16,
    threads: options.Threads = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Tasks to use.")] = None,
    as_json: AsJson = False,
) -> None:
    """Share of held-out tasks whose greedy answer is exact."""
    from stepfuse.evals.tasks import task_accuracy

    choice = options.EngineChoice(model, decode_backend, kv_cache_dtype, threads)
    heldout = _heldout(model, file)
    with options.open_engine(choice) as engine:
        result = task_accuracy(engine, heldout.tasks[:limit])
        shares = {kind: result.share(kind) for kind in result.count}
        line = ", ".join(
            f"{kind} {share:.1%} ({result.solved[kind]}/{result.count[kind]})"
            for kind, share in shares.items()
        )
        _print(_Report(line, {**asdict(result), "share": shares}), engine, as_json)


@dataclass(frozen=True, slots=True)
class _Report:
    line: str
    values: dict[str, object]


def _heldout(model: str, file: Path | None) -> Heldout:
    from stepfuse.engine.location import resolve_model
    from stepfuse.evals.heldout import read_heldout

    return read_heldout(resolve_model(model) if file is None else file)


def _print(report: _Report, engine: Engine, as_json: bool) -> None:
    stats, facts = engine.stats(), asdict(engine.parts.facts)
    steps = {f"{path}/{reason}": n for (path, reason), n in sorted(stats.steps.items())}
    if as_json:
        typer.echo(json.dumps({**report.values, "steps": steps, **facts}))
        return
    labels = ", ".join(f"{name} {value}" for name, value in facts.items())
    typer.echo(f"{report.line} | {labels} | " + ", ".join(f"{k} {n}" for k, n in steps.items()))
