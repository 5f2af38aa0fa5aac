"""Makes checkpoints with random weights in the official format of `openbmb/VoxCPM2`: they speak noise.

Sizes: `tiny` for tests and the demo, `2b` with the released shapes (5 GB), `2b-2` with the released widths and few
layers. Same arguments, same bytes. audiovae.pth is written as released, and converted.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tools.families.voxcpm2.audio_vae import AUDIO_VAES, audio_vae_json, make_audio_vae
from tools.families.voxcpm2.checkpoint_tokenizer import write_tokenizer
from tools.families.voxcpm2.talker import TALKERS, make_endless, talker_json, write_talker
from tools.families.weight_files import DTYPES, maker, write_json
from voice_clone.families.voxcpm2.config import CONFIG_FILE
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.audio_encoder import AudioEncoder
from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork
from voice_clone.families.voxcpm2.talker import PARTS
from voice_clone_server.diagnosis.workload import Released
from voice_clone_server.families.voxcpm2.pickle_converter import convert

SHAPES = TALKERS
__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_checkpoint"]


def write_checkpoint(shape: str, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    config = TALKERS[shape]
    write_tokenizer(folder, config.lm_config.vocab_size)
    write_json(folder / CONFIG_FILE, {**talker_json(config), "audio_vae_config": audio_vae_json(shape)})
    write_talker(config, seed, folder, dtype, shards)
    make_audio_vae(shape, seed, folder)
    convert(folder)


make_checkpoint = maker(write_checkpoint)


def released() -> dict[str, Released]:
    """The model of 2B. All but the layers of its language models has at least 8 bits, as heads have."""
    shape = "2b"
    with torch.device("meta"):
        talker, sizes = TalkerNetwork(TALKERS[shape]), AUDIO_VAES[shape]
        encoder, decoder = AudioEncoder(sizes), AudioDecoder(sizes)
    layers = (talker.models.models().config,)
    return {shape: Released("VoxCPM2 2B", talker, PARTS, [encoder], decoder, positions=700, layers=layers)}
