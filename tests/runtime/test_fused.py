"""The specialized step against the FP64 reference, and against itself in every other setting.

Longer than the house's size: every setting is compared on the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from stepfuse import _native
from stepfuse.core.errors import CacheError, NativeError, RequestError, UnsupportedError
from stepfuse.ops.views import KvDtype
from stepfuse.runtime.batch import SequenceRows, StepInput
from stepfuse.runtime.fused import FusedRuntime
from tests.support.random_weights import random_tensors
from tests.support.reference_model import ReferenceModel
from tests.support.stage_diff import stage_diff
from tests.support.steps import MODELS, PAGE_TOKENS, Driver, Setting, packed, team, tokens_of

LEVELS = _native.levels()
BEST = LEVELS[-1]
MEMBERS = ("k3", "k3_bf16_experts", "linear")
LENGTH = PAGE_TOKENS + 4


@pytest.fixture(autouse=True, scope="module")
def _one_torch_thread() -> Iterator[None]:
    """The reference's vectors are too short to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def reference(name: str, kv: KvDtype, rounded: bool) -> Tensor:
    """FP64 logits, exact or under the kernels' own rounding contract."""
    cache_rounding = kv if rounded else "none"
    tensors = random_tensors(MODELS[name])
    model = ReferenceModel(MODELS[name], tensors, rounded=rounded, kv=cache_rounding)
    return model.logits(tokens_of(1, LENGTH))


def relative_errors(got: Tensor, want: Tensor) -> Tensor:
    return (got.double() - want).norm(dim=1) / want.norm(dim=1)


def rounding_cost(name: str, kv: KvDtype = "bf16") -> Tensor:
    """Per token, how far the rounding contract by itself moves the logits. Two results that both
    follow it differ where an FP32 sum falls on the other side of a BF16 edge, which is part of that
    cost, so it bounds their difference.
    """
    return relative_errors(reference(name, kv, True), reference(name, kv, False))


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["k3_flat", "linear_flat"])
def test_logits_follow_the_reference(name: str, level: str, kv: KvDtype) -> None:
    driver = Driver(name, Setting(2, level, kv))
    assert driver.runtime.level == level
    got = driver.decode(driver.start(3, 0), tokens_of(1, LENGTH))
    errors, cost = relative_errors(got, reference(name, kv, True)), rounding_cost(name, kv)
    assert float(errors.median()) < float(cost.median())
    assert float(errors.max()) < float(cost.max())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MEMBERS)
def test_thread_counts_are_bit_equal(name: str, level: str) -> None:
    results = []
    for threads in (1, 2, 4):
        for fuse in (False, True):
            driver = Driver(name, Setting(threads, level, fuse_heads=fuse))
            a, b = driver.start(0, 0), driver.start(1, 12)
            parts = [driver.step([(a, [t]), (b, [t, t + 1])]) for t in tokens_of(2, 6, 150)]
            results.append(torch.cat(parts))
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_row_alone_equals_a_row_in_a_batch(name: str, kv: KvDtype) -> None:
    driver = Driver(name, Setting(2, BEST, kv))
    tokens = [tokens_of(seed, 10) for seed in range(8)]
    streams = [driver.start(slot, 12 * slot) for slot in range(8)]
    together = torch.stack(
        [driver.step([(s, [tokens[i][t]]) for i, s in enumerate(streams)]) for t in range(10)], 1
    )
    for i in (0, 3, 7):
        alone = Driver(name, Setting(1, BEST, kv))
        assert torch.equal(alone.decode(alone.start(5, 24), tokens[i]), together[i])


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("name", MEMBERS)
def test_rows_of_a_sequence_equal_one_at_a_time(name: str, kv: KvDtype) -> None:
    tokens = tokens_of(4, 22)
    one = Driver(name, Setting(2, BEST, kv))
    single = one.start(0, 0)
    want = one.decode(single, tokens)
    many = Driver(name, Setting(2, BEST, kv))
    stream, other = many.start(1, 12), many.start(2, 36)
    cuts = [0, 1, 4, 11, 18, 22]  # across page boundaries at 8 and 16
    parts = []
    for begin, end in pairwise(cuts):
        out = many.step([(other, [begin]), (stream, tokens[begin:end])])
        parts.append(out[1:])
    assert torch.equal(torch.cat(parts), want)
    for view_one, view_many in zip(one.state.views(), many.state.views(), strict=True):
        assert torch.equal(view_one.state[0], view_many.state[1])
        assert torch.equal(view_one.conv[0], view_many.conv[1])


def test_wide_steps_equal_narrow_ones() -> None:
    tokens = tokens_of(5, 40)
    narrow = Driver("k3", Setting(1, BEST))
    want = narrow.decode(narrow.start(0, 0), tokens)
    wide = Driver("k3", Setting(2, BEST, max_rows=64))
    stream = wide.start(0, 0)
    got = torch.cat([wide.step([(stream, tokens[:13])]), wide.step([(stream, tokens[13:])])])
    assert torch.equal(got, want)


def test_levels_agree_stage_by_stage() -> None:
    for name in ("k3_flat", "linear_flat"):
        bound = float(rounding_cost(name).max())
        first = Driver(name, Setting(2, "scalar", fuse_heads=False))
        for level in LEVELS[1:]:
            other = Driver(name, Setting(2, level, fuse_heads=False))
            for driver in (first, other):
                driver.step([(driver.start(0, 0), [7, 8]), (driver.start(1, 12), [9])])
            found = stage_diff(first.runtime.native, other.runtime.native, 3, bound)
            assert found is None, found


def test_stage_diff_names_the_stage() -> None:
    plain, broken = (Driver("k3", Setting(1)) for _ in range(2))
    for driver, token in ((plain, 5), (broken, 6)):
        driver.step([(driver.start(0, 0), [token])])
    found = stage_diff(plain.runtime.native, broken.runtime.native, 1, 1e-3)
    assert found is not None
    assert (found.stage, found.region) == ("embed", "residual.0")


def test_a_slot_is_reused_without_inheritance() -> None:
    driver = Driver("k3", Setting(2, BEST))
    fresh = Driver("k3", Setting(2, BEST))
    driver.decode(driver.start(2, 0), tokens_of(6, 9))
    again = driver.decode(driver.start(2, 0), tokens_of(7, 9))
    assert torch.equal(again, fresh.decode(fresh.start(4, 12), tokens_of(7, 9)))


def test_what_a_step_must_not_touch() -> None:
    driver = Driver("linear", Setting(2, BEST))
    driver.latent.data.fill_(0xA5)
    driver.state.state.fill_(3.0)
    driver.state.conv.fill_(3.0)
    stream = driver.start(4, 24)
    driver.decode(stream, tokens_of(8, 3))
    used = stream.pages[0]
    for page in range(driver.latent.pages):
        if page != used:
            assert (driver.latent.data[:, page] == 0xA5).all()
    assert (driver.latent.data[:, used, 3:] == 0xA5).all()
    others = [s for s in range(driver.state.slots) if s != 4]
    assert (driver.state.state[:, others] == 3.0).all()
    assert (driver.state.conv[:, others] == 3.0).all()


def _input(tokens: list[int], *rows: SequenceRows) -> StepInput:
    return StepInput(np.array(tokens, np.int32), rows)


def _rows(slot: int, rows: int, cached: int, pages: list[int]) -> SequenceRows:
    return SequenceRows(slot, rows, cached, np.array(pages, np.int32))


BAD_STEPS = {
    "token above": (_input([200], _rows(0, 1, 0, [0])), RequestError, "token 200"),
    "token below": (_input([-1], _rows(0, 1, 0, [0])), RequestError, "token -1"),
    "slot above": (_input([1], _rows(10, 1, 0, [0])), CacheError, "slot 10"),
    "slot below": (_input([1], _rows(-1, 1, 0, [0])), CacheError, "slot -1"),
    "page above": (_input([1], _rows(0, 1, 8, [0, 96])), CacheError, "page 96"),
    "page below": (_input([1], _rows(0, 1, 0, [-1])), CacheError, "page -1"),
    "short table": (_input([1], _rows(0, 1, 8, [0])), CacheError, "need 2 pages"),
    "too wide": (_input([1] * 9, _rows(0, 9, 0, [0, 1])), RequestError, "9 rows"),
    "rows missing": (_input([1, 2], _rows(0, 1, 0, [0])), RequestError, "2 tokens"),
    "rows over": (_input([1], _rows(0, 2, 0, [0])), RequestError, "1 tokens"),
    "negative position": (_input([1], _rows(0, 1, -1, [0])), RequestError, "position -1"),
    "a slot twice": (
        _input([1, 2], _rows(0, 1, 0, [0]), _rows(0, 1, 0, [1])),
        RequestError,
        "slot 0",
    ),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_bad_steps_are_refused_before_they_run(case: str) -> None:
    step, error, text = BAD_STEPS[case]
    driver = Driver("k3", Setting(1))
    driver.latent.data.fill_(0xA5)
    driver.state.state.fill_(3.0)
    with pytest.raises(error, match=text):
        driver.runtime.run(step)
    assert (driver.latent.data == 0xA5).all()
    assert (driver.state.state == 3.0).all()


def test_wanted_rows() -> None:
    driver = Driver("k3", Setting(1, BEST))
    reference_driver = Driver("k3", Setting(1, BEST))
    all_rows = reference_driver.step(
        [(reference_driver.start(0, 0), [1, 2, 3]), (reference_driver.start(1, 12), [4, 5])]
    )
    for wanted, rows in (("all", [0, 1, 2, 3, 4]), ("last", [2, 4]), ("none", [])):
        work = [(driver.start(0, 0), [1, 2, 3]), (driver.start(1, 12), [4, 5])]
        assert torch.equal(driver.step(work, wanted), all_rows[rows])
    empty = driver.runtime.run(_input([]))
    assert empty.logits.shape == (0, 200)


def test_a_step_reports_its_own_clock_and_trace() -> None:
    driver = Driver("k3", Setting(2, BEST))
    native = driver.runtime.native
    with pytest.raises(ValueError, match="trace is off"):
        native.trace()
    native.set_trace(True)
    output = driver.runtime.run(_input([3], _rows(0, 1, 0, [0])))
    assert output.native_ns > 0
    entries = native.trace()
    assert len(entries) == 2 * len(native.stages())
    begins = [begin for _, member, begin, end in entries if member == 0 and begin <= end]
    assert begins == sorted(begins)
    assert len(begins) == len(native.stages())


@pytest.mark.parametrize(
    ("name", "kind", "barriers"),
    [("k3", "kda", 6), ("k3", "mla", 8), ("linear", "kda", 5), ("linear", "mla", 7)],
)
def test_barriers_of_a_layer(name: str, kind: str, barriers: int) -> None:
    driver = Driver(name, Setting(2, fuse_heads=True))
    kinds = MODELS[name].layer_kinds
    layer = next(i for i, k in enumerate(kinds) if k == kind and not MODELS[name].dense_layers[i])
    stages = [s for s in driver.runtime.native.stages() if s["layer"] == layer]
    assert sum(s["barrier"] for s in stages) == barriers


def test_a_nan_row_stays_alone() -> None:
    driver = Driver("k3", Setting(2, BEST))
    clean = Driver("k3", Setting(2, BEST))
    streams = [driver.start(i, 12 * i) for i in range(3)]
    for stream in streams:
        driver.decode(stream, [11])
    driver.state.state[:, 1].fill_(float("nan"))
    mixed = driver.step([(s, [12]) for s in streams])
    alone = clean.start(0, 0)
    clean.decode(alone, [11])
    want = clean.decode(alone, [12])
    assert torch.equal(mixed[0:1], want)
    assert torch.equal(mixed[2:3], want)
    assert mixed[1].isnan().all()


def test_what_cannot_be_prepared_is_refused() -> None:
    driver = Driver("k3", Setting(1))
    views = (driver.latent.views(), driver.state.views())
    build = (driver.geometry, packed("k3"))
    with pytest.raises(UnsupportedError, match="max_rows 0"):
        FusedRuntime(*build, *views, team(1), 0)
    with pytest.raises(CacheError, match="one per layer"):
        FusedRuntime(*build, views[0][:1], views[1], team(1))
    with pytest.raises(NativeError, match="level 'sse9'"):
        FusedRuntime(*build, *views, team(1), level="sse9")
