"""The Kimi tokenizer: `tiktoken.model` ranks, `tokenizer_config.json` names, one split pattern."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import tiktoken

from stepfuse.core.errors import CheckpointError, RequestError

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
# Ids behind the base ranks that belong to control tokens, in every released Kimi checkpoint.
RESERVED_IDS = 256
# As the released tokenizer does: text is encoded in blocks of at most this many characters, and a
# run of (non-)whitespace is cut after so many, which keeps a pathological run from costing n^2.
BLOCK_CHARS = 400_000
RUN_CHARS = 25_000

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# The order is part of the format: Han runs, words (at most one case change), numbers by three,
# punctuation with its line ends, line ends, trailing and other white space.
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class TiktokenTokenizer:
    """Text to ids and back. User text never yields a control token: it is always ordinary BPE."""

    def __init__(self, ranks: dict[bytes, int], config: dict[str, object]) -> None:
        base = len(ranks)
        self.specials = _special_names(base, config)
        self.vocab = base + RESERVED_IDS
        self.adds_bos = config.get("add_bos_token") is True
        self.bos_id = self._named(config, "bos_token")
        self.eos_id = self._named(config, "eos_token")
        self._special_bytes = {i: name.encode() for i, name in self.specials.items()}
        self._bpe = tiktoken.Encoding(
            name="kimi", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )

    @classmethod
    def load(cls, folder: Path) -> TiktokenTokenizer | None:
        """The tokenizer of a checkpoint folder; None where it has no ranks file.

        Raises CheckpointError on a file that cannot be read as what it claims to be.
        """
        ranks_path, config_path = folder / RANKS_FILE, folder / CONFIG_FILE
        if not ranks_path.exists():
            return None
        config = _read_config(config_path) if config_path.exists() else {}
        return cls(_read_ranks(ranks_path), config)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as ordinary text, whatever markers it spells."""
        ids: list[int] = []
        for start in range(0, len(text), BLOCK_CHARS):
            for piece in split_runs(text[start : start + BLOCK_CHARS], RUN_CHARS):
                ids.extend(self._bpe.encode_ordinary(piece))
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """As `encode`, behind BOS where `tokenizer_config.json` asks for it (`add_bos_token`)."""
        ids = self.encode(text)
        return [self.bos_id, *ids] if self.adds_bos and self.bos_id is not None else ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes one id stands for (a reserved id: its name). RequestError outside the range."""
        special = self._special_bytes.get(token)
        if special is not None:
            return special
        if not 0 <= token < self.vocab:
            raise RequestError(f"token id {token} is outside the vocabulary 0..{self.vocab - 1}")
        return self._bpe.decode_single_token_bytes(token)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, invalid UTF-8 replaced by U+FFFD."""
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def _named(self, config: dict[str, object], key: str) -> int | None:
        name = config.get(key)
        if isinstance(name, dict):
            name = name.get("content")
        return next((i for i, special in self.specials.items() if special == name), None)


def split_runs(text: str, limit: int) -> Iterator[str]:
    """Pieces of `text` in which no run of white space or of anything else exceeds `limit`."""
    if len(text) <= limit:
        yield from (text,) if text else ()
        return
    start, run, in_space = 0, 0, False
    for i, char in enumerate(text):
        space = char.isspace()
        if space != in_space:
            in_space, run = space, 1
            continue
        run += 1
        if run > limit:
            yield text[start:i]
            start, run = i, 1
    if start < len(text):
        yield text[start:]


def _special_names(base: int, config: dict[str, object]) -> dict[int, str]:
    names = {i: f"<|reserved_token_{i}|>" for i in range(base, base + RESERVED_IDS)}
    added = config.get("added_tokens_decoder", {})
    if not isinstance(added, dict):
        raise CheckpointError(f"{CONFIG_FILE}: added_tokens_decoder is not an object")
    for key, entry in added.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not str(key).isdecimal() or not isinstance(content, str):
            raise CheckpointError(f"{CONFIG_FILE}: added_tokens_decoder has a bad entry {key!r}")
        if int(key) not in names:
            last = base + RESERVED_IDS - 1
            raise CheckpointError(
                f"{CONFIG_FILE}: added token {content!r} has id {key}, outside the reserved ids "
                f"{base}..{last} behind the {base} ranks of {RANKS_FILE}"
            )
        names[int(key)] = content
    return names


def _read_config(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(config).__name__}")
    return config


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Lines of `base64 rank`; ranks must be 0..n-1, each once, every single byte among them."""
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (OSError, ValueError, binascii.Error) as error:
        raise CheckpointError(f"{path}: not a list of `base64 rank` lines ({error})") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or not ranks:
        raise CheckpointError(f"{path}: {len(ranks)} ranks are not 0..{len(ranks) - 1}, each once")
    missing = [b for b in range(256) if bytes([b]) not in ranks]
    if missing:
        raise CheckpointError(f"{path}: no rank for single byte {missing[0]} ({len(missing)} such)")
    return ranks
