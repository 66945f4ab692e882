from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepfuse.engine.stopping import StopText


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    stop, shown = StopText(stops), []
    for piece in pieces:
        text, stopped = stop.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, stop.finish()], False


def test_a_stop_that_straddles_pieces_is_never_shown() -> None:
    assert run(("END",), ["ab E", "N", "D cd"]) == (["ab ", "", ""], True)


def test_a_false_start_is_shown_once_it_is_known() -> None:
    assert run(("END",), ["ab E", "N", "x"]) == (["ab ", "", "ENx", ""], False)
    assert run(("aab",), ["aa", "ab"]) == (["", "a"], True)


def test_the_earliest_stop_wins() -> None:
    assert run(("b", "ab"), ["xab"]) == (["x"], True)
    assert run(("yy", "x"), ["ax yy"]) == (["a"], True)


def test_held_text_comes_at_the_end() -> None:
    assert run(("END",), ["a EN"]) == (["a ", "EN"], False)


@given(
    st.lists(st.text("ab", max_size=3), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=2),
)
def test_pieces_equal_one_shot(pieces: list[str], stops: list[str]) -> None:
    shown, stopped = run(tuple(stops), pieces)
    text = "".join(pieces)
    found = [at for s in stops if (at := text.find(s)) >= 0]
    assert stopped == bool(found)
    if not stopped:
        assert "".join(shown) == text
    else:
        # Streaming stops at the first stop that is complete; no shown text holds a whole stop.
        joined = "".join(shown)
        assert text.startswith(joined)
        assert all(s not in joined for s in stops)
