"""PyTorch as a peer process: eager, op by op, on the same checkpoint.

`serve CHECKPOINT --threads N [--experts bf16|stored]` answers requests as `peer_llama_cpp` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import get_args

import torch

from stepfuse.bench.pytorch_model import PlainCaches, PlainDecoder
from stepfuse.bench.pytorch_weights import ExpertForm, load_plain, read_once


def run(decoder: PlainDecoder, kind: str, rows: int, steps: int) -> list[float]:
    """Milliseconds of each of `steps` steps; see peer_llama_cpp for the kinds."""
    if kind == "decode":
        caches = PlainCaches(decoder.g, rows, steps + 1)
        return [_timed(decoder, (rows, 1), caches) for _ in range(steps + 1)][1:]
    if kind == "verify":
        caches = PlainCaches(decoder.g, 1, 1 + steps * rows)
        _timed(decoder, (1, 1), caches)
        return [_timed(decoder, (1, rows), caches) for _ in range(steps)]
    prompts = [PlainCaches(decoder.g, 1, rows) for _ in range(steps)]
    return [_timed(decoder, (1, rows), caches, every_row=False) for caches in prompts]


def _timed(
    decoder: PlainDecoder, shape: tuple[int, int], caches: PlainCaches, every_row: bool = True
) -> float:
    tokens = torch.randint(0, decoder.g.vocab, shape)
    begin = time.perf_counter()
    decoder.forward(tokens, caches, every_row)
    return (time.perf_counter() - begin) * 1e3


def serve(checkpoint: Path, threads: int, form: ExpertForm, allow: frozenset[str]) -> None:
    """Answer requests on standard input until it closes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = load_plain(checkpoint, form, allow)
    read_once(model)
    decoder = PlainDecoder(model)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        times = run(decoder, request["kind"], int(request["rows"]), int(request["steps"]))
        print(json.dumps({"ms": times}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve")
    command.add_argument("checkpoint", type=Path)
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--experts", choices=get_args(ExpertForm), default="bf16")
    command.add_argument("--allow", action="append", default=[])
    arguments = parser.parse_args()
    allow = frozenset(arguments.allow)
    serve(arguments.checkpoint, arguments.threads, arguments.experts, allow)


if __name__ == "__main__":
    main()
