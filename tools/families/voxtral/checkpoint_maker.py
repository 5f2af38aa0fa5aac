"""Makes checkpoints with random weights in the official format of `mistralai/Voxtral-4B-TTS-2603`: they speak noise.

Sizes: `tiny` and `tiny-presets` for tests and the demo, `4b` with the released shapes (8 GB), `4b-2` with the released
widths and few layers. The released checkpoint lacks the codec's encoder, and so do `4b`, `4b-2` and `tiny-presets`;
`4b-encoder`, `4b-2-encoder` and `tiny` have it. Same arguments, same bytes. The
preset voices are written as released, as pickles, and converted.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tools.families.voxtral.checkpoint_config import SHAPES, VOICES, Shape, model_params
from tools.families.voxtral.checkpoint_tokenizer import write_tokenizer
from tools.families.voxtral.checkpoint_weights import END_ROW, HEAD, model_shapes, random_tensor
from tools.families.weight_files import DTYPES, maker, noise_of, with_zero_row, write_json, write_weights
from voice_clone.families.voxtral.checkpoint import Checkpoint
from voice_clone.families.voxtral.codec_networks import CodecDecoder
from voice_clone.families.voxtral.config import MODEL, VOICE_FOLDER, VoxtralConfig, load_config
from voice_clone.families.voxtral.talker import VoxtralTalker, layout
from voice_clone.families.voxtral.talker_network import TalkerNetwork
from voice_clone_server.diagnosis.workload import Released
from voice_clone_server.families.voxtral.pickle_converter import convert

__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_checkpoint", "write_configuration"]


def write_checkpoint(sizes: Shape, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    write_configuration(sizes, folder)
    checkpoint = Checkpoint(folder)
    tensor = partial(random_tensor, seed=seed)
    write_weights(folder, model_shapes(checkpoint, sizes.encoder), tensor, dtype, shards, MODEL)
    (folder / VOICE_FOLDER).mkdir()
    for name, count in voice_rows(sizes).items():
        table = noise_of(f"voice {name}", (count, sizes.dim), seed).bfloat16()
        torch.save(table, folder / VOICE_FOLDER / f"{name}.pt")
    convert(folder)


make_checkpoint = maker(lambda shape, *rest: write_checkpoint(SHAPES[shape], *rest))


def write_configuration(sizes: Shape, folder: Path) -> VoxtralConfig:
    """Write all but weights and voices to the existing `folder`, and read it back."""
    vocabulary = write_tokenizer(folder, sizes.vocabulary, voice_rows(sizes))
    write_json(folder / "params.json", model_params(sizes, vocabulary))
    return load_config(folder)


def released() -> dict[str, Released]:
    """The model of 4B, whose voice encoder was not released."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(SHAPES["4b"], Path(folder))
    with torch.device("meta"):
        talker, decoder = TalkerNetwork(config), CodecDecoder(config.codec)
    flow, backbone = config.flow, layout(config)
    layers = replace(
        backbone,
        hidden_size=flow.dim,
        intermediate_size=flow.hidden_dim,
        num_hidden_layers=flow.n_layers,
        num_attention_heads=flow.n_heads,
        num_key_value_heads=flow.n_kv_heads,
        head_dim=flow.head_dim,
    )
    return {
        "4b": Released(
            "Voxtral TTS 4B", talker, VoxtralTalker.places, [], decoder, positions=1000, layers=(backbone, layers)
        )
    }


def voice_rows(sizes: Shape) -> dict[str, int]:
    """Positions of each preset voice."""
    return {name: sizes.voice_rows[min(place, len(sizes.voice_rows) - 1)] for place, name in enumerate(VOICES)}


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """
    return with_zero_row(checkpoint, folder, MODEL, HEAD, END_ROW)  # far from the largest logit
