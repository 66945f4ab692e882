from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepfuse.chat.detokenize import DetokenizeStream


class Bytes:
    """Token i is the single byte i."""

    vocab = 256

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def test_a_character_split_over_tokens_comes_whole() -> None:
    stream = DetokenizeStream(Bytes())
    assert [stream.push(b) for b in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    assert stream.finish() == ""


def test_cut_inside_a_character_ends_in_one_replacement() -> None:
    stream = DetokenizeStream(Bytes())
    assert "".join(stream.push(b) for b in "a😀".encode()[:-1]) == "a"
    assert stream.finish() == "�"


@given(st.binary(max_size=64))
def test_pieces_joined_equal_one_shot(data: bytes) -> None:
    stream = DetokenizeStream(Bytes())
    text = "".join([*(stream.push(b) for b in data), stream.finish()])
    assert text == data.decode("utf-8", errors="replace")


def test_an_id_behind_the_tokenizer_reads_as_a_replacement() -> None:
    stream = DetokenizeStream(Bytes())
    assert [stream.push(i) for i in (97, 256, 98)] == ["a", "�", "b"]
