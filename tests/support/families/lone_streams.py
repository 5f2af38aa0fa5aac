"""The codes that a stream gets alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.support.families.talkers import codes_of
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.source import Frame
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

MAX_LENGTH = 96
GREEDY = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)


def solo(
    talker: Talker, config: Qwen3TTSConfig, prompt: Prompt, how: SamplingParameters, frames: int
) -> npt.NDArray[np.int32]:
    generator = Generator(talker, 1, MAX_LENGTH)
    generator.start(0, TalkerRequest(prompt, how, frames))
    return codes_of(generator, 0)


def codes_in(frame: Frame) -> npt.NDArray[np.int32]:
    assert frame.payload is not None
    return frame.payload
