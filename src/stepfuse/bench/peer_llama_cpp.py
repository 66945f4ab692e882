"""llama.cpp as a peer process: converts a checkpoint, then times decode steps on request.

Runs under the peers' own interpreter (`make peers`) and imports nothing of stepfuse. Commands:
`convert CHECKPOINT OUT --source LLAMA_CPP_TREE` and `serve GGUF --threads N --tokens T`, which
answers one JSON line per request line: `{"kind": ..., "rows": R, "steps": N}` gives
`{"ms": [...]}`, one time per step. Kinds: `decode` (R sequences of one row), `verify` (one
sequence of R rows with logits for each), `prefill` (a prompt of R tokens, logits of the last).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

MAX_ROWS = 8
# Rows of one batch: longer prompts go in several.
BATCH = 512


def convert(checkpoint: Path, out: Path, source: Path) -> None:
    """Write `out` (GGUF, BF16 trunk, MXFP4 experts as stored) with llama.cpp's own converter."""
    sys.path.insert(0, str(source / "gguf-py"))
    sys.path.insert(0, str(source))
    from conversion.kimi_k3 import KimiK3Model
    from conversion.kimi_linear import KimiLinearModel

    # A synthetic checkpoint carries no tokenizer; the weights do not depend on one.
    KimiK3Model.set_vocab = lambda self: self._set_vocab_none()
    KimiLinearModel.set_vocab = lambda self: self._set_vocab_none()
    import convert_hf_to_gguf

    out_type = ["--outtype", "bf16", "--outfile", str(out)]
    sys.argv = ["convert_hf_to_gguf.py", str(checkpoint), *out_type]
    convert_hf_to_gguf.main()


class Session:
    """One loaded model and context of MAX_ROWS separate sequences."""

    def __init__(self, gguf: Path, threads: int, tokens: int) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        self._keep = silent
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_mmap = False
        self.model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), model_params)
        if not self.model:
            raise SystemExit(f"llama.cpp could not load {gguf}")
        params = llama_cpp.llama_context_default_params()
        # Every sequence gets an equal share of the context, in whole blocks of 256.
        params.n_ctx = MAX_ROWS * -(-tokens // 256) * 256
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.random = random.Random(0)

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def decode(self, rows: list[tuple[int, int, bool]]) -> float:
        """Decode rows of (sequence, position, wants logits); returns milliseconds."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, wants) in enumerate(rows):
            batch.token[i] = self.random.randrange(self.vocab)
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wants
        begin = time.perf_counter()
        status = self.api.llama_decode(self.context, batch)
        self.api.llama_synchronize(self.context)
        elapsed = (time.perf_counter() - begin) * 1e3
        if status != 0:
            raise SystemExit(f"llama_decode failed with {status}")
        return elapsed

    def run(self, kind: str, rows: int, steps: int) -> list[float]:
        self.clear()
        times: list[float] = []
        if kind == "decode":
            for step in range(steps + 1):
                times.append(self.decode([(row, step, True) for row in range(rows)]))
            return times[1:]
        if kind == "verify":
            self.decode([(0, 0, True)])
            for step in range(steps):
                first = 1 + step * rows
                times.append(self.decode([(0, first + row, True) for row in range(rows)]))
            return times
        for _ in range(steps):
            self.clear()
            spent = 0.0
            for first in range(0, rows, BATCH):
                last = min(first + BATCH, rows)
                spent += self.decode([(0, p, p == rows - 1) for p in range(first, last)])
            times.append(spent)
        return times


def serve(gguf: Path, threads: int, tokens: int) -> None:
    """Answer requests on standard input until it closes."""
    session = Session(gguf, threads, tokens)
    # Touches every expert once: the first read of freshly written memory can be slow.
    session.run("prefill", min(tokens, BATCH), 1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        times = session.run(request["kind"], int(request["rows"]), int(request["steps"]))
        print(json.dumps({"ms": times}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("convert")
    make.add_argument("checkpoint", type=Path)
    make.add_argument("out", type=Path)
    make.add_argument("--source", type=Path, required=True)
    run = commands.add_parser("serve")
    run.add_argument("gguf", type=Path)
    run.add_argument("--threads", type=int, default=2)
    run.add_argument("--tokens", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.command == "convert":
        convert(arguments.checkpoint, arguments.out, arguments.source)
    else:
        serve(arguments.gguf, arguments.threads, arguments.tokens)


if __name__ == "__main__":
    main()
