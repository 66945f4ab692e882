"""Text in and out of the engine: detokenizing, stop strings, eos, through a real tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfuse import Engine, SamplingParams
from stepfuse.chat.tokenizer import TiktokenTokenizer
from tests.support.fake_runtime import FakePool, FakeRuntime, fake_parts
from tests.support.ranks import write_tokenizer


class Scripted(FakeRuntime):
    """Says a given text whatever it is asked, one token per step."""

    script: tuple[int, ...] = ()

    def run(self, step):  # type: ignore[no-untyped-def]
        output = super().run(step)
        for row, seq in enumerate(s for s in step.sequences if s.logits == "last"):
            done = seq.cached + seq.rows - self.prompt_len
            output.logits[row, self.script[min(done, len(self.script) - 1)]] = 1e3
        return output

    prompt_len = 0


@pytest.fixture
def tokenizer(tmp_path: Path) -> TiktokenTokenizer:
    write_tokenizer(tmp_path)
    loaded = TiktokenTokenizer.load(tmp_path)
    assert loaded is not None
    return loaded


def scripted(tokenizer: TiktokenTokenizer, script: list[int]) -> Engine:
    pool = FakePool()
    standard, fused = Scripted(pool), Scripted(pool)
    for runtime in (standard, fused):
        runtime.script = tuple(script)
        runtime.prompt_len = len(tokenizer.encode("the"))
    eos = frozenset([tokenizer.eos_id or 0])
    parts = fake_parts(pool, standard=standard, fused=fused, tokenizer=tokenizer, eos_ids=eos)
    return Engine.of(parts)


def both_ways(engine: Engine, params: SamplingParams) -> tuple[str, str, str]:
    """The text in one piece, the text streamed, and the reason; they must agree."""
    (output,) = engine.generate("the", params)
    deltas = list(engine.stream("the", params))
    assert deltas[-1].finish_reason == output.finish_reason
    assert output.text == "".join(d.text for d in deltas)
    assert output.token_ids == tuple(i for d in deltas for i in d.token_ids)
    assert output.prompt == "the"
    return output.text or "", "|".join(d.text for d in deltas), output.finish_reason


def test_eos_ends_and_is_not_shown(tokenizer: TiktokenTokenizer) -> None:
    eos = tokenizer.eos_id or 0
    engine = scripted(tokenizer, [*tokenizer.encode("thing"), eos])
    assert both_ways(engine, SamplingParams(temperature=0)) == ("thing", "th|ing|", "stop")
    ignoring = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)
    assert both_ways(engine, ignoring)[0] == "thing[EOS][EOS]"


def test_a_character_over_several_tokens_comes_whole(tokenizer: TiktokenTokenizer) -> None:
    ids = [*"😀x".encode()]
    engine = scripted(tokenizer, ids)
    assert both_ways(engine, SamplingParams(temperature=0, max_tokens=5))[1] == "|||😀|x"
    cut = both_ways(engine, SamplingParams(temperature=0, max_tokens=3))
    assert cut == ("�", "||�", "length")


def test_a_stop_string_over_two_tokens(tokenizer: TiktokenTokenizer) -> None:
    engine = scripted(tokenizer, [*tokenizer.encode("a thing b")])
    params = SamplingParams(temperature=0, max_tokens=20, stop=["hi"])
    text, streamed, reason = both_ways(engine, params)
    assert (text, reason) == ("a t", "stop")
    assert "h" not in streamed


def test_held_text_is_shown_when_the_request_ends(tokenizer: TiktokenTokenizer) -> None:
    engine = scripted(tokenizer, [*tokenizer.encode("a th")])
    params = SamplingParams(temperature=0, max_tokens=len(tokenizer.encode("a th")), stop=["thing"])
    assert both_ways(engine, params)[::2] == ("a th", "length")


def test_a_stop_met_in_the_last_token_is_a_stop(tokenizer: TiktokenTokenizer) -> None:
    ids = tokenizer.encode("xyz")
    engine = scripted(tokenizer, ids)
    params = SamplingParams(temperature=0, max_tokens=len(ids), stop=["yz"])
    assert both_ways(engine, params)[::2] == ("x", "stop")
