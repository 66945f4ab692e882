"""A progress bar over bytes, silent without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]


@contextmanager
def byte_progress(title: str, total: int, quiet: bool) -> Iterator[Advance]:
    """Yield a function to call with the bytes just done."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    progress = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.advance(task, done)
