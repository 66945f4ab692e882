"""config.json to Geometry: both members, the released form and the one transformers saves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepfuse.core import config_keys as keys
from stepfuse.core.config import FP4_GROUP, Geometry
from stepfuse.core.errors import ConfigError
from stepfuse.core.key_reader import KeyReader
from stepfuse.core.quantization import parse_quantization
from stepfuse.core.read_geometry import ConfigForm, Source, read_geometry


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """`notices`: what was accepted knowingly. `kv_cache_dtype`: what the checkpoint asks for."""

    geometry: Geometry
    form: ConfigForm
    notices: tuple[str, ...]
    kv_cache_dtype: Literal["fp8"] | None


def parse_config(raw: Mapping[str, Any], allow_keys: frozenset[str] = frozenset()) -> ParsedConfig:
    """Validate a config.json and return the model's shape.

    `allow_keys`: dotted names of unknown keys to accept knowingly. Raises ConfigError naming the
    key for anything unknown, missing, contradictory or out of range.
    """
    source = _find_text_config(raw)
    notices = _check_keys(source, allow_keys)
    quantization = parse_quantization(source.text, source.top)
    geometry = read_geometry(source, quantization.expert_format)
    check_geometry(geometry)
    if quantization.kv_cache_dtype is not None:
        notices += ("the checkpoint asks for an FP8 KV cache: kv_cache_dtype='fp8' follows it",)
    return ParsedConfig(geometry, source.form, notices, quantization.kv_cache_dtype)


def check_geometry(geometry: Geometry) -> None:
    """Raise ConfigError where the packed layouts cannot hold the shape."""
    moe = geometry.moe
    if moe.expert_format == "mxfp4":
        for key, value in (
            ("moe_intermediate_size", moe.expert_width),
            ("routed_expert_hidden_size", moe.latent or geometry.hidden),
        ):
            if value % FP4_GROUP:
                raise ConfigError(
                    f"config key '{key}' is {value}: MXFP4 experts share a scale over {FP4_GROUP} "
                    f"columns, so it must be a multiple of {FP4_GROUP}"
                )
    if moe.top_k > moe.experts:
        raise ConfigError(
            f"config key 'num_experts_per_token' is {moe.top_k}, "
            f"more than the {moe.experts} of 'num_experts'"
        )


def _find_text_config(raw: Mapping[str, Any]) -> Source:
    top = KeyReader(raw)
    model_type = raw.get("model_type")
    if model_type == "kimi_k3":
        text = top.mapping("text_config")
        if text.raw.get("model_type", "kimi_linear") != "kimi_linear":
            raise text.fail("model_type", f"is {text.raw['model_type']!r}: expected 'kimi_linear'")
        return Source(text, top, "k3", "released", "language_model.")
    if model_type != "kimi_linear":
        raise top.fail("model_type", f"is {model_type!r}: expected 'kimi_k3' or 'kimi_linear'")
    if any(raw.get(key) is not None for key in keys.K3_ONLY):
        return Source(top, top, "k3", "released", "")
    saved = "linear_attn_config" not in raw and "layer_types" in raw
    return Source(top, top, "kimi_linear", "transformers" if saved else "released", "")


def _check_keys(source: Source, allow_keys: frozenset[str]) -> tuple[str, ...]:
    text = source.text
    known = keys.READ | keys.HARMLESS | frozenset(keys.PINNED)
    strange = [text.where + key for key in text.raw if key not in known]
    if source.top is not text:
        known = keys.WRAPPER_READ | keys.WRAPPER_HARMLESS | frozenset(keys.PINNED)
        strange += [key for key in source.top.raw if key not in known]
    if "linear_attn_config" in text.raw:
        linear = text.mapping("linear_attn_config")
        strange += [linear.where + key for key in linear.raw if key not in keys.LINEAR_ATTN_READ]
        _require(linear, keys.REQUIRED_LINEAR_ATTN)
    for reader in (text, source.top) if source.top is not text else (text,):
        if reader.raw.get("quantization_config"):
            scheme = reader.mapping("quantization_config")
            strange += [
                scheme.where + key for key in scheme.raw if key not in keys.QUANTIZATION_READ
            ]
    _refuse_unknown(strange, allow_keys)
    _check_pinned(source.top)
    _check_pinned(text)
    _require(text, _required(source))
    return tuple(f"config key '{key}' is not known and was accepted on request" for key in strange)


def _required(source: Source) -> frozenset[str]:
    if source.member == "k3":
        return keys.REQUIRED_K3
    return keys.REQUIRED_SAVED if source.form == "transformers" else keys.REQUIRED_RELEASED


def _refuse_unknown(strange: Iterable[str], allow_keys: frozenset[str]) -> None:
    refused = sorted(key for key in strange if key not in allow_keys)
    if refused:
        raise ConfigError(
            f"config keys not known to this version: {', '.join(refused)}. An unknown key may "
            "change what the model computes; to accept them knowingly pass "
            f"--allow-config-keys {','.join(refused)} (allow_config_keys= in Python)"
        )


def _require(reader: KeyReader, required: frozenset[str]) -> None:
    missing = sorted(reader.where + key for key in required if key not in reader.raw)
    if missing:
        raise ConfigError(
            f"config is missing {', '.join(missing)}: these decide what the model computes and "
            "have no default; take config.json from the checkpoint's release"
        )


def _check_pinned(reader: KeyReader) -> None:
    for key, allowed in keys.PINNED.items():
        if key not in reader.raw:
            continue
        value = reader.raw[key]
        if not any(type(value) is type(good) and value == good for good in allowed):
            raise reader.fail(key, f"is {value!r}: only {allowed[0]!r} is implemented")
