"""Store llama.cpp's logits of a random K3 in tests/golden/llama_cpp_k3.npz.

    python -m tests.golden.make_llama_cpp_k3 --python PEERS_PYTHON --source LLAMA_CPP_TREE

`make peers` builds both: an interpreter with llama-cpp-python 0.3.36, and the source tree with its
converter. All weights go to F32, so llama.cpp rounds nothing. Its graph uses rms_norm_eps where the
reference model uses 1e-6 (latent norms, L2 norms), so the shape here sets all of them to 1e-6.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SEED = 11
TOKENS = 24
HERE = Path(__file__).parent


def oracle_geometry() -> Any:
    """The shape whose logits are stored."""
    from tests.support.geometries import small_k3

    return replace(small_k3("bf16"), norm_eps=1e-6)


def oracle_tokens(vocab: int) -> list[int]:
    """The token ids whose logits are stored."""
    return np.random.RandomState(SEED).randint(0, vocab, TOKENS).tolist()


def convert(checkpoint: Path, out: Path, source: Path) -> None:
    """Run llama.cpp's converter (peers' interpreter), without a tokenizer."""
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import convert_hf_to_gguf  # type: ignore[import-not-found]
    from conversion.kimi_k3 import KimiK3Model  # type: ignore[import-not-found]

    KimiK3Model.set_vocab = lambda self: self._set_vocab_none()
    sys.argv = ["convert", str(checkpoint), "--outtype", "f32", "--outfile", str(out)]
    convert_hf_to_gguf.main()


def evaluate(gguf: Path, tokens: list[int], vocab: int) -> np.ndarray:
    """Logits FP32 [T, vocab] of one sequence, one token per call (peers' interpreter)."""
    import llama_cpp  # type: ignore[import-not-found]

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), params)
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_threads, options.n_threads_batch = 256, 1, 1
    options.type_k = options.type_v = 0  # F32 cache
    options.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, options)
    rows = []
    for position, token in enumerate(tokens):
        batch = llama_cpp.llama_batch_init(1, 0, 1)
        batch.n_tokens, batch.token[0], batch.pos[0] = 1, token, position
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, 1
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit(f"llama_decode failed at token {position}")
        row = llama_cpp.llama_get_logits(context)
        rows.append(np.ctypeslib.as_array(row, (vocab,)).copy())
    return np.stack(rows)


def make(python: Path, source: Path) -> None:
    """Write the checkpoint here, convert and evaluate it in the peers' interpreter, store."""
    from tests.support.checksum import checksum
    from tests.support.random_weights import random_tensors
    from tests.support.saved_checkpoint import save_released

    geometry = oracle_geometry()
    tensors = random_tensors(geometry, SEED)
    tokens = oracle_tokens(geometry.vocab)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        save_released(work / "model", geometry, tensors)
        script = [str(python), __file__]
        paths = [str(work / "model"), str(work / "model.gguf"), str(source)]
        subprocess.run([*script, "convert", *paths], check=True)
        ids = ",".join(map(str, tokens))
        out = work / "logits.npy"
        arguments = [str(work / "model.gguf"), ids, str(geometry.vocab), str(out)]
        subprocess.run([*script, "evaluate", *arguments], check=True)
        logits = np.load(out)
    origin = (
        "llama.cpp of llama-cpp-python 0.3.36, src/models/kimi-k3.cpp on CPU, weights and cache "
        f"F32; checkpoint random_tensors(oracle_geometry(), {SEED})"
    )
    np.savez_compressed(
        HERE / "llama_cpp_k3.npz",
        tokens=np.array(tokens, dtype=np.int32),
        logits=logits.astype(np.float32),
        weights_checksum=checksum(tensors),
        origin=origin,
    )


def main() -> None:
    if sys.argv[1:2] == ["convert"]:
        convert(*map(Path, sys.argv[2:5]))
    elif sys.argv[1:2] == ["evaluate"]:
        gguf, ids, vocab, out = sys.argv[2:6]
        np.save(out, evaluate(Path(gguf), [int(t) for t in ids.split(",")], int(vocab)))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--python", type=Path, required=True)
        parser.add_argument("--source", type=Path, required=True)
        arguments = parser.parse_args()
        make(arguments.python, arguments.source)


if __name__ == "__main__":
    main()
