"""`quantization_config` of compressed-tensors: MXFP4 experts, and the KV cache scheme beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stepfuse.core.config import FP4_GROUP, ExpertFormat
from stepfuse.core.key_reader import KeyReader

_PACKED = "mxfp4-pack-quantized"
_WEIGHTS: Final[dict[str, tuple[object, ...]]] = {
    "dynamic": (False,),
    "group_size": (FP4_GROUP,),
    "num_bits": (4,),
    "scale_dtype": ("torch.uint8", None),
    "strategy": ("group",),
    "symmetric": (True,),
    "type": ("float",),
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """What the config says; the loader decides by what the file holds."""

    expert_format: ExpertFormat
    kv_cache_dtype: Literal["fp8"] | None


def parse_quantization(text: KeyReader, top: KeyReader) -> Quantization:
    """Read the scheme from the text config, else from the wrapper; none means BF16 experts.

    Raises ConfigError naming the key for any scheme but MXFP4 in groups of 32.
    """
    for reader in (text, top):
        if reader.raw.get("quantization_config"):
            return _parse(reader.mapping("quantization_config"))
    return Quantization("bf16", None)


def _parse(scheme: KeyReader) -> Quantization:
    for key, want in (("quant_method", "compressed-tensors"), ("format", _PACKED)):
        if scheme.raw.get(key) != want:
            raise scheme.fail(key, f"is {scheme.raw.get(key)!r}: only {want!r} is implemented")
    for key in ("sparsity_config", "transform_config"):
        if scheme.raw.get(key):
            raise scheme.fail(key, "is set: only plain MXFP4 packing is implemented")
    _check_groups(scheme)
    return Quantization("mxfp4", _kv_dtype(scheme))


def _check_groups(scheme: KeyReader) -> None:
    groups = scheme.mapping("config_groups") if "config_groups" in scheme.raw else None
    for name in groups.raw if groups else ():
        assert groups is not None
        group = groups.mapping(name)
        for key in ("input_activations", "output_activations"):
            if group.raw.get(key) is not None:
                raise group.fail(key, "is set: quantized activations are not implemented")
        _check_weights(group.mapping("weights"))


def _check_weights(weights: KeyReader) -> None:
    for key, allowed in _WEIGHTS.items():
        value = weights.raw.get(key, allowed[0])
        if value not in allowed:
            raise weights.fail(key, f"is {value!r}: only {allowed[0]!r} is implemented")


def _kv_dtype(scheme: KeyReader) -> Literal["fp8"] | None:
    """An 8-bit float cache is FP8 here; its scales are computed per token, not read."""
    wanted: Any = scheme.raw.get("kv_cache_scheme")
    if wanted is None:
        return None
    if isinstance(wanted, Mapping) and (wanted.get("num_bits"), wanted.get("type")) == (8, "float"):
        return "fp8"
    raise scheme.fail("kv_cache_scheme", f"is {wanted!r}: only 8-bit float or null is implemented")
