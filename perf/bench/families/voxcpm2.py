"""VoxCPM2 in the measurements of engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from perf.bench.families.family import SEED, Family, Frames, Networks
from perf.bench.reference import TEXT, TRANSCRIPT
from tools.families.voxcpm2.audio_vae import AUDIO_VAES
from tools.families.voxcpm2.talker import TALKERS
from voice_clone.autoregressive.generator import Generator
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxcpm2.audio_vae_config import CONTEXT_FRAMES, WIDTH
from voice_clone.families.voxcpm2.codec import codec_format, load_torch_decoder
from voice_clone.families.voxcpm2.config import VoxCPM2Config
from voice_clone.families.voxcpm2.family import CARD
from voice_clone.families.voxcpm2.networks.audio_decoder import AudioDecoder
from voice_clone.families.voxcpm2.networks.patch_head import SamplingParameters
from voice_clone.families.voxcpm2.networks.talker import TalkerNetwork
from voice_clone.families.voxcpm2.options import MOST_STEPS
from voice_clone.families.voxcpm2.prompt import Prompt, Tokenizer
from voice_clone.families.voxcpm2.talker import Talker, load_network, load_torch_network
from voice_clone.settings import Settings, TalkerSettings

CLIP_FRAMES = 33  # of the shipped clip


class VoxCPM2(Family):
    """A checkpoint of it.

    Attributes:
        config, tokenizer: of the checkpoint.
    """

    name = "voxcpm2"
    shape = "2b"
    chunk_frames = CARD.chunk_frames
    max_length = 512
    cpu_streams = 8
    tie = 1e-3  # of the spread of a frame: ten times what a hidden state that rounds the other way changes
    without_peers: ClassVar = {"voxcpm": "the official package is compared on a CPU alone, by tests/parity"}
    greedy_knobs: ClassVar = {}  # a frame comes from noise
    embeddings = False

    talker: Talker
    decoder: AudioDecoder

    def __init__(self, talker: Settings, decoder: Settings, fixed: bool = False) -> None:
        self.talker = load_torch_network(talker) if fixed else load_network(talker)
        self.config = self.talker.config
        self.tokenizer = Tokenizer(TalkerSettings.of(talker).checkpoint_dir, self.config)
        self.decoder, self.form = self.torch_decoder(decoder)

    @staticmethod
    def networks(shape: str, folder: Path) -> Networks:
        config = AUDIO_VAES[shape]
        return Networks(partial(_talker, TALKERS[shape]), partial(AudioDecoder, config), codec_format(config))

    @staticmethod
    def torch_decoder(settings: Settings) -> tuple[AudioDecoder, CodecFormat]:
        return load_torch_decoder(settings)

    @staticmethod
    def sampling(drawn: bool) -> SamplingParameters:
        return SamplingParameters(seed=SEED)

    @staticmethod
    def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> Prompt:
        return Prompt(**{name: tensors[name] for name in Prompt.__dataclass_fields__})

    def a_prompt(self, seed: int = 0) -> Prompt:
        """With a reference and a prompt."""
        shape = 2, CLIP_FRAMES - seed % 16, WIDTH
        reference, prompt = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return Prompt(self.tokenizer.joined_ids(TRANSCRIPT, TEXT), reference, prompt)

    def context(self, prompt: Prompt) -> npt.NDArray[np.float32]:
        return prompt.prompt_latents[-CONTEXT_FRAMES:]

    def parted(self, ours: Frames, others: Frames) -> npt.NDArray[np.bool_]:
        """No two devices make the same numbers: those that are further apart than rounding explains."""
        return np.asarray(np.abs(ours - others) > self.tie * ours.std(axis=1, keepdims=True))

    def margin(self, generator: Generator[Any], slot: int, frame: int, codes: Frames, other: Frames) -> float:
        """The largest difference, in standard deviations of the frame."""
        return float(np.abs(codes - other).max() / codes.std())


def _talker(config: VoxCPM2Config) -> TalkerNetwork:
    """Without weights. The rows of the times, which a CPU computes of the weights, are there, as when it has spoken."""
    talker = TalkerNetwork(config)
    like, count = talker.sampler.stop_head.weight, (MOST_STEPS + 1, MOST_STEPS - 1)
    rows = like.new_zeros(*count, config.dit_config.hidden_dim)
    talker.sampler.time_table = rows, like.new_zeros(count, dtype=torch.float32)
    return talker
