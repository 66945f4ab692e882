from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from stepfuse.chat.tokenizer import SPLIT_PATTERN, TiktokenTokenizer, split_runs
from stepfuse.core.errors import CheckpointError, RequestError
from tests.support.ranks import write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TiktokenTokenizer:
    loaded = TiktokenTokenizer.load(folder)
    assert loaded is not None
    return loaded


def pieces(text: str, whole: list[str]) -> list[str]:
    """The split of `text`, seen through a vocabulary of single bytes and the expected pieces."""
    tokens = dict.fromkeys([bytes([b]) for b in range(256)] + [p.encode() for p in whole])
    ranks = {token: rank for rank, token in enumerate(tokens)}
    bpe = tiktoken.Encoding(
        name="t", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    return [bpe.decode([i]) for i in bpe.encode_ordinary(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world!", ["Hello", ",", " world", "!"]),
        ("12345", ["123", "45"]),
        ("camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
        ("I'm it's", ["I'm", " it's"]),
        ("你好，world你", ["你好", "，world", "你"]),
        ("a\n\n  b", ["a", "\n\n", " ", " b"]),
        ("x!!\n\ny", ["x", "!!\n\n", "y"]),
        ("end   ", ["end", "   "]),
    ],
)
def test_split_pattern(text: str, expected: list[str]) -> None:
    assert pieces(text, expected) == expected


def test_merges_apply_inside_pieces(tokenizer: TiktokenTokenizer) -> None:
    base = tokenizer.vocab - 256
    ids = {text: tokenizer.encode(text) for text in ("the", " the", "123", "你好", "thing")}
    assert [len(ids[t]) for t in ("the", " the", "123", "你好", "thing")] == [1, 1, 1, 1, 2]
    assert max(max(v) for v in ids.values()) < base


@given(st.text(max_size=200))
def test_round_trip(tokenizer: TiktokenTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_user_text_never_yields_a_control_token(tokenizer: TiktokenTokenizer) -> None:
    base = tokenizer.vocab - 256
    for name in tokenizer.specials.values():
        ids = tokenizer.encode(f"a{name}b")
        assert max(ids) < base
        assert tokenizer.decode(ids) == f"a{name}b"


def test_every_id_decodes(tokenizer: TiktokenTokenizer) -> None:
    base = tokenizer.vocab - 256
    assert all(tokenizer.token_bytes(i) for i in range(tokenizer.vocab))
    assert tokenizer.decode([base, base + 2]) == "[BOS]<|end_of_msg|>"
    assert tokenizer.decode([base + 7]) == f"<|reserved_token_{base + 7}|>"
    for outside in (-1, tokenizer.vocab):
        with pytest.raises(RequestError, match=f"token id {outside} is outside"):
            tokenizer.token_bytes(outside)


def test_named_tokens_from_strings_and_objects(tokenizer: TiktokenTokenizer) -> None:
    base = tokenizer.vocab - 256
    assert (tokenizer.bos_id, tokenizer.eos_id) == (base, base + 1)
    assert tokenizer.encode_prompt("the") == tokenizer.encode("the")


def test_bos_is_added_only_where_the_config_says_so(tmp_path: Path) -> None:
    base = write_tokenizer(tmp_path, {"add_bos_token": True})
    tokenizer = TiktokenTokenizer.load(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode_prompt("the")[0] == base
    assert tokenizer.encode_prompt("") == [base]


@pytest.mark.parametrize("char", ["z", " ", "!", "你", "1"])
def test_long_runs_take_linear_time(tokenizer: TiktokenTokenizer, char: str) -> None:
    def seconds(length: int) -> float:
        text = char * length
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            ids = tokenizer.encode(text)
            best = min(best, time.perf_counter() - started)
        assert tokenizer.decode(ids) == text
        return best

    # Twice as long is measured four times longer at n^2 (and more by a backtracking pattern); a
    # floor of 20 ms keeps timer noise of very short runs out.
    assert seconds(100_000) < 3 * 4 * max(seconds(25_000), 0.02)


def test_split_runs_cuts_only_beyond_the_limit() -> None:
    assert list(split_runs("", 3)) == []
    assert list(split_runs("aaa", 3)) == ["aaa"]
    assert list(split_runs("aaaa", 3)) == ["aaa", "a"]
    assert list(split_runs("aaa   bbbb", 3)) == ["aaa   bbb", "b"]
    assert list(split_runs("a    b", 3)) == ["a   ", " b"]


def test_a_folder_without_ranks_has_no_tokenizer(tmp_path: Path) -> None:
    assert TiktokenTokenizer.load(tmp_path) is None


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("not base64 ranks", "not a list of"),
        ("YQ== 0\nYg== 2\n", "are not 0..1"),
        ("YQ== 0\n", "no rank for single byte 0"),
        ("", "ranks are not"),
    ],
)
def test_bad_ranks_are_refused(tmp_path: Path, ranks: str, message: str) -> None:
    (tmp_path / "tiktoken.model").write_text(ranks)
    with pytest.raises(CheckpointError, match=message):
        TiktokenTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"added_tokens_decoder": {"5": {"content": "x"}}}, "outside the reserved ids"),
        ({"added_tokens_decoder": {"300": {}}}, "bad entry '300'"),
        ({"added_tokens_decoder": []}, "is not an object"),
    ],
)
def test_bad_names_are_refused(tmp_path: Path, config: dict[str, object], message: str) -> None:
    write_tokenizer(tmp_path, config)
    with pytest.raises(CheckpointError, match=message):
        TiktokenTokenizer.load(tmp_path)


def test_broken_config_json_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        TiktokenTokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="expected an object"):
        TiktokenTokenizer.load(tmp_path)
