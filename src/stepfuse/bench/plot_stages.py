"""The stage breakdown as stacked bars, one per row count."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from stepfuse.bench.step import WAKE, StageTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Label, colour, and the kinds (or, with a dot at the end, all kinds so begun) it takes in.
GROUPS = (
    ("KDA products", "#0f4c5c", ("kda.project", "kda.o")),
    ("KDA state", "#3a86a8", ("kda.",)),
    ("MLA", "#8cc0d6", ("mla.",)),
    ("routed experts, shared down", "#b5442e", ("moe.up", "moe.down")),
    ("router, latent, shared up", "#e58e5f", ("moe.",)),
    ("dense MLP", "#f3c98b", ("dense.",)),
    ("norms and mixes", "#7a9e7e", ("attn.norm", "ffn.norm", "head.norm")),
    ("embedding, head", "#5c5f7a", ("embed", "head.")),
    ("other", "#9a9a9a", ("",)),
)
WAIT_COLOR = "#eceef1"
# Segments below this share of the tallest bar have no room for a number.
LABELLED = 0.045


def group_of(kind: str) -> int:
    """Index into GROUPS: the first that names the kind or its beginning."""
    for index, (_, _, members) in enumerate(GROUPS):
        if any(kind == m or ((m == "" or m.endswith(".")) and kind.startswith(m)) for m in members):
            return index
    return len(GROUPS) - 1


def draw_stages(axes: Axes, times: Sequence[StageTime]) -> None:
    """Mean over the members: work by group, waiting on top."""
    widths = list(dict.fromkeys(t.rows for t in times))
    totals = [sum(mean(t.work_ms) + mean(t.wait_ms) for t in times if t.rows == r) for r in widths]
    bottom = [0.0] * len(widths)
    for index, (label, color, _) in enumerate(GROUPS):
        heights = [_work(times, rows, index) for rows in widths]
        if any(heights):
            _segment(axes, (bottom, heights, totals), label, color)
    waits = [sum(mean(t.wait_ms) for t in times if t.rows == rows) for rows in widths]
    _segment(axes, (bottom, waits, totals), "waiting at barriers", WAIT_COLOR)
    for place, total in enumerate(totals):
        axes.annotate(
            f"{total:.3g} ms", (place, total), (0, 4), textcoords="offset points", ha="center",
            fontsize=9, fontweight="bold",
        )  # fmt: skip
    axes.set_xticks(range(len(widths)), [str(rows) for rows in widths])
    axes.set_xlabel("rows")
    axes.set_ylabel("ms")
    axes.set_ylim(0, max(totals) * 1.08)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], frameon=False, fontsize=8.5, loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip


def _work(times: Sequence[StageTime], rows: int, group: int) -> float:
    own = [t for t in times if t.rows == rows and t.kind != WAKE and group_of(t.kind) == group]
    return sum(mean(t.work_ms) for t in own)


def _segment(
    axes: Axes,
    bars: tuple[list[float], list[float], list[float]],
    label: str,
    color: str,
) -> None:
    """Put one segment on every bar and move `bottom`, the first of `bars`, up by it."""
    bottom, heights, totals = bars
    waiting = color == WAIT_COLOR
    drawn = axes.bar(range(len(heights)), heights, 0.66, list(bottom), color=color, label=label)
    for bar in drawn if waiting else ():
        bar.set(hatch="////", edgecolor="#b6bbc2", linewidth=0)
    ink = "#5a6068" if waiting else "white"
    for place, height in enumerate(heights):
        if height > LABELLED * max(totals):
            share = f"{100 * height / totals[place]:.0f} %"
            middle = bottom[place] + height / 2
            axes.text(place, middle, share, ha="center", va="center", fontsize=8, color=ink)
        bottom[place] += height
