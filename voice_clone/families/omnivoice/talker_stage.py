"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`.

Options change how frames are made; the knobs of samplers that draw frame after frame mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.config import CODEBOOKS, FRAME_RATE, REF_RMS, TalkerConfig
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.families.omnivoice.networks.talker import Talker, use_native_code
from voice_clone.families.omnivoice.prompt import Prompt
from voice_clone.families.omnivoice.text import Tokenizer, read
from voice_clone.mask_predict.predictor import MaskRequest
from voice_clone.mask_predict.source import MaskPredictSource, load_source
from voice_clone.mask_predict.unmasking import Unmasking
from voice_clone.settings import TalkerSettings
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan
from voice_clone.stages.talker import CardTalker

PART = TalkerPart(  # a prompt needs a few rows of the table
    place="", prefix="", layers=("llm.layers.",), in_file=("llm.embed_tokens.weight",)
)
UNMASKING = {
    "num_step": "steps",
    "t_shift": "shift",
    "guidance_scale": "guidance",
    "layer_penalty_factor": "layer_penalty",
    "position_temperature": "position_temperature",
    "class_temperature": "class_temperature",
}
"""Options by which an utterance is unmasked."""


class OmniVoiceTalker(CardTalker[TalkerConfig, Tokenizer, Prompt]):
    """The talker of a checkpoint; on a CPU below fp32 with native code."""

    card, prompt, talker, places, rate = CARD, Prompt, Talker, [PART], FRAME_RATE
    read, native_code = staticmethod(read), staticmethod(use_native_code)

    @classmethod
    def load_source(cls, settings: TalkerSettings, network: Talker, frame_rate: float) -> MaskPredictSource[Prompt]:
        return load_source(settings, network)

    def plan(self, tensors: Arrays, knobs: Mapping[str, Any], options: Mapping[str, Any]) -> StreamPlan[Any]:
        """With the frames of each chunk of the text for the decoder."""
        check_plan(CARD, tensors, knobs, options)
        prompt = self.read_prompt(tensors)
        max_frames = knobs.get("max_frames")
        given = {field: options[name] for name, field in UNMASKING.items() if name in options}
        request = MaskRequest(prompt, Unmasking(seed=knobs["seed"], **given), max_frames)
        heard = tuple(_heard([int(each) for each in prompt.frames], max_frames))
        finish = FinishPlan(_rms(tensors[REF_RMS]), heard, bool(options.get("remove_silence", True)))
        return StreamPlan(request, np.zeros((0, CODEBOOKS), np.uint16), finish.arrays)

    def example(self, reference_frames: int, max_frames: int) -> Any:
        """A request of zeros, for the warm-up."""
        frames = max(1, min(max_frames, self.source.max_length - 32))
        clip = max(0, min(reference_frames, self.source.max_length - frames - 32))
        ids = np.zeros(32, np.int32)
        codes = np.zeros((clip, CODEBOOKS), np.uint16)
        prompt = Prompt(ids, np.array([len(ids)], np.int32), np.array([frames], np.int32), codes)
        return MaskRequest(prompt, Unmasking(seed=0))


def _heard(frames: list[int], most: int | None) -> Iterator[int]:
    """Those of each chunk of the text that are heard, where a stream is cut behind so many."""
    left = sum(frames) if most is None else most
    for each in frames:
        if left > 0:
            yield min(each, left)
            left -= each


def _rms(array: np.ndarray[Any, np.dtype[Any]]) -> float:
    if array.dtype != np.float32 or array.shape != (1,) or not 0 <= array[0] < np.inf:
        raise InvalidArgument(f"{REF_RMS} must be FP32 [1], finite, and not below 0")
    return float(array[0])


load_network, load_talker = OmniVoiceTalker.load_network, OmniVoiceTalker.load
