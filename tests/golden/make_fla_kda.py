"""Store fla's naive KDA and gates on random inputs in tests/golden/fla_kda.npz.

    python -m tests.golden.make_fla_kda

needs fla-core 0.6 and einops (`make oracles`). The functions are plain PyTorch but sit in files
that import GPU packages, so they are taken out of their files by name.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SEED = 13
HERE = Path(__file__).parent
HEADS, DIM, TOKENS = 2, 32, 64
EPS = 1e-6
# The softplus gate goes past -2661 per token, the largest seen in real Kimi-Linear weights.
GATES = {"lower_bound": -5.0, "softplus": None}


def take(module: str, names: list[str]) -> dict[str, Any]:
    """Functions `names` of fla's `module`, executed without the module's imports."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / f"{module}.py"
    tree = ast.parse(path.read_text())
    wanted = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    from einops import rearrange

    space: dict[str, Any] = {"torch": torch, "F": F, "rearrange": rearrange}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    return {name: space[name] for name in names}


def inputs() -> dict[str, Tensor]:
    """q, k, v, z [T, H, D] (z before the gate), beta [T, H] before sigmoid, a_log [H], dt_bias."""
    state = np.random.RandomState(SEED)

    def normal(*shape: int) -> Tensor:
        values = torch.from_numpy(state.standard_normal(shape).astype(np.float32))
        return values.to(torch.bfloat16).float()

    shape = (TOKENS, HEADS, DIM)
    made = {name: normal(*shape) for name in ("q", "k", "v")}
    made["z"] = normal(*shape) * 3
    made["z"][:, :, ::5] += 900.0
    made["beta"] = normal(TOKENS, HEADS)
    made["a_log"] = normal(HEADS)
    made["dt_bias"] = normal(HEADS * DIM)
    made["initial"] = normal(HEADS, DIM, DIM)
    return made


def fla_outputs(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Per gate: log decays, outputs and final states of the recurrent and the chunked form."""
    ops = take("ops/kda/naive", ["naive_recurrent_kda", "naive_chunk_kda"])
    gates = take("ops/kda/gate", ["naive_kda_gate", "naive_kda_lowerbound_gate"])
    q, k = (F.silu(x[n]) for n in "qk")
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + EPS) for t in (q, k))
    out: dict[str, Tensor] = {}
    for name, bound in GATES.items():
        if bound is None:
            g = gates["naive_kda_gate"](x["z"], x["a_log"], x["dt_bias"])
        else:
            gate = gates["naive_kda_lowerbound_gate"]
            g = gate(x["z"], x["a_log"], x["dt_bias"], lower_bound=bound)
        out[f"{name}.g"] = g
        packed = [t[None] for t in (q, k, F.silu(x["v"]), g, torch.sigmoid(x["beta"]))]
        keep = {"initial_state": x["initial"][None], "output_final_state": True}
        for form in ("recurrent", "chunk"):
            o, state = ops[f"naive_{form}_kda"](*packed, **keep)
            out[f"{name}.{form}.o"], out[f"{name}.{form}.state"] = o[0], state[0]
    return out


def main() -> None:
    values = {name: t.numpy() for name, t in fla_outputs(inputs()).items()}
    version = importlib.metadata.version("fla-core")
    origin = (
        f"fla-core {version} ops/kda/naive.py and gate.py in FP32; inputs of RandomState({SEED}) "
        "as make_fla_kda.inputs() builds them"
    )
    np.savez_compressed(HERE / "fla_kda.npz", origin=origin, **values)


if __name__ == "__main__":
    main()
