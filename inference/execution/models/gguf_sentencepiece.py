"""SentencePiece's BPE from a GGUF file: pieces with scores, as Llama 2 and Mistral have them.

Knows: how such a vocabulary cuts a text (Kudo and Richardson 2018): of all pairs of neighbours that make a piece, the
one with the highest score is joined, the leftmost of equals, again and again; what is no piece then becomes bytes. That
is BPE whose merges are ranked by the score of what they make. Must not know: files, control tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers

from inference.execution.models.errors import ModelError

NORMAL, UNKNOWN, BYTE = 1, 2, 6  # of `tokenizer.ggml.token_type`
SPACE = "\u2581"


def sentencepiece_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Without control tokens, BOS and EOS. Raises ModelError where scores or kinds of the pieces are missing."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores, types = metadata.get("tokenizer.ggml.scores"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(scores, list) or not isinstance(types, list) or not len(scores) == len(types) == len(tokens):
        raise ModelError("the GGUF's SentencePiece vocabulary lacks a score and a kind for each piece.")
    ranks = {
        token: (-score, i) for i, (token, score, k) in enumerate(zip(tokens, scores, types, strict=True)) if k == NORMAL
    }
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [pair for _, pair in sorted(_merges(ranks))]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types))
    first = [normalizers.Prepend(SPACE)] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if first else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    return tokenizer


def _merges(ranks: Mapping[str, tuple[float, int]]) -> Iterator[tuple[tuple[float, int, int], tuple[str, str]]]:
    """Every way to make a piece of two, with its rank: the piece's score, then its id, then the longer left part."""
    for token, (score, index) in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                yield (score, index, -cut), (left, right)
