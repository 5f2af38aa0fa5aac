"""Fish Speech in the measurements of engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from perf.bench.families.family import SEED, CodeFamily, Networks, random_codes
from perf.bench.reference import TEXT, TRANSCRIPT
from tools.families.fish_speech import checkpoint_maker
from tools.families.fish_speech.checkpoint_config import SHAPES
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.codec.decoder import CodecFormat
from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.fish_speech.codec import codec_format, load_decoder, load_torch_decoder
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.family import CARD
from voice_clone.families.fish_speech.prompt import Prompt, Tokenizer
from voice_clone.families.fish_speech.talker import Talker, load_network, load_torch_network
from voice_clone.families.fish_speech.talker_network import TalkerNetwork
from voice_clone.settings import Settings, TalkerSettings

CLIP_FRAMES = 112  # as many seconds as the shipped clip


class FishSpeech(CodeFamily):
    """A checkpoint of it.

    Attributes:
        config, tokenizer: of the checkpoint.
    """

    name = "fish_speech"
    shape = "s2-pro"
    chunk_frames = CARD.chunk_frames
    max_length = 512  # 64 streams of more in two engines, with the weights, leave nothing of 80 GB
    cpu_streams = 8  # their prompts alone are 17 TFLOP
    tie = 2e-3  # of 36 + 4 layers with sums of up to 9728 terms
    without_peers: ClassVar = {
        "fish-speech": "its networks without an engine are no peer; perf/compare_official compares on a CPU",
    }
    embeddings = False

    talker: Talker

    def __init__(self, talker: Settings, decoder: Settings, fixed: bool = False) -> None:
        self.talker = load_torch_network(talker) if fixed else load_network(talker)
        self.config = self.talker.config
        self.tokenizer = Tokenizer(TalkerSettings.of(talker).checkpoint_dir, self.config)
        stage = load_decoder(decoder)
        self.decoder, self.form = stage.decoder, stage.form

    @staticmethod
    def networks(shape: str, folder: Path) -> Networks:
        sizes = SHAPES[shape]
        config = checkpoint_maker.write_configuration(sizes, folder)
        talker = partial(TalkerNetwork, config, config.eos_token_id)
        return Networks(talker, partial(CodecDecoder, sizes.codec), codec_format(sizes.codec))

    @staticmethod
    def torch_decoder(settings: Settings) -> tuple[WindowedDecoder, CodecFormat]:
        return load_torch_decoder(settings)

    @staticmethod
    def sampling(drawn: bool) -> OneSampling:
        return OneSampling(**{**CARD.knobs, "seed": SEED, "do_sample": drawn})

    @staticmethod
    def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> Prompt:
        return Prompt(**{name: tensors[name] for name in CARD.prompt})

    def a_prompt(self, seed: int = 0) -> Prompt:
        limits = self.config.code_limits
        codes = random_codes(seed, CLIP_FRAMES, limits, len(limits)).astype(np.uint16)
        return Prompt(self.tokenizer.reference_ids(TRANSCRIPT), codes, self.tokenizer.text_ids(TEXT))

    def context(self, prompt: Prompt) -> npt.NDArray[np.uint16]:
        return prompt.reference_codes[:0]
