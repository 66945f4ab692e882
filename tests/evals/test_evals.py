"""Perplexity and task accuracy over a fake model whose numbers are known."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch

from stepfuse import Engine
from stepfuse.chat.tokenizer import TiktokenTokenizer
from stepfuse.core.errors import CheckpointError, RequestError
from stepfuse.evals.heldout import Task, read_heldout
from stepfuse.evals.perplexity import perplexity
from stepfuse.evals.tasks import task_accuracy
from tests.support.fake_runtime import VOCAB, FakePool, expected_greedy, expected_logits, fake_parts
from tests.support.ranks import write_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> TiktokenTokenizer:
    write_tokenizer(tmp_path)
    loaded = TiktokenTokenizer.load(tmp_path)
    assert loaded is not None
    # The fake model's vocabulary is smaller than base ranks + 256: keep BOS inside it.
    assert loaded.bos_id is not None
    assert loaded.bos_id < VOCAB
    return loaded


def engine_of(tokenizer: TiktokenTokenizer | None) -> tuple[Engine, FakePool]:
    pool = FakePool()
    return Engine.of(fake_parts(pool, tokenizer=tokenizer)), pool


def test_perplexity_is_that_of_the_logits(tokenizer: TiktokenTokenizer) -> None:
    engine, pool = engine_of(tokenizer)
    texts = ["the thing", "x", "", "12345 the"]
    got = perplexity(engine, texts, window=5)
    losses = []
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), 4):
            part = [tokenizer.bos_id or 0, *ids[start : start + 4]]
            for t in range(1, len(part)):
                log = expected_logits(part[:t]).double().log_softmax(-1)
                losses.append(-float(log[part[t]]))
    assert got.tokens == len(losses) == sum(len(tokenizer.encode(t)) for t in texts)
    # FP32 log-softmax of 512 terms: the mean is right to a few units of 2^-24 of its 6 nats.
    assert got.nll == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert got.perplexity == pytest.approx(math.exp(got.nll))
    size = sum(len(t.encode()) for t in texts)
    assert got.bits_per_byte == pytest.approx(got.nll * got.tokens / size / math.log(2))
    assert pool.idle


def first_word(tokenizer: TiktokenTokenizer, text: str) -> str:
    """What the fake model says first after `text`, as far as it is whole."""
    ids = [tokenizer.bos_id or 0, *tokenizer.encode(text)]
    return tokenizer.decode(expected_greedy(ids, 1))


def test_a_task_counts_when_its_answer_is_whole(tokenizer: TiktokenTokenizer) -> None:
    engine, pool = engine_of(tokenizer)
    text, said = next(
        (text, said)
        for text in ("the", "a", "b", "c", "d", "e")
        if (said := first_word(tokenizer, text)).isascii() and said
    )
    tasks = [Task("a", text, said), Task("a", text, "no such answer\n"), Task("b", text, said)]
    got = task_accuracy(engine, tasks)
    assert got.count == {"a": 2, "b": 1, "all": 3}
    assert (got.share("a"), got.share("b"), got.share()) == (0.5, 1.0, 2 / 3)
    assert pool.idle


def test_nothing_to_evaluate_is_refused(tokenizer: TiktokenTokenizer) -> None:
    with pytest.raises(RequestError, match="no tokenizer files"):
        perplexity(engine_of(None)[0], ["x"])
    with pytest.raises(RequestError, match="no text to score"):
        perplexity(engine_of(tokenizer)[0], [""])
    with pytest.raises(RequestError, match="window is 2"):
        perplexity(engine_of(tokenizer)[0], ["x"], window=2)
    with pytest.raises(RequestError, match="no tasks"):
        task_accuracy(engine_of(tokenizer)[0], [])


def test_the_heldout_file(tmp_path: Path) -> None:
    lines = [
        {"kind": "text", "text": "abc"},
        {"kind": "recall", "prompt": "recall: a?", "answer": " b\n"},
    ]
    path = tmp_path / "heldout.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    for given in (path, tmp_path):
        read = read_heldout(given)
        assert read.texts == ("abc",)
        assert read.tasks == (Task("recall", "recall: a?", " b\n"),)
    path.write_bytes(b"plain")
    with pytest.raises(CheckpointError, match="not a held-out file"):
        read_heldout(path)
    with pytest.raises(CheckpointError, match="not a held-out file"):
        read_heldout(tmp_path / "none")
    with gzip.open(path, "wt") as file:
        file.write('{"kind": "recall"}\n')
    with pytest.raises(CheckpointError, match="KeyError"):
        read_heldout(path)


def test_scores_are_finite(tokenizer: TiktokenTokenizer) -> None:
    logits = engine_of(tokenizer)[0].score(tokenizer.encode("the thing"))
    assert torch.isfinite(logits).all()
