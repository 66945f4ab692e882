"""Write a trained `k3-tiny` in the released format.

    python -m training.k3_tiny.export --run build/k3-tiny-train --out src/stepfuse/bundled/k3_tiny

Experts become MXFP4; conv weights, output norms, decay parameters and the router's selection bias
stay FP32, as K3's files hold them; everything else is BF16.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from training.k3_tiny import heldout, mxfp4, tokenizer
from training.k3_tiny.geometry import Geometry
from training.k3_tiny.model import K3

PREFIX = "language_model."
DEFAULT_OUT = Path("src/stepfuse/bundled/k3_tiny")
FP32 = ("A_log", "dt_bias", "e_score_correction_bias", "conv1d.weight", "o_norm.weight")


def released(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under the released names and in the released types."""
    out: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        stem, _, last = (PREFIX + name).rpartition(".")
        if last == "w13":
            gate, up = value.chunk(2, dim=1)
            out |= _packed(stem, "w1", gate) | _packed(stem, "w3", up)
        elif last == "w2":
            out |= _packed(stem, "w2", value)
        else:
            kept = name.endswith(FP32)
            out[PREFIX + name] = value.to(torch.float32 if kept else torch.bfloat16).contiguous()
    return out


def _packed(stem: str, part: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """One projection of every expert, `weight` [E, out, in]."""
    packed, scale = mxfp4.pack(weight)
    out: dict[str, torch.Tensor] = {}
    for e in range(len(weight)):
        out[f"{stem}.{e}.{part}.weight_packed"] = packed[e].clone()
        out[f"{stem}.{e}.{part}.weight_scale"] = scale[e].clone()
    return out


def restored(folder: Path, shape: Geometry) -> K3:
    """The exported model, unpacked to FP32 and read from its files alone."""
    found = load_file(folder / "model.safetensors")
    model = K3(shape)
    state: dict[str, torch.Tensor] = {}
    for name in model.state_dict():
        stem, _, last = (PREFIX + name).rpartition(".")
        if last == "w13":
            pair = [_unpacked(found, stem, part, shape.experts) for part in ("w1", "w3")]
            state[name] = torch.cat(pair, dim=1)
        elif last == "w2":
            state[name] = _unpacked(found, stem, "w2", shape.experts)
        else:
            state[name] = found[PREFIX + name].float()
    model.load_state_dict(state)
    return model.eval()


def _unpacked(found: dict[str, torch.Tensor], stem: str, part: str, count: int) -> torch.Tensor:
    names = [f"{stem}.{e}.{part}.weight" for e in range(count)]
    return torch.stack([mxfp4.unpack(found[n + "_packed"], found[n + "_scale"]) for n in names])


def export(run: Path, out: Path) -> None:
    """Write config, weights, tokenizer, generation config and held-out set into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    save_file(released(state), out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(tokenizer.read_ranks(run), out)
    generation = {
        "bos_token_id": tokenizer.BOS,
        "eos_token_id": [tokenizer.END_OF_MSG, tokenizer.EOS],
        "do_sample": True,
        "temperature": 0.7,
    }
    for name, content in (("config", Geometry().config()), ("generation_config", generation)):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    heldout.write(tokenizer.load(out), out / "heldout.jsonl.gz")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("build/k3-tiny-train"))
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    args = parser.parse_args()
    export(args.run, args.out)
    size = sum(f.stat().st_size for f in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
