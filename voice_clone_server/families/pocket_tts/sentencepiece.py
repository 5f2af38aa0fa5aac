"""tokenizer.json of a SentencePiece model: a Unigram model with byte fallback, whose blanks are "▁"."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers

from voice_clone.errors import CheckpointError

Pieces = Sequence[tuple[str, float]]

BLANK = "▁"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of values in a protobuf message
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of a model
_UNKNOWN = 2  # a type of piece


def write_unigram(file: Path, pieces: Pieces, unknown: int) -> None:
    """Write a model without a pre-tokenizer, which would lose one of several blanks at the beginning of a text."""
    made = Tokenizer(models.Unigram([*pieces], unk_id=unknown, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    made.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.save(str(file))


def convert(model: Path, file: Path) -> None:
    """Write the tokenizer of a SentencePiece model.

    https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto

    Raises:
        CheckpointError: it is no such model, or one of another kind.
    """
    try:
        fields = list(_fields(model.read_bytes()))
        trainer, normalizer = (
            dict(_fields(next((value for name, value in fields if name == each), b"")))  # type: ignore[arg-type]
            for each in (_TRAINER, _NORMALIZER)
        )
        entries = [dict(_fields(value)) for name, value in fields if name == _PIECE]  # type: ignore[arg-type]
        pieces = [(each[1].decode(), float(each[2])) for each in entries]  # type: ignore[union-attr]
        unknown = next(place for place, each in enumerate(entries) if each.get(3) == _UNKNOWN)
    except (OSError, ValueError, KeyError, IndexError, StopIteration, AttributeError):
        raise CheckpointError(f"{model.name}: not a SentencePiece model") from None
    for name, right in (
        ("a Unigram model", trainer.get(3, 1) == 1),
        ("one with byte fallback", trainer.get(35) == 1),
        ("one that normalises nothing", normalizer.get(1) == b"identity"),
        ("one with a blank before a text", normalizer.get(3, 1) == 1),
        ("one that keeps blanks", normalizer.get(4, 1) == 0),
    ):
        if not right:
            raise CheckpointError(f"{model.name}: only {name} can be converted")
    write_unigram(file, pieces, unknown)


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a protobuf message. https://protobuf.dev/programming-guides/encoding"""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while place < len(message):
        key = varint()
        kind = key & 7
        if kind == _VARINT:
            yield key >> 3, varint()
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind) or (varint() if kind == _BYTES else -1)
        value = message[place : place + size]
        if size < 0 or len(value) != size:
            raise ValueError("not a message")
        place += size
        yield key >> 3, struct.unpack("<f", value)[0] if kind == _FIXED32 else value
