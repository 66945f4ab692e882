"""Stop strings over streamed text, also where a stop straddles several tokens."""

from __future__ import annotations


class StopText:
    """Holds back just as much text as could still become a stop string.

    `push` returns the text that is safe to show and whether a stop was met; the stop itself and
    what follows it are dropped. The earliest match in the text wins, the longer one on ties.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        if not self._stops:
            return text, False
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max(_open_suffix(held, stop) for stop in self._stops)
        cut = len(held) - keep
        self._held = held[cut:]
        return held[:cut], False

    def finish(self) -> str:
        """The held text, when the request ended otherwise."""
        held, self._held = self._held, ""
        return held


def _open_suffix(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
