"""A progress bar on stderr for long work; silent where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ticking(total: int) -> Iterator[Callable[[str], None]]:
    """Call the function with a label each time one of `total` parts begins."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    # No refresh thread: it would run beside what is measured.
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=total)
        begun = 0

        def tick(label: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=label)
            bar.refresh()
            begun += 1

        yield tick
        bar.update(task, completed=total)
