"""The model card of `k3-tiny`, from a run's record and the figures measured on its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.k3_tiny import batches, heldout, tasks, train
from training.k3_tiny.geometry import Geometry

_INTRO = """\
# k3-tiny

A Kimi-K3 of {millions:.1f} million parameters, trained on real text, in the released format (MXFP4
experts, `tiktoken.model`, reserved ids). It exists to try and to test stepfuse: it has every part
of K3 in small sizes. It writes text that looks like Python, not programs that work.

## Shape

{layers} layers, hidden {hidden}, vocabulary {vocab}; KDA in layers {kda} and MLA in
layers {mla} (0-based); {heads} heads of {head_dim}; block attention residuals of size {block};
layer 0 dense ({dense}), then latent mixtures of {experts} experts with {chosen} chosen (latent
{latent}, expert width {expert_width}, {shared} shared); SiTU; sigmoid router with a selection bias.

## Data

- Text: the sources and documentation strings of Python {python}'s standard library, without
  tests, encoding tables and build data. They are under the PSF License Agreement; the held-out
  pieces in `heldout.jsonl.gz` are excerpts of them. The weights carry stepfuse's licence.
- Tasks, generated, in lines such as

      recall: river = stone      (several, then 0 to 450 tokens of ordinary text)
      recall: river? stone
      copy: amber 7 light -> amber 7 light
      sum: 37 + 45 = 82

  Rows of 512 tokens (late in the run also 1536): {text_rows:.0%} hold text alone, {recall:.0%}
  recall lines around text, {lines:.0%} copies and sums; in the first {first:.0%} of the time
  {first_tasks:.0%} hold tasks. The gap of a recall grows with time. An answer token weighs
  {answer:.0f} text tokens in the loss, the rest of a task line a tenth of one.
- Held out: files whose SHA-256 is 0 modulo 50, and tasks of another seed over the same {words}
  words.
- Tokenizer: byte-level BPE, 3840 ranks learned from the training sources with digit runs
  shortened, so numbers are spelled digit by digit. Prompts go behind `[BOS]`.

## Run

    python -m training.k3_tiny.train --minutes {asked} --out build/k3-tiny-train
    python -m training.k3_tiny.export --run build/k3-tiny-train
    python -m training.k3_tiny.evaluate --run build/k3-tiny-train

Machine: {machine}, shared with other work during the run; PyTorch {torch},
FP32, two processes of one thread. {minutes:.1f} minutes of training, {steps} steps, {tokens:.2f}
million tokens, tasks included. Muon for matrices, Adam for the rest; experts rounded to MXFP4 in
the forward pass from {quantized:.0%} of the time on.

{curve}
`text loss`: mean cross-entropy of ordinary tokens in nats; `answers` and `right`: that of answer
tokens, and the share of them that were the most likely token.

## Held-out figures

The exported files, dequantized, in FP32 (`evaluate.py`).

{perplexity}
A task counts as solved when the greedy continuation is the whole answer with its line end. A
recall has {definitions} definitions before the gap.

{tasks}
## Samples

Prompt and continuation, {sample_tokens} tokens at most.

{samples}"""


def text(record: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole card in Markdown."""
    shape = Geometry()
    return _INTRO.format(
        **vars(shape),
        kda=", ".join(str(n) for n in range(shape.layers) if n not in shape.full_attention),
        mla=" and ".join(str(n) for n in shape.full_attention),
        millions=figures["parameters"] / 1e6,
        asked=round(record["minutes"]),
        machine=_machine(),
        python=record["python"],
        torch=record["torch"],
        minutes=record["minutes"],
        steps=record["steps"],
        tokens=record["tokens"] / 1e6,
        curve=_curve(record["curve"]),
        perplexity=_perplexity(figures["perplexity"]),
        tasks=_tasks(figures["tasks"]),
        samples=_samples(figures["samples"]),
        sample_tokens=figures["sample_tokens"],
        recall=batches.SHARE_RECALL,
        lines=batches.SHARE_LINES,
        text_rows=1 - batches.SHARE_RECALL - batches.SHARE_LINES,
        first=batches.FIRST_UNTIL,
        first_tasks=batches.FIRST_RECALL + batches.FIRST_LINES,
        answer=tasks.WEIGHT_ANSWER,
        words=tasks.WORDS,
        quantized=train.QUANTIZED_FROM,
        definitions=heldout.DEFINITIONS,
    )


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    bar = ["---"] * len(head)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, bar, *rows))


def _curve(curve: list[dict[str, float]]) -> str:
    every = max(1, len(curve) // 15)
    picked = curve[::-1][::every][::-1]
    rows = [
        [
            f"{p['minutes']:.1f}",
            f"{p['step']:.0f}",
            f"{p['tokens'] / 1e6:.2f}",
            f"{p['text_loss']:.3f}",
            f"{p['answer_loss']:.3f}",
            f"{p['answer_hit']:.1%}",
        ]
        for p in picked
    ]
    return _table(["minutes", "step", "M tokens", "text loss", "answers", "right"], rows)


def _perplexity(kinds: dict[str, dict[str, float]]) -> str:
    rows = [
        [kind, f"{f['tokens']:.0f}", f"{f['perplexity']:.2f}", f"{f['bits_per_byte']:.3f}"]
        for kind, f in kinds.items()
    ]
    return _table(["held-out text", "tokens", "perplexity per token", "bits per byte"], rows)


def _tasks(kinds: dict[str, dict[str, float]]) -> str:
    rows = [[k, f"{f['instances']:.0f}", f"{f['accuracy']:.1%}"] for k, f in kinds.items()]
    return _table(["task", "instances", "solved"], rows)


def _samples(samples: list[dict[str, Any]]) -> str:
    parts = []
    for s in samples:
        how = f"temperature {s['temperature']}" if s["temperature"] else "greedy"
        body = "".join(f"    {line}\n" for line in s["text"].splitlines())
        parts.append(f"{how}:\n\n{body}\n")
    return "".join(parts).rstrip() + "\n"
