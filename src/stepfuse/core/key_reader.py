"""Typed reading of config keys: a value of the wrong type or size is refused by its full name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepfuse.core.errors import ConfigError

# No member comes near this; larger values come from broken or hostile files.
SIZE_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Keys of one mapping; `where` is its dotted prefix in messages ("text_config.")."""

    raw: Mapping[str, Any]
    where: str = ""

    def fail(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"config key '{self.where}{key}' {problem}")

    def size(self, key: str, *, low: int = 1, high: int = SIZE_MAX) -> int:
        """An integer in [low, high]."""
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"is {value!r}: expected an integer from {low} to {high}")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.raw.get(key) is None else self.size(key)

    def multiple(self, key: str, of: int) -> int:
        """A positive integer that the kernels' layout can hold."""
        value = self.size(key)
        if value % of:
            raise self.fail(key, f"is {value}: expected a multiple of {of}")
        return value

    def number(self, key: str, *, low: float, high: float) -> float:
        """A finite number strictly between the bounds."""
        value = self.raw.get(key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is None or not number or not math.isfinite(value) or not low < value < high:
            raise self.fail(key, f"is {value!r}: expected a number between {low:g} and {high:g}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r}: expected true or false")
        return value

    def mapping(self, key: str) -> KeyReader:
        value = self.raw.get(key)
        if not isinstance(value, Mapping):
            raise self.fail(key, f"is {type(value).__name__}: expected an object")
        return KeyReader(value, f"{self.where}{key}.")

    def words(self, key: str, allowed: Mapping[str, Any], count: int) -> list[Any]:
        """A list of `count` words, each replaced by what `allowed` says it means."""
        value = self.raw.get(key)
        if not isinstance(value, list) or len(value) != count:
            found = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
            raise self.fail(key, f"has {found}: expected a list of {count} layers")
        strange = sorted({str(v) for v in value if not isinstance(v, str) or v not in allowed})
        if strange:
            raise self.fail(key, f"holds {strange}: expected only {sorted(allowed)}")
        return [allowed[v] for v in value]

    def layer_numbers(self, key: str, layers: int) -> set[int]:
        """A list of 1-based layer numbers as 0-based indices."""
        value = self.raw.get(key)
        if not isinstance(value, list):
            raise self.fail(key, f"is {value!r}: expected a list of layer numbers")
        for number in value:
            if isinstance(number, bool) or not isinstance(number, int):
                raise self.fail(key, f"holds {number!r}: expected integers")
            if not 1 <= number <= layers:
                raise self.fail(key, f"holds {number}: layers count from 1 to {layers}")
        if len(set(value)) != len(value):
            raise self.fail(key, "names a layer twice")
        return {number - 1 for number in value}

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id, a list of them or nothing."""
        value = self.raw.get(key)
        many = [] if value is None else value if isinstance(value, list) else [value]
        for token in many:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise self.fail(key, f"is {value!r}: expected token ids")
        return tuple(many)
