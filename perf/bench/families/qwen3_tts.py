"""Qwen3-TTS in the measurements of engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from perf.bench.families.family import SEED, CodeFamily, Networks, random_codes
from perf.bench.official.peers import Faster, Official
from perf.bench.reference import TEXT, TRANSCRIPT
from perf.bench.spent import Spent
from tools.families.qwen3_tts import checkpoint_maker
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from voice_clone.codec.decoder import CodecFormat, StreamDecoder
from voice_clone.codec.windowed_decoder import WindowedDecoder
from voice_clone.families.qwen3_tts.codec import codec_format, load_decoder, load_torch_decoder
from voice_clone.families.qwen3_tts.family import BASE
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt, Tokenizer
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker import load_network, load_torch_network, read_prompt
from voice_clone.settings import Settings, TalkerSettings

CLIP_FRAMES = 65  # of the shipped clip


def _official(folder: Path, device: str, dtype: torch.dtype) -> Any:
    model = Official(folder, device, dtype)

    def speak(frames: int) -> Spent:
        return model.speak(frames)[1]

    return speak


def _faster(folder: Path, device: str, dtype: torch.dtype) -> Any:
    if device != "cuda":
        raise ImportError("it needs a GPU")
    return Faster(folder, dtype).speak


class Qwen3TTS(CodeFamily):
    """A checkpoint of it.

    Attributes:
        config, tokenizer: of the checkpoint.
    """

    name = "qwen3_tts"
    shape = "0.6b"
    chunk_frames = BASE.chunk_frames
    max_length = 1024
    cpu_streams = 64
    tie = 1e-3
    peers: ClassVar = {"qwen-tts": _official, "faster-qwen3-tts": _faster}
    greedy_options: ClassVar = {"subtalker_do_sample": False}
    embeddings = True

    talker: NativeTalker | Talker
    decoder: StreamDecoder[Any]

    def __init__(self, talker: Settings, decoder: Settings, fixed: bool = False) -> None:
        self.talker = load_torch_network(talker) if fixed else load_network(talker)
        self.config = self.talker.config
        stage = load_decoder(decoder)
        self.decoder, self.form = stage.decoder, stage.form
        self.tokenizer = Tokenizer(TalkerSettings.of(talker).checkpoint_dir)

    @staticmethod
    def networks(shape: str, folder: Path) -> Networks:
        config = checkpoint_maker.write_configuration(SHAPES[shape], folder)
        decoder = partial(CodecDecoder, config.codec.decoder_config)
        return Networks(partial(Talker, config), decoder, codec_format(config.codec))

    @staticmethod
    def torch_decoder(settings: Settings) -> tuple[WindowedDecoder, CodecFormat]:
        return load_torch_decoder(settings)

    @staticmethod
    def sampling(drawn: bool) -> SamplingParameters:
        return SamplingParameters(seed=SEED, do_sample=drawn, subtalker_do_sample=drawn)

    @staticmethod
    def read_prompt(tensors: Mapping[str, NDArray[Any]]) -> Prompt:
        return read_prompt(tensors)

    def prompt(self, embedding: npt.NDArray[np.float32], codes: npt.NDArray[np.int32]) -> Prompt:
        """The text in the voice of these artifacts; no codes: by the embedding alone."""
        return Prompt(
            role_ids=self.tokenizer.role_ids,
            text_ids=self.tokenizer.text_ids(TEXT),
            speaker_embedding=embedding,
            reference_ids=self.tokenizer.reference_ids(TRANSCRIPT),
            reference_codes=codes,
            language_id=self.config.talker.codec_language_id["english"],
        )

    def a_prompt(self, seed: int = 0) -> Prompt:
        limit = self.config.codec.decoder_config.codebook_size
        codes = random_codes(seed, CLIP_FRAMES, limit, self.config.talker.num_code_groups)
        embedding = np.random.default_rng(seed).standard_normal(self.config.talker.hidden_size)
        return self.prompt(embedding.astype(np.float32), codes.astype(np.int32))

    def context(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        return prompt.reference_codes
