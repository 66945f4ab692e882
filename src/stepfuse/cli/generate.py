"""`stepfuse generate`: text on the screen, token by token, and one line of figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepfuse.cli import options
from stepfuse.cli.figures import figures
from stepfuse.core.errors import RequestError

if TYPE_CHECKING:
    from stepfuse.engine.engine import Engine
    from stepfuse.engine.request import RequestOutput, SamplingParams


def generate(
    model: options.Model,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Text; repeat it for several.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="A file whose text is the prompt.")
    ] = None,
    token_ids: Annotated[
        list[str] | None, typer.Option("--token-ids", help="A prompt as ids: 1,2,3; repeatable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option()] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends it; repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos")] = False,
    decode_backend: options.DecodeBackend = options.Backend.auto,
    kv_cache_dtype: options.KvDtype = options.KvCacheDtype.bf16,
    threads: options.Threads = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt + output.")] = None,
    prepared: options.Prepared = options.PreparedFile.auto,
    allow_config_keys: options.AllowKeys = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Complete one or more prompts."""
    from stepfuse.engine.request import SamplingParams

    prompts = _prompts(prompt, prompt_file, token_ids)
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    choice = options.EngineChoice(
        model,
        decode_backend,
        kv_cache_dtype,
        threads,
        options.key_list(allow_config_keys),
        max_model_len,
        prepared=prepared,
    )
    with options.open_engine(choice) as engine:
        if as_json:
            _print_json(engine, engine.generate(prompts, params))
        elif len(prompts) == 1:
            _stream(engine, prompts[0], params)
        else:
            _print_all(engine, prompts, params)


def _prompts(
    texts: list[str] | None, file: Path | None, ids: list[str] | None
) -> list[str | list[int]]:
    prompts: list[str | list[int]] = list(texts or ())
    if file is not None:
        try:
            prompts.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--prompt-file {file}: {error}") from error
    for text in ids or ():
        try:
            prompts.append([int(part) for part in text.replace(",", " ").split()])
        except ValueError:
            raise RequestError(f"--token-ids {text!r}: give integers, as in 1,2,3") from None
    if not prompts:
        raise RequestError("no prompt: give --prompt, --prompt-file or --token-ids")
    return prompts


def _stream(engine: Engine, prompt: str | list[int], params: SamplingParams) -> None:
    has_text = engine.parts.tokenizer is not None
    if isinstance(prompt, str):
        sys.stdout.write(prompt)
    # The request itself carries the times; a stream of deltas would not.
    request = engine.submit(prompt, params)
    try:
        while request.finish_reason is None:
            engine.step()
            while request.deltas:
                delta = request.deltas.popleft()
                ids = " ".join(map(str, delta.token_ids))
                sys.stdout.write(delta.text if has_text else ids + " " * bool(ids))
                sys.stdout.flush()
    finally:
        engine.cancel([request])
    sys.stdout.write("\n")
    _finish(engine, [request.output()])


def _print_all(engine: Engine, prompts: Sequence[str | list[int]], params: SamplingParams) -> None:
    outputs = engine.generate(prompts, params)
    for i, output in enumerate(outputs):
        shown = output.text if output.text is not None else " ".join(map(str, output.token_ids))
        typer.echo(f"--- prompt {i + 1} ({output.finish_reason})\n{output.prompt or ''}{shown}")
    _finish(engine, outputs)


def _finish(engine: Engine, outputs: list[RequestOutput]) -> None:
    typer.echo(figures(engine, outputs).line(), err=True)
    failed = [o.error for o in outputs if o.finish_reason == "error"]
    if failed:
        typer.echo(f"stepfuse: {failed[0]}", err=True)
        raise typer.Exit(2)


def _print_json(engine: Engine, outputs: list[RequestOutput]) -> None:
    fields = ("prompt", "prompt_token_ids", "token_ids", "text", "finish_reason", "error")
    completions = [{name: getattr(o, name) for name in fields} for o in outputs]
    typer.echo(json.dumps({"outputs": completions, "figures": asdict(figures(engine, outputs))}))
    if any(o.finish_reason == "error" for o in outputs):
        raise typer.Exit(2)
