"""Makes checkpoints with random weights in the official format of `fishaudio/s2-pro`: what they say is noise.

Sizes: `tiny` for tests and the demo, `s2-pro` with the released shapes (9 GB and a codec of 2 GB), `s2-pro-2` with the
released widths and 2 + 1 layers. Same arguments, same bytes. codec.pth is written as released, and converted.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from tools.families.fish_speech.checkpoint_config import (
    RELEASED_VOCABULARY,
    SHAPES,
    SPECIAL_TOKENS,
    Shape,
    model_config,
    write_tokenizer,
)
from tools.families.fish_speech.checkpoint_weights import model_shapes, random_tensor
from tools.families.weight_files import DTYPES, maker, with_zero_row, write_json, write_weights
from voice_clone.families.fish_speech.checkpoint import SLOW, Checkpoint
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.config import HEAD_DIM, MODEL, FishSpeechConfig, load_config
from voice_clone.families.fish_speech.encoder import CodecEncoder
from voice_clone.families.fish_speech.prompt import Tokenizer
from voice_clone.families.fish_speech.talker import PARTS
from voice_clone.families.fish_speech.talker_network import TalkerNetwork
from voice_clone_server.diagnosis.workload import Released
from voice_clone_server.families.fish_speech.pickle_converter import codec_shapes, convert

EMBEDDINGS = f"{SLOW}embeddings.weight"
__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_checkpoint", "write_configuration"]


def write_checkpoint(sizes: Shape, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    end = write_configuration(sizes, folder).eos_token_id
    checkpoint = Checkpoint(folder)

    def tensor(name: str, size: tuple[int, ...]) -> Tensor:
        made = random_tensor(name, size, seed)
        if name == EMBEDDINGS:
            made[end] *= 0.85  # speech ends about once in some thousand frames
        return made

    write_weights(folder, model_shapes(checkpoint), tensor, dtype, shards)
    _write_codec(folder, checkpoint, sizes, seed)
    convert(folder)


make_checkpoint = maker(lambda shape, *rest: write_checkpoint(SHAPES[shape], *rest))


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """
    end = Tokenizer(checkpoint, Checkpoint(checkpoint).config).end_token
    return with_zero_row(checkpoint, folder, MODEL, EMBEDDINGS, end)  # far from the largest logit


def released() -> dict[str, Released]:
    """S2 Pro."""
    sizes = SHAPES["s2-pro"]
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(sizes, Path(folder))
    with torch.device("meta"):
        talker, encoder, decoder = (
            TalkerNetwork(config, config.eos_token_id),
            CodecEncoder(sizes.codec),
            CodecDecoder(sizes.codec),
        )
    return {"s2-pro": Released("Fish Speech S2 Pro", talker, PARTS, [encoder], decoder, positions=1600)}


def write_configuration(sizes: Shape, folder: Path) -> FishSpeechConfig:
    """Write all but the weights to the existing `folder`, and read it back."""
    ids = write_tokenizer(folder, sizes.text_tokens)
    vocabulary = RELEASED_VOCABULARY if sizes.text_tokens else ids[SPECIAL_TOKENS[-1]] + 1
    write_json(folder / "config.json", model_config(sizes, ids, vocabulary))
    return load_config(folder)


def _write_codec(folder: Path, checkpoint: Checkpoint, sizes: Shape, seed: int) -> None:
    """codec.pth as released: both spellings of weight norm, and tables and masks that the official classes keep."""
    tensors: dict[str, Tensor] = {}
    for name, shape in codec_shapes(checkpoint, sizes.codec).items():
        spelled = name
        if not name.startswith("quantizer."):
            spelled = re.sub(r"weight_g$", "parametrizations.weight.original0", spelled)
            spelled = re.sub(r"weight_v$", "parametrizations.weight.original1", spelled)
        tensors[spelled] = random_tensor(name, shape, seed)
    encoder, quantizer = sizes.codec_tables
    for transformer, positions in (
        ("encoder.block.4.block.5", encoder),
        ("quantizer.pre_module", quantizer),
        ("quantizer.post_module", quantizer),
    ):
        tensors[f"{transformer}.freqs_cis"] = torch.zeros(positions, HEAD_DIM // 2, 2, dtype=torch.bfloat16)
        tensors[f"{transformer}.causal_mask"] = torch.ones(positions, positions, dtype=torch.bool).tril()
    torch.save(tensors, folder / "codec.pth")
