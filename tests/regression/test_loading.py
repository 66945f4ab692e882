"""Known ways to be wrong while loading, each a test with the right value.

Longer than the house's size: the list is long, and reads best in one place.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stepfuse.core.errors import CheckpointError, ConfigError, MemoryPlanError
from stepfuse.core.parse_config import parse_config
from stepfuse.weights import load as load_module
from stepfuse.weights.layout import all_fields, arena_bytes
from stepfuse.weights.load import LoadOptions, load
from stepfuse.weights.reader import open_checkpoint
from stepfuse.weights.store import KdaWeights, ModelWeights
from tests.support.files import edit_config, edit_tensors, header_of, write_raw
from tests.support.tiny import tiny_k3, tiny_kimi_linear

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
QUIET = LoadOptions(quiet=True)
K3 = "language_model.model.layers"


def a_log_of(weights: ModelWeights, layer: int = 0) -> Tensor:
    attention = weights.layers[layer].attention
    assert isinstance(attention, KdaWeights)
    return attention.a_log


def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> Tensor:
        raise AssertionError(f"allocated {size} bytes for a checkpoint that had to be refused")

    monkeypatch.setattr(load_module, "allocate_arena", refuse)


# A_log: 128 entries for 96 heads.


def put_a_log(value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    def put(tensors: dict[str, Tensor]) -> None:
        tensors[f"{K3}.0.self_attn.A_log"] = value

    return put


def test_a_log_with_a_zero_tail_is_one_value_per_head(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path, kda_heads=96, hidden=32)
    values = torch.linspace(0.1, 2.7, 96)
    edit_tensors(path, put_a_log(torch.cat((values, torch.zeros(32)))))
    assert torch.equal(a_log_of(load(path, QUIET).weights), values)


@pytest.mark.parametrize("shape", [(96,), (1, 1, 96, 1)])
def test_a_log_in_its_other_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tiny_k3(tmp_path, kda_heads=96, hidden=32)
    values = torch.linspace(0.1, 2.7, 96)
    edit_tensors(path, put_a_log(values.reshape(shape)))
    assert torch.equal(a_log_of(load(path, QUIET).weights), values)


@pytest.mark.parametrize("tail", [1e-30, float("nan"), -1.0, float("inf")])
@pytest.mark.parametrize("where", [96, 127])
def test_a_log_with_another_tail_is_refused(tmp_path: Path, tail: float, where: int) -> None:
    path = tiny_k3(tmp_path, kda_heads=96, hidden=32)
    values = torch.cat((torch.ones(96), torch.zeros(32)))
    values[where] = tail
    edit_tensors(path, put_a_log(values))
    with pytest.raises(CheckpointError, match=r"0\.self_attn\.A_log.*\[128\].*96 heads"):
        load(path, QUIET)


@pytest.mark.parametrize("shape", [(95,), (96, 32), (96, 1), (1, 96), (2, 1, 96, 1), (1, 1, 1, 96)])
def test_a_log_of_another_shape_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    path = tiny_k3(tmp_path, kda_heads=96, hidden=32)
    edit_tensors(path, put_a_log(torch.zeros(shape)))
    no_allocation(monkeypatch)
    with pytest.raises(CheckpointError, match=r"A_log.*expected.*\[96\]"):
        load(path, QUIET)


# Required keys never have a default.


@pytest.mark.parametrize(
    "key",
    [
        "activation_situ_beta",
        "activation_situ_linear_beta",
        "routed_expert_hidden_size",
        "attn_res_block_size",
    ],
)
@pytest.mark.parametrize("how", ["missing", "null"])
def test_a_k3_config_without_a_required_key_is_refused_by_name(key: str, how: str) -> None:
    raw = json.loads((CONFIGS / "kimi-k3.json").read_text())
    if how == "missing":
        del raw["text_config"][key]
    else:
        raw["text_config"][key] = None
    with pytest.raises(ConfigError, match=key):
        parse_config(raw)


# Layer lists.


def test_layer_lists_are_one_based() -> None:
    k3 = parse_config(json.loads((CONFIGS / "kimi-k3.json").read_text())).geometry
    assert k3.layer_kinds[0] == "kda"
    assert k3.dense_layers[0]
    assert not any(k3.dense_layers[1:])
    assert k3.layer_kinds[-2:] == ("mla", "mla")
    assert k3.layer_kinds[3] == "mla"
    assert k3.layer_kinds[2] == k3.layer_kinds[4] == "kda"


@pytest.mark.parametrize(
    ("name", "text_tensors"), [("kimi-k3", 497_220 - 168), ("kimi-linear-48b", 20_493)]
)
def test_the_table_names_as_many_tensors_as_the_release_holds(name: str, text_tensors: int) -> None:
    """497,220 tensors in K3's index, 168 of them of the vision tower and its projector."""
    g = parse_config(json.loads((CONFIGS / f"{name}.json").read_text())).geometry
    per_expert = 6 if g.moe.expert_format == "mxfp4" else 3
    count = 0
    for spec in all_fields(g):
        count += g.moe.experts * per_expert if spec.rule == "experts" else len(spec.names)
    assert count == text_tensors


# Tensors outside the prefix, missing and unknown tensors.


def test_tensors_outside_the_text_model_are_skipped(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)
    plain = load(path, QUIET)

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["vision_tower.encoder.blocks.0.wqkv.weight"] = torch.ones(4, 4)
        tensors["mm_projector.proj.0.weight"] = torch.ones(4, dtype=torch.float16)
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.ones(2)

    edit_tensors(path, add)
    assert torch.equal(load(path, QUIET).weights.arena, plain.weights.arena)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.output_attn_res_proj.weight",
        "model.layers.2.block_sparse_moe.experts.7.w2.weight_scale",
        "model.layers.3.self_attn.kv_b_proj.weight",
    ],
)
def test_a_missing_tensor_is_refused_before_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tiny_k3(tmp_path)
    edit_tensors(path, lambda tensors: tensors.pop(f"language_model.{name}"))
    no_allocation(monkeypatch)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(path, QUIET)


def test_a_tensor_the_geometry_has_no_place_for_is_refused(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)

    def add(tensors: dict[str, Tensor]) -> None:
        tensors[f"{K3}.1.self_attn.q_proj.bias"] = torch.zeros(4)

    edit_tensors(path, add)
    with pytest.raises(CheckpointError, match=r"q_proj\.bias"):
        load(path, QUIET)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{K3}.0.self_attn.q_proj.weight", torch.zeros(96, 32, dtype=torch.bfloat16)),
        (f"{K3}.0.self_attn.o_proj.weight", torch.zeros(96, 64, dtype=torch.bfloat16)),
        (f"{K3}.0.mlp.up_proj.weight", torch.zeros(96, 64, dtype=torch.float16)),
        (f"{K3}.1.block_sparse_moe.experts.0.w1.weight_scale", torch.zeros(32, 1)),
        (f"{K3}.0.self_attn.q_conv1d.weight", torch.zeros(96, 4, 1)),
    ],
)
def test_a_wrong_shape_or_dtype_is_refused_with_expected_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Tensor
) -> None:
    path = tiny_k3(tmp_path)
    edit_tensors(path, lambda tensors: tensors.update({name: value}))
    no_allocation(monkeypatch)
    with pytest.raises(CheckpointError) as error:
        load(path, QUIET)
    assert name in str(error.value)
    assert str(list(value.shape)) in str(error.value)
    assert "expected" in str(error.value)


# Hostile files.

HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "2^20 x 2^20": (header_of(x=("BF16", [1 << 20, 1 << 20], [0, 1 << 41])), b"\0" * 64),
    "2^20 x 2^20 over 8 bytes": (header_of(x=("BF16", [1 << 20, 1 << 20], [0, 8])), b"\0" * 8),
    "overflowing product": (header_of(x=("U8", [1 << 33, 1 << 33], [0, 0])), b""),
    "offsets past the file": (header_of(x=("U8", [16], [0, 16])), b"\0" * 8),
    "offsets reversed": (header_of(x=("U8", [8], [8, 0])), b"\0" * 8),
    "negative shape": (header_of(x=("U8", [-8], [0, 8])), b"\0" * 8),
    "negative offset": (header_of(x=("U8", [8], [-8, 0])), b"\0" * 8),
    "overlap": (header_of(x=("U8", [8], [0, 8]), y=("U8", [8], [4, 12])), b"\0" * 16),
    "unknown dtype": (header_of(x=("F4", [8], [0, 8])), b"\0" * 8),
    "boolean shape": (b'{"x":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', b"\0"),
    "float shape": (b'{"x":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}', b"\0"),
    "no shape": (b'{"x":{"dtype":"U8","data_offsets":[0,1]}}', b"\0"),
    "three offsets": (b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}', b"\0"),
    "a thousand dimensions": (header_of(x=("U8", [1] * 1000, [0, 1])), b"\0"),
    "a list": (b"[1, 2]", b""),
    "not JSON": (b"\xff\xfe{}", b""),
    "deep JSON": (b"[" * 100_000 + b"]" * 100_000, b""),
    "entry is a number": (b'{"x": 7}', b""),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_header_is_a_typed_error(tmp_path: Path, case: str) -> None:
    header, data = HOSTILE[case]
    write_raw(tmp_path / "model.safetensors", header, data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_checkpoint(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**40, 200])
def test_a_header_length_the_file_cannot_hold(tmp_path: Path, length: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}" + b"\0" * 8)
    with pytest.raises(CheckpointError, match="header length"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 9])
def test_a_file_too_short_for_a_header(tmp_path: Path, size: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match="truncated"):
        open_checkpoint(tmp_path)


def test_a_truncated_shard_is_refused_before_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_k3(tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    no_allocation(monkeypatch)
    with pytest.raises(CheckpointError, match="truncated"):
        load(path, QUIET)


def write_index(path: Path, weight_map: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_shard_missing_from_the_directory(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="missing model-00001-of-00002"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [{}, [], {"x": 3}, {"x": "../x"}, {"x": ""}, {"x": "a/b"}])
def test_an_index_that_is_none(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_checkpoint(tmp_path)


def test_a_tensor_the_index_puts_elsewhere(tmp_path: Path) -> None:
    write_raw(tmp_path / "a.safetensors", header_of(x=("U8", [1], [0, 1])), b"\0")
    write_index(tmp_path, {"x": "a.safetensors", "y": "a.safetensors"})
    with pytest.raises(CheckpointError, match="'y'"):
        open_checkpoint(tmp_path)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load(tmp_path, QUIET)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load(tmp_path, QUIET)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="object"):
        load(tmp_path, QUIET)
    with pytest.raises(CheckpointError, match=r"missing model\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("key", ["num_heads", "head_dim"])
def test_zero_heads_are_refused(tmp_path: Path, key: str) -> None:
    path = tiny_k3(tmp_path)
    edit_config(path, lambda text: text["linear_attn_config"].update({key: 0}))
    with pytest.raises(ConfigError, match=key):
        load(path, QUIET)


# Shapes of conv weights, expert widths.


def test_both_conv_shapes_give_the_same_arena(tmp_path: Path) -> None:
    path = tiny_kimi_linear(tmp_path)
    three = load(path, QUIET).weights.arena.clone()

    def flatten(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.endswith("conv1d.weight")]:
            tensors[name] = tensors[name].reshape(-1, 4)

    edit_tensors(path, flatten)
    assert torch.equal(load(path, QUIET).weights.arena, three)


def test_an_expert_width_not_divisible_by_32_is_a_clear_error(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)
    edit_config(path, lambda text: text.update(moe_intermediate_size=48))
    with pytest.raises(ConfigError, match=r"moe_intermediate_size.*48.*32"):
        load(path, QUIET)


def test_packed_is_decided_by_the_tensors_not_by_the_config(tmp_path: Path) -> None:
    path = tiny_k3(tmp_path)
    edit_config(path, lambda text: text.pop("quantization_config"))
    assert load(path, QUIET).geometry.moe.expert_format == "mxfp4"
    bf16 = tiny_k3(tmp_path, expert_format="bf16")
    scheme = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    edit_config(bf16, lambda text: text.update(quantization_config=scheme))
    assert load(bf16, QUIET).geometry.moe.expert_format == "bf16"


@pytest.mark.parametrize("part", ["w1", "w2", "w3"])
def test_scale_byte_255_is_refused_at_load(tmp_path: Path, part: str) -> None:
    path = tiny_k3(tmp_path)
    name = f"{K3}.4.block_sparse_moe.experts.7.{part}.weight_scale"

    def put(tensors: dict[str, Tensor]) -> None:
        tensors[name][-1, -1] = 255

    edit_tensors(path, put)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(path, QUIET)


# Memory.

MEASURE = """
import resource, sys
from pathlib import Path
import numpy, torch
from stepfuse.weights.load import LoadOptions, load
load(Path(sys.argv[1]), LoadOptions(quiet=True))  # imports and pools are warm from here on
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load(Path(sys.argv[2]), LoadOptions(quiet=True))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
print(model.weights.arena.numel())
"""


def test_peak_memory_stays_within_the_plan(tmp_path: Path) -> None:
    """Arena plus two threads' blocks; the files behind it are given back as they are read."""
    small = tiny_k3(tmp_path)
    big = tiny_k3(
        tmp_path / "big", hidden=1024, vocab=16384, dense=2048, experts=64, width=256, latent=1024
    )
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(big)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, arena = (int(line) for line in out.stdout.split())
    assert arena > 160 << 20
    assert peak - arena < 80 << 20


def test_weights_that_do_not_fit_are_refused_before_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_k3(tmp_path)
    no_allocation(monkeypatch)
    monkeypatch.setattr("stepfuse.weights.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(MemoryPlanError, match="available"):
        load(path, QUIET)


def test_the_arena_is_the_plan(tmp_path: Path) -> None:
    model = load(tiny_k3(tmp_path), QUIET)
    assert 0 <= arena_bytes(model.geometry) - model.weights.arena.numel() < 64
