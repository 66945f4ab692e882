"""What a step takes and gives, the same for both runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows one sequence contributes to a step, in token order.

    `slot`: its index in the state pools. `cached`: tokens already in the caches. `pages`: its page
    table, int32, long enough for cached + rows tokens. `logits`: for which rows logits are wanted.
    """

    slot: int
    rows: int
    cached: int
    pages: NDArray[np.int32]
    logits: Literal["last", "all", "none"] = "last"


@dataclass(frozen=True, slots=True)
class StepInput:
    """`tokens` int32 [R]: the rows of `sequences` one after the other."""

    tokens: NDArray[np.int32]
    sequences: tuple[SequenceRows, ...]

    @property
    def width(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """`logits` FP32 [n, vocab], the wanted rows in order; valid until the runtime's next step.

    `native_ns`: the step's own clock, 0 where the runtime has none.
    """

    logits: Tensor
    native_ns: int = 0
