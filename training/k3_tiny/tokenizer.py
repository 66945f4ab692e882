"""Byte-level BPE in the form Kimi models ship: `tiktoken.model` and `tokenizer_config.json`.

3840 base ranks are learned from the standard library's sources; 256 reserved ids follow them and
carry K3's names. Digit runs are shortened to one digit before training, so no merge of digits is
learned and every number is spelled digit by digit, which makes small sums learnable.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BASE_RANKS = 3840
RESERVED = 256
VOCAB = BASE_RANKS + RESERVED
BOS, EOS, END_OF_MSG, OPEN, CLOSE, SEP = range(BASE_RANKS, BASE_RANKS + 6)
PAD = VOCAB - 1

NAMES: dict[int, str] = {
    BOS: "[BOS]",
    EOS: "[EOS]",
    END_OF_MSG: "<|end_of_msg|>",
    OPEN: "<|open|>",
    CLOSE: "<|close|>",
    SEP: "<|sep|>",
    PAD: "[PAD]",
}

_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# The Kimi line's pre-tokenizer: Han runs, cased words, digits by three, punctuation, white space.
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def special_tokens() -> dict[str, int]:
    """All 256 reserved ids by name; the unnamed ones read `<|reserved_token_N|>`."""
    ids = range(BASE_RANKS, VOCAB)
    return {NAMES.get(i, f"<|reserved_token_{i}|>"): i for i in ids}


def train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of `size` pieces with Kimi's pre-tokenizer, digit runs shortened to "0"."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((re.sub(r"\d+", "0", t) for t in texts), trainer)
    return bpe


def ranks_of(bpe: Tokenizer) -> dict[bytes, int]:
    """tiktoken's ranks: the 256 bytes first, then each merge's piece in the order learned."""
    to_byte = {c: b for b, c in _byte_characters().items()}
    ranks = {bytes([b]): b for b in range(256)}
    for left, right in json.loads(bpe.to_str())["model"]["merges"]:
        piece = bytes(to_byte[c] for c in left + right)
        ranks.setdefault(piece, len(ranks))
    return ranks


def train_ranks(texts: Iterable[str]) -> dict[bytes, int]:
    """Learn `BASE_RANKS` ranks. Raises ValueError where the texts hold too few pieces."""
    ranks = ranks_of(train_bpe(texts, BASE_RANKS))
    if len(ranks) != BASE_RANKS:
        raise ValueError(f"{len(ranks)} ranks learned, {BASE_RANKS} wanted")
    return ranks


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte, as the tokenizers library spells them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    rest = [b for b in range(256) if b not in table]
    return table | {b: chr(256 + n) for n, b in enumerate(rest)}


def save(ranks: dict[bytes, int], folder: Path) -> None:
    """Write `tiktoken.model` (base64 piece, rank) and `tokenizer_config.json`."""
    lines = [f"{base64.b64encode(p).decode()} {r}\n" for p, r in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {
        str(i): {
            "content": name,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for i, name in NAMES.items()
    }
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "bos_token": NAMES[BOS],
        "eos_token": NAMES[EOS],
        "pad_token": NAMES[PAD],
        "add_bos_token": True,  # every training row begins with [BOS]
        "model_max_length": 8192,
        "added_tokens_decoder": added,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def read_ranks(folder: Path) -> dict[bytes, int]:
    """The ranks of a folder's `tiktoken.model`."""
    ranks: dict[bytes, int] = {}
    for line in (folder / "tiktoken.model").read_text().splitlines():
        piece, rank = line.split()
        ranks[base64.b64decode(piece)] = int(rank)
    return ranks


def load(folder: Path) -> tiktoken.Encoding:
    """The tokenizer of a folder that `save` wrote."""
    return encoding_of(read_ranks(folder))


def encoding_of(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """The tokenizer of these ranks; reserved ids only where the ranks are all there."""
    return tiktoken.Encoding(
        name="k3-tiny",
        pat_str=PATTERN,
        mergeable_ranks=ranks,
        special_tokens=special_tokens() if len(ranks) == BASE_RANKS else {},
    )
