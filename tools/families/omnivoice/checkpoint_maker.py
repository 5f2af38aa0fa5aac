"""Makes checkpoints with random weights in the official format of `k2-fsa/OmniVoice`: noise.

Sizes: `tiny` for tests and the demo, `released` with the released shapes (2.5 GB and 0.8 GB), `released-2` with the
released widths and two layers of the talker. Same arguments, same bytes.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tools.families.omnivoice.audio_tokenizer import CODECS, make_audio_tokenizer
from tools.families.omnivoice.talker import TALKERS, make_talker
from tools.families.weight_files import DTYPES, maker
from voice_clone.families.omnivoice.networks.codec_decoder import CodecDecoder
from voice_clone.families.omnivoice.networks.voice_encoder import VoiceEncoder
from voice_clone.families.omnivoice.talker import PART, Talker
from voice_clone.mask_predict.source import stream_bytes
from voice_clone_server.diagnosis.workload import Released

SHAPES = TALKERS
__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_checkpoint"]


def write_checkpoint(shape: str, seed: int, folder: Path, dtype: str = "fp32", shards: int = 1) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    make_talker(shape, seed, folder, dtype, shards)
    make_audio_tokenizer(shape, seed, folder)


make_checkpoint = maker(write_checkpoint, "fp32")


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A folder that links to the files of `checkpoint`: no speech of this family ends by itself, for its length is
    known before it begins. `duration` makes it as long as is wanted.
    """
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    return folder


def released() -> dict[str, Released]:
    """The model of 0.6B. It keeps no keys and values; a chunk has 15 s of speech, 10 s of a clip, and the text."""
    shape = "released"
    with torch.device("meta"):
        talker = Talker(TALKERS[shape])
        encoder, decoder = VoiceEncoder(CODECS[shape]), CodecDecoder(CODECS[shape])
    chunk = stream_bytes(talker, 800)
    found = Released("OmniVoice 0.6B", talker, [PART], [encoder], decoder, positions=0, other_stream_bytes=chunk)
    return {shape: found}
