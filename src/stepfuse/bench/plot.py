"""Pictures of the step table and of the peers: time by rows against the roof, and by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from stepfuse.bench.peers import PeerFigure
from stepfuse.bench.plot_stages import draw_stages
from stepfuse.bench.step import StageTime, StepFigure
from stepfuse.core.errors import StepfuseError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, STANDARD, ROOF = "#00685e", "#8a8f98", "#22252a"
PEERS = ("#c8553d", "#e0a030", "#6a4c93", "#3d6fb4")
INK, GRID = "#22252a", "#e4e6ea"
# Least distance of two names behind lines.
LABEL_POINTS = 13.0


class PlotError(StepfuseError):
    """A picture was asked for and the library that draws it is not installed."""


@dataclass(frozen=True, slots=True)
class Line:
    """`ms` per entry of `rows`; `runs`: each run's, for the range."""

    label: str
    color: str
    rows: tuple[int, ...]
    ms: tuple[float, ...]
    runs: tuple[tuple[float, ...], ...]


def require_plot() -> None:
    """Raise PlotError where pictures cannot be drawn: before measuring, not after."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise PlotError(
            "--plot needs matplotlib, which is not installed: pip install 'stepfuse[plot]'"
        ) from None


def plot_steps(figures: Sequence[StepFigure], stages: Sequence[StageTime], path: Path) -> None:
    """Both paths against the roof, and where the specialized step's time goes."""
    known = (("latency_specialized", "specialized", OURS), ("standard", "standard", STANDARD))
    lines = []
    for backend, label, color in known:
        own = [f for f in figures if f.backend == backend]
        lines.append(_line(label, color, own, [(f.step_ms_median, f.step_ms_runs) for f in own]))
    first = figures[0]
    roof = {f.rows: _roof_ms(f.bytes_per_step, f.read_gbps) for f in figures}
    with _Sheet(path, f"Decode step of {first.model}", 1 + bool(stages)) as sheet:
        draw_lines(sheet.next("Time of a step"), [ln for ln in lines if ln.rows], roof)
        if stages:
            draw_stages(sheet.next("Where it goes, specialized"), stages)
        sheet.note = _note(first.level, first.threads, first.read_gbps, first.machine)


def plot_peers(figures: Sequence[PeerFigure], stages: Sequence[StageTime], path: Path) -> None:
    """Every kind that was measured beside every peer, and where our step's time goes."""
    kinds = list(dict.fromkeys(f.kind for f in figures))
    titles = {
        "decode": "Decode: n sequences of one row",
        "verify": "Verify: one sequence of n rows",
        "prefill": "Prefill: time to first token",
    }
    first = figures[0]
    read = mean(f.read_gbps for f in figures)
    with _Sheet(path, f"{first.model} beside its peers", len(kinds) + bool(stages)) as sheet:
        for kind in kinds:
            own = [f for f in figures if f.kind == kind]
            sizes = {f.rows: f.bytes_per_step for f in own if f.bytes_per_step is not None}
            roof = {rows: _roof_ms(size, read) for rows, size in sizes.items()}
            axes = sheet.next(titles[kind])
            draw_lines(axes, _peer_lines(own), roof)
            if kind == "prefill":
                axes.set_xlabel("prompt tokens")
        if stages:
            draw_stages(sheet.next("Where our decode step's time goes"), stages)
        sheet.note = _note(first.level, first.threads, read, first.machine)


def _peer_lines(figures: Sequence[PeerFigure]) -> list[Line]:
    names = list(dict.fromkeys(f.peer for f in figures))
    # Ours was measured beside every peer: one line of all of it.
    widths = tuple(dict.fromkeys(f.rows for f in figures))
    runs = tuple(
        tuple(ms for f in figures if f.rows == rows for ms in f.ours_ms_runs) for rows in widths
    )
    lines = [Line("stepfuse", OURS, widths, tuple(map(mean, runs)), runs)]
    for name, color in zip(names, PEERS, strict=False):
        own = [f for f in figures if f.peer == name]
        lines.append(_line(name, color, own, [(f.peer_ms, f.peer_ms_runs) for f in own]))
    return lines


def _line(
    label: str,
    color: str,
    figures: Sequence[StepFigure | PeerFigure],
    times: Sequence[tuple[float, tuple[float, ...]]],
) -> Line:
    rows = tuple(f.rows for f in figures)
    return Line(label, color, rows, tuple(t[0] for t in times), tuple(t[1] for t in times))


def draw_lines(axes: Axes, lines: Sequence[Line], roof: dict[int, float]) -> None:
    """The first line is ours; every point of the others carries its ratio to ours."""
    ours = dict(zip(lines[0].rows, lines[0].ms, strict=True))
    for line in lines:
        low, high = [min(r) for r in line.runs], [max(r) for r in line.runs]
        axes.fill_between(line.rows, low, high, color=line.color, alpha=0.18, linewidth=0)
        axes.plot(line.rows, line.ms, "o-", color=line.color, lw=2.2, ms=5.5)
        if line is not lines[0]:
            _ratios(axes, line, ours)
    ends = [(line.label, line.color, line.ms[-1]) for line in lines]
    if roof:
        widths = sorted(roof)
        axes.plot(widths, [roof[r] for r in widths], "--", color=ROOF, lw=1.5)
        ends.append(("roof", ROOF, roof[widths[-1]]))
    values = [ms for line in lines for ms in line.ms] + list(roof.values())
    _scale(axes, sorted({r for line in lines for r in line.rows}), values)
    _label_ends(axes, max(r for line in lines for r in line.rows), ends)


def _ratios(axes: Axes, line: Line, ours: dict[int, float]) -> None:
    for rows, ms in zip(line.rows, line.ms, strict=True):
        if rows in ours:
            axes.annotate(
                f"{ms / ours[rows]:.1f}×", (rows, ms), (0, 8), textcoords="offset points",
                ha="center", color=line.color, fontsize=9, fontweight="bold",
            )  # fmt: skip


def _label_ends(axes: Axes, right: float, ends: Sequence[tuple[str, str, float]]) -> None:
    """Names behind the lines' last points, pushed apart upwards where they would overlap."""
    to_points = axes.transData.transform
    pixel = 72 / axes.figure.dpi
    below = -LABEL_POINTS
    for label, color, ms in sorted(ends, key=lambda end: end[2]):
        own = float(to_points((right, ms))[1]) * pixel
        placed = max(own, below + LABEL_POINTS)
        axes.annotate(
            label, (right, ms), (10, placed - own), textcoords="offset points", va="center",
            color=color, fontsize=10, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
        below = placed


def _scale(axes: Axes, ticks: list[int], values: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if max(ticks) > 2 * min(ticks):
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.margins(x=0.09)
    axes.set_xlabel("rows")
    axes.set_ylabel("ms")
    if max(values) > 5 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(values) / 1.4, max(values) * 1.5)
    else:
        axes.set_ylim(0, max(values) * 1.12)
    axes.grid(axis="y", color=GRID)


def _roof_ms(size: int, read_gbps: float) -> float:
    return size / (read_gbps * 1e6)


def _note(level: str, threads: int, read_gbps: float, machine: dict[str, object]) -> str:
    return (
        f"{machine['cpu']}, {threads} threads, {level}; read {read_gbps:.1f} GB/s in the same run; "
        "dashed roof: bytes of a step at that bandwidth; bands: range of the runs; "
        f"commit {machine['commit']}"
    )


class _Sheet:
    """A figure of panels side by side, written to `path` when left without an error."""

    def __init__(self, path: Path, title: str, panels: int) -> None:
        from matplotlib.figure import Figure

        self._path = path
        self.note = ""
        across = min(panels, 2)
        down = -(-panels // across)
        size = (5.8 * across, 4.9 * down + 0.3)
        self._figure = Figure(figsize=size, dpi=150, layout="constrained")
        self._figure.suptitle(title, fontsize=14, fontweight="bold", color=INK, x=0.01, ha="left")
        every = self._figure.subplots(down, across, squeeze=False).flatten()
        for unused in every[panels:]:
            unused.set_axis_off()
        self._axes = iter(every)

    def next(self, title: str) -> Axes:
        axes: Axes = next(self._axes)
        axes.set_title(title, fontsize=11, loc="left", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        return axes

    def __enter__(self) -> _Sheet:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._figure.supxlabel(self.note, fontsize=8, color="#6b7078", x=0.01, ha="left")
            self._figure.savefig(self._path)
