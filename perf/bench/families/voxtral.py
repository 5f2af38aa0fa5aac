"""Voxtral TTS in the measurements of engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from perf.bench.families.family import SEED, Codes, Family, Networks, random_codes
from perf.bench.reference import TEXT
from tools.families.voxtral.checkpoint_config import SHAPES
from tools.families.voxtral.checkpoint_maker import write_configuration
from voice_clone.array_kinds import as_tensor, in_kind_of
from voice_clone.autoregressive.generator import Generator
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.voxtral.codec import codec_format, load_decoder, load_torch_decoder
from voice_clone.families.voxtral.codec_networks import CodecDecoder
from voice_clone.families.voxtral.config import SPECIAL_IDS
from voice_clone.families.voxtral.family import CARD
from voice_clone.families.voxtral.flow_head import SamplingParameters
from voice_clone.families.voxtral.prompt import Prompt, Tokenizer
from voice_clone.families.voxtral.talker import CLONED, Talker, load_network, load_torch_network
from voice_clone.families.voxtral.talker_network import TalkerNetwork
from voice_clone.settings import Settings, TalkerSettings

CLIP_FRAMES = 65  # of the shipped clip


class Voxtral(Family):
    """A checkpoint of it.

    Attributes:
        config, tokenizer: of the checkpoint.
    """

    name = "voxtral"
    shape = "4b-encoder"  # the server's phases clone
    chunk_frames = CARD.chunk_frames
    max_length = 512
    cpu_streams = 8
    tie = 2e-3
    without_peers: ClassVar = {
        "vllm-omni": "its networks without its engine are no peer; perf/compare_official compares on a CPU",
    }
    greedy_knobs: ClassVar = {}  # the semantic code is always the likeliest one
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
        config = write_configuration(SHAPES[shape], folder)
        return Networks(partial(TalkerNetwork, config), partial(CodecDecoder, config.codec), codec_format(config))

    @staticmethod
    def torch_decoder(settings: Settings) -> tuple[CodecDecoder, CodecFormat]:
        return load_torch_decoder(settings)

    @staticmethod
    def sampling(drawn: bool) -> SamplingParameters:
        return SamplingParameters(seed=SEED)

    @staticmethod
    def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> Prompt:
        return Prompt(**{name: tensors[name] for name in CARD.prompt})

    def a_prompt(self, seed: int = 0) -> Prompt:
        limits = self.config.code_limits
        ids = SPECIAL_IDS + random_codes(seed, CLIP_FRAMES, limits, len(limits))
        return Prompt(self.tokenizer.before_voice, self.tokenizer.text_ids(TEXT), CLONED, ids.astype(np.uint16))

    def context(self, prompt: Prompt) -> npt.NDArray[np.uint16]:
        return prompt.codec_codes[:0]

    def margin(self, generator: Generator[Any], slot: int, frame: int, codes: Codes, other: Codes) -> float:
        """The largest of all codes that differ, which are made at once: of the semantic code its lead over the other
        one, in standard deviations of the logits; of an acoustic one the way from the end of its flow to where the
        other one begins, in standard deviations of all ends.
        """
        hidden = generator.model.hidden[slot : slot + 1]
        head, sampling = self.talker.head, self.sampling(drawn=False)
        margins = []
        if codes[0] != other[0]:
            logits = as_tensor(head.semantic(hidden)).float()[0, 1:]  # behind the end of speech
            margins.append((logits[int(codes[0])] - logits[int(other[0])]).abs() / logits.std())
        parted = torch.from_numpy(np.flatnonzero(codes[1:] != other[1:]))
        if len(parted):
            draws = head.new_draws(sampling.seed).of(frame)
            noise, guidance = (in_kind_of(hidden, each[None]) for each in (draws, head.columns(sampling)))
            ends = as_tensor(head.flow(noise, hidden, guidance))[0].cpu()
            step = 2 / (self.config.audio.acoustic_codebook_size - 1)
            made, instead = (torch.from_numpy(each[1:].astype(np.int64))[parted] for each in (codes, other))
            begins = (instead + 0.5 * (made - instead).sign()) * step - 1
            margins.append(((ends[parted] - begins).abs() / ends.std()).max())
        return max(float(margin) for margin in margins)
