"""Tasks with exact answers, solved greedily."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepfuse.core.errors import RequestError
from stepfuse.engine.engine import Engine
from stepfuse.engine.request import SamplingParams
from stepfuse.evals.heldout import Task
from stepfuse.evals.perplexity import tokenizer_of


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`solved` of `count` tasks per kind, and together under "all"."""

    solved: dict[str, int]
    count: dict[str, int]

    def share(self, kind: str = "all") -> float:
        return self.solved[kind] / self.count[kind]


def task_accuracy(engine: Engine, tasks: Sequence[Task]) -> Accuracy:
    """A task is solved when the greedy completion spells the whole answer, its line end included.

    Prompts begin with BOS where the tokenizer names one, as held-out rows do in training.
    """
    if not tasks:
        raise RequestError("no tasks: the held-out file has none")
    tokenizer = tokenizer_of(engine)
    lead = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    prompts = [[*lead, *tokenizer.encode(task.prompt)] for task in tasks]
    params = [
        SamplingParams(temperature=0, max_tokens=len(tokenizer.encode(task.answer)) + 1)
        for task in tasks
    ]
    outputs = engine.generate(prompts, params)
    solved: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for task, output in zip(tasks, outputs, strict=True):
        good = output.text is not None and output.text.startswith(task.answer)
        for kind in (task.kind, "all"):
            count[kind] += 1
            solved[kind] += good
    return Accuracy({kind: solved[kind] for kind in count}, dict(count))
