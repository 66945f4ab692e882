"""Train `k3-tiny` for a fixed wall time on two cores.

    python -m training.k3_tiny.train --minutes 60 --out build/k3-tiny-train

Two processes of one thread each share the weights: each takes half of a step's rows, then each
updates half of the tensors from the mean gradient. Small operations gain little from a second
thread and a busy machine stalls every one of them; this way only two barriers a step can wait.

Every schedule follows the elapsed share of the time, so a slower machine takes fewer steps and
still ends with a finished schedule. `checkpoint.pt` is rewritten every few minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from training.k3_tiny import data, tokenizer
from training.k3_tiny.batches import Source
from training.k3_tiny.geometry import Geometry
from training.k3_tiny.model import K3
from training.k3_tiny.optimizer import Adam, Muon, split

WORKERS = 2
TOKENS_PER_WORKER = 3 * 512
QUANTIZED_FROM = 0.65  # share of the time after which experts are rounded to MXFP4
LONG_FROM, LONG_EVERY = 0.55, 4  # one row of 1536 tokens, one step in four
COOLDOWN_FROM = 0.4
LR_MUON, LR_TABLES, LR_CONTROLS = 0.02, 4e-3, 3e-3
BALANCE = 0.02  # a step of the router's selection bias, large because steps are few
SAVE_SECONDS, LOG_STEPS = 120, 20


@dataclass(frozen=True)
class Options:
    """One run's settings."""

    minutes: float
    out: Path
    seed: int


@dataclass
class Shared:
    """What both processes see: weights, one gradient row and one counter row per worker."""

    model: K3
    grads: torch.Tensor  # [workers, parameters]
    loads: torch.Tensor  # [workers, mixture layers, experts]
    progress: torch.Tensor  # [1], written by worker 0 before the step's last barrier
    barrier: Any


@dataclass
class Record:
    """What the model card reports about a run."""

    minutes: float = 0.0
    steps: int = 0
    tokens: int = 0
    python: str = platform.python_version()
    torch: str = torch.__version__
    curve: list[dict[str, float]] = field(default_factory=list)


class Worker:
    """One process of a run; worker 0 also keeps the clock, the log and the checkpoint."""

    def __init__(self, rank: int, shared: Shared, options: Options) -> None:
        self.rank, self.shared, self.options = rank, shared, options
        pieces = [p for p in data.corpus() if not p.held_out]
        encoding = tokenizer.load(options.out)
        self.source = Source(pieces, encoding, options.seed * WORKERS + rank)
        _attach_gradients(shared.model, shared.grads[rank])
        self.rows = [_views(shared.model, row) for row in shared.grads]
        self.muon, self.adam = self._optimizers()
        self.record = Record()

    def _optimizers(self) -> tuple[Muon, Adam]:
        """This worker's half of the parameters, by turns within each kind."""
        muon, tables, controls = split(self.shared.model)
        mine = slice(self.rank, None, WORKERS)
        adam = [(p, LR_TABLES) for p in tables[mine]] + [(p, LR_CONTROLS) for p in controls[mine]]
        return Muon(sorted(muon, key=lambda p: -p.numel())[mine], LR_MUON), Adam(adam)

    def train(self) -> None:
        """Step until the time is up; log each 20th step, save every three minutes."""
        self.shared.barrier.wait()
        start = saved = time.monotonic()
        seen: list[tuple[float, float, float]] = []
        while (progress := float(self.shared.progress)) < 1.0:
            seen.append(self.step(progress))
            now = time.monotonic()
            if self.rank == 0:
                self.shared.progress.fill_((now - start) / (self.options.minutes * 60))
                self.record.minutes = (now - start) / 60
            self.shared.barrier.wait()
            if self.rank == 0 and self.record.steps % LOG_STEPS == 0:
                self._log(progress, seen)
                seen.clear()
            if self.rank == 0 and now - saved > SAVE_SECONDS:
                self.save()
                saved = now
        if self.rank == 0:
            self.save()

    def step(self, progress: float) -> tuple[float, float, float]:
        """One update; mean loss of text tokens, of answer tokens, and the answers' hit rate."""
        model = self.shared.model
        long = progress > LONG_FROM and self.record.steps % LONG_EVERY == 0
        length = TOKENS_PER_WORKER if long else 512
        tokens, weights = self.source.batch(TOKENS_PER_WORKER // length, length, progress)
        for moe in model.moes():
            moe.quantized = progress > QUANTIZED_FROM
        self.shared.grads[self.rank].zero_()
        logits = model.lm_head(model(tokens[:, :-1])).flatten(0, 1)
        target, weight = tokens[:, 1:].flatten(), weights[:, 1:].flatten()
        losses = F.cross_entropy(logits, target, reduction="none")
        torch.autograd.backward((losses * weight).sum() / weight.sum())
        self.shared.loads[self.rank] = torch.stack([m.load for m in model.moes()])
        self.shared.barrier.wait()
        self._update(progress)
        self.record.steps += 1
        self.record.tokens += WORKERS * len(target)
        with torch.no_grad():
            answer = weight > 1.0
            hit = (logits[answer].argmax(-1) == target[answer]).float().mean()
            return float(losses[weight == 1.0].mean()), float(losses[answer].mean()), float(hit)

    @torch.no_grad()
    def _update(self, progress: float) -> None:
        warm = min(1.0, (self.record.steps + 1) / 50)
        cool = min(1.0, (1.0 - progress) / (1.0 - COOLDOWN_FROM))
        scale = warm * max(0.02, cool)
        mine = [p for group in self.muon.groups.values() for p in group]
        mine += [p for p, _ in self.adam.params]
        grads = {p: torch.stack([row[p] for row in self.rows]).mean(0) for p in mine}
        self.adam.step(scale, grads)
        self.muon.step(scale, grads)
        if self.rank == 0:
            for moe, load in zip(self.shared.model.moes(), self.shared.loads.sum(0), strict=True):
                moe.balance(load, BALANCE * max(0.05, cool))

    def _log(self, progress: float, seen: list[tuple[float, float, float]]) -> None:
        text, answer, hit = torch.tensor(seen).nanmean(0).nan_to_num().tolist()
        row = {
            "minutes": self.record.minutes,
            "step": self.record.steps,
            "tokens": self.record.tokens,
            "text_loss": text,
            "answer_loss": answer,
            "answer_hit": hit,
        }
        self.record.curve.append({k: round(v, 4) for k, v in row.items()})
        load = self.shared.loads.sum(0)
        uneven = float((load.amax(1) / load.mean(1)).max())
        print(
            f"{progress:6.1%} step {self.record.steps:5d} tokens {self.record.tokens:9d} "
            f"text {text:.3f} answer {answer:.3f} hit {hit:.3f} load {uneven:.2f}",
            flush=True,
        )

    def save(self) -> None:
        """Write weights and record; the old files stay whole until the new ones are."""
        fresh = self.options.out / "checkpoint.tmp"
        torch.save(self.shared.model.state_dict(), fresh)
        fresh.replace(self.options.out / "checkpoint.pt")
        (self.options.out / "record.json").write_text(json.dumps(asdict(self.record), indent=1))


def _views(model: nn.Module, flat: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
    """Each parameter's part of `flat` [parameters]."""
    views: dict[nn.Parameter, torch.Tensor] = {}
    at = 0
    for p in model.parameters():
        views[p] = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    return views


def _attach_gradients(model: nn.Module, flat: torch.Tensor) -> None:
    for p, view in _views(model, flat).items():
        p.grad = view


def _work(rank: int, shared: Shared, options: Options) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # decays below 1e-38 are nothing, and slow as denormals
    Worker(rank, shared, options).train()


def _zeros(*shape: int) -> torch.Tensor:
    """Zeros that both processes see."""
    out: torch.Tensor = torch.zeros(shape).share_memory_()  # type: ignore[no-untyped-call]
    return out


def run(options: Options) -> None:
    """Train the tokenizer, then the model in two processes."""
    options.out.mkdir(parents=True, exist_ok=True)
    pieces = [p for p in data.corpus() if not p.held_out and p.kind == "source"]
    tokenizer.save(tokenizer.train_ranks(p.text for p in pieces), options.out)
    torch.manual_seed(options.seed)
    model = K3(Geometry()).share_memory()
    grads = _zeros(WORKERS, sum(p.numel() for p in model.parameters()))
    loads = _zeros(WORKERS, len(model.moes()), model.shape.experts)
    barrier = multiprocessing.get_context("spawn").Barrier(WORKERS)
    shared = Shared(model, grads, loads, _zeros(1), barrier)
    spawn(_work, args=(shared, options), nprocs=WORKERS)  # type: ignore[no-untyped-call]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("build/k3-tiny-train"))
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    run(Options(args.minutes, args.out, args.seed))


if __name__ == "__main__":
    main()
