"""bench kernel: every op on every level gives a figure; wrong names are refused."""

from __future__ import annotations

import pytest

from stepfuse.bench import kernel as bench
from stepfuse.bench.kernel import OPS, KernelBench, bench_kernel, cases, check_ops, kernel_table
from stepfuse.core.errors import RequestError
from stepfuse.ops import native

SMALL = 8 << 20


def test_every_op_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BLOCK_BYTES", 64 << 20)
    monkeypatch.setattr(bench, "REPEAT_BYTES", 1 << 20)
    monkeypatch.setattr(bench, "SCALAR_BYTES", 1 << 20)
    small = dict.fromkeys(OPS, ((256, 64),)) | {"kda": ((128, 4),)}
    monkeypatch.setattr(bench, "SHAPES", small)
    plan = KernelBench(levels=tuple(native.levels()), rows=(1, 3), repeats=3)
    heard: list[str] = []
    figures = bench_kernel(plan, 2, heard.append)
    assert len(figures) == len(heard) == len(list(cases(plan)))
    assert {f.op for f in figures} == set(OPS)
    assert all(
        f.gbps > 0 and f.roof_range[0] <= f.roof_fraction <= f.roof_range[1] for f in figures
    )
    lines = len(plan.levels) * len(OPS)
    assert kernel_table(figures).row_count == lines


def test_unknown_ops_are_refused() -> None:
    assert check_ops(("fp4", "bf16")) == ("bf16", "fp4")
    with pytest.raises(RequestError, match="'fp5'"):
        check_ops(("bf16", "fp5"))


def test_a_case_that_does_not_fit_is_refused() -> None:
    block = native.kernel_bench(native.Team(1), SMALL)
    level = native.levels()[-1]
    with pytest.raises(ValueError, match="twice in a block"):
        block.time("bf16", level, (1, 2048, 2048, SMALL, 1))
    with pytest.raises(ValueError, match="tiles"):
        block.time("fp4", level, (1, 48, 64, 1024, 1))
    with pytest.raises(ValueError, match="'fp5'"):
        block.time("fp5", level, (1, 64, 64, 1024, 1))
