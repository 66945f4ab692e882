"""`stepfuse info` and `stepfuse synth`: what a checkpoint is and needs, and making a random one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stepfuse.cli import options


def info(
    model: options.Model,
    kv_cache_dtype: options.KvDtype = options.KvCacheDtype.bf16,
    allow_config_keys: options.AllowKeys = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Print member, geometry, bytes by kind and what fits, without loading."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from rich.console import Console

    from stepfuse.engine.build import PREPARED_ROWS
    from stepfuse.engine.location import resolve_model
    from stepfuse.engine.team import level_here
    from stepfuse.runtime.support import check_specialized
    from stepfuse.weights import info as model_info

    keys = frozenset(options.key_list(allow_config_keys))
    described = model_info.describe(resolve_model(model), keys)
    level = level_here()
    reasons = check_specialized(described.geometry, kv_cache_dtype.value, level, PREPARED_ROWS)
    if as_json:
        facts = {"level": level, "specialized": not reasons, "unsupported": reasons}
        typer.echo(json.dumps({**model_info.as_json(described), **facts}, indent=1))
        return
    Console().print(model_info.render(described, level or "no native core", reasons))


def synth(
    preset: Annotated[str, typer.Argument(help="Name of a preset; a wrong one lists them.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write a random checkpoint in released format."""
    from stepfuse.weights.synth import SynthOptions
    from stepfuse.weights.synth import synth as write

    write(preset, out, SynthOptions(seed=seed, overwrite=overwrite))
    typer.echo(f"wrote {out}", err=True)
