"""What the bench commands share: lists of numbers in, tables and JSON out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepfuse.core.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table


def show(
    table: Table, figures: Sequence[dict[str, object]] = (), json_file: Path | None = None
) -> None:
    """Print the table; write the figures as JSON where asked."""
    from rich.console import Console

    console = Console()
    # A narrow terminal (or none) must not cut figures.
    console.width = max(console.width, 132)
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(list(figures), indent=1) + "\n")
        typer.echo(f"wrote {json_file}", err=True)


def row_list(text: str, option: str = "--rows") -> tuple[int, ...]:
    """`1,2,4` as numbers without repetition. RequestError for anything else."""
    try:
        rows = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        rows = ()
    if not rows or min(rows) < 1:
        raise RequestError(f"{option} {text!r}: give whole numbers of at least 1, as in 1,2,4,8")
    return rows


def name_list(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """`a,b` as names among `known`, or all of them for `both` and `all`. RequestError otherwise."""
    names = tuple(dict.fromkeys(known if text in ("both", "all") else text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestError(f"{option} {unknown[0]!r}: give some of {', '.join(known)}, or all")
    return names
