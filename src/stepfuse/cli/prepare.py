"""`stepfuse prepare`: the packed weights on disk, so that loading is mapping."""

from __future__ import annotations

from typing import Annotated

import typer

from stepfuse.cli import options


def prepare(
    model: options.Model,
    force: Annotated[bool, typer.Option("--force", help="Replace one that is there.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Verify the one that is there.")] = False,
    allow_config_keys: options.AllowKeys = None,
) -> None:
    """Write (or check) the prepared file next to a checkpoint; it takes as much disk again."""
    # Imported here: torch takes seconds to load and `--help` needs none of it.
    from stepfuse.engine.location import resolve_model
    from stepfuse.weights import load, prepared

    path = resolve_model(model)
    keys = frozenset(options.key_list(allow_config_keys))
    file = path / prepared.FILE_NAME
    if check:
        _, checkpoint, geometry = load.open_model(path, keys)
        wanted = load.expected_header(path, checkpoint, geometry)
        prepared.check_body(file, prepared.check_prepared(file, wanted))
        typer.echo(f"{file} is whole and belongs to this checkpoint")
        return
    file = load.prepare(path, load.LoadOptions(keys), force)
    typer.echo(f"wrote {file} ({file.stat().st_size / 1e9:.2f} GB)")
