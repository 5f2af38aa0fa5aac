"""The prompt to codec frames: a `voice_clone.stages.protocols.TalkerStage`.

Options change how frames are made; the knobs of samplers that draw frame after frame mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_projections import pack_projections
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.autoregressive.stack.to_native import Load, layer_loader
from voice_clone.batching.source import PayloadForm
from voice_clone.errors import InvalidArgument
from voice_clone.families.omnivoice.config import CODEBOOKS, FRAME_RATE, IDS, MASK, REF_RMS, TalkerConfig
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.families.omnivoice.prompt import Prompt, Tokenizer, read
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import table_rows, to_device
from voice_clone.mask_predict.predictor import MaskRequest
from voice_clone.mask_predict.source import MaskPredictSource, load_source
from voice_clone.mask_predict.unmasking import Unmasking
from voice_clone.native.matrix.linear_module import NativeLinear
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.thread_pool import leave_threads_to_native_code
from voice_clone.settings import Precision, TalkerSettings
from voice_clone.stages.loading import TalkerPart
from voice_clone.stages.protocols import Arrays, StreamPlan
from voice_clone.stages.requests import check_plan
from voice_clone.stages.talker import PlainTalker


class Qwen3(DecoderStack):
    """Qwen3's layers, without a direction, and the table of text tokens."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config, causal=False))
        self.embed_tokens = empty_table(config.vocab_size, config.hidden_size)


class Talker(nn.Module):
    """Layers, tables and heads."""

    form = PayloadForm(CODEBOOKS, np.uint16)
    mask = MASK

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.llm = Qwen3(config)
        self.audio_embeddings = empty_table(CODEBOOKS * IDS, config.hidden_size)
        self.audio_heads: nn.Module = nn.Linear(config.hidden_size, CODEBOOKS * IDS, bias=False)

    @property
    def like(self) -> Tensor:
        return self.llm.like

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def utterances(self, prompt: Prompt) -> list[tuple[int, int]]:
        return prompt.lengths

    def context(self, prompt: Prompt, index: int, first: Tensor | None) -> Tensor:
        """The ids of a chunk, then the codes of the clip or of the first chunk."""
        rows = table_rows(self.llm.embed_tokens.weight, prompt.chunks[index], self.like)
        if len(prompt.codec_codes):
            clip = torch.from_numpy(prompt.codec_codes.T.astype(np.int64))
            return torch.cat([rows, self.embed(to_device(clip, self.like.device))])
        return rows if first is None else torch.cat([rows, self.embed(first)])

    def embed(self, codes: Tensor) -> Tensor:
        """The sum of the rows of a frame's codes."""
        offsets = torch.arange(0, CODEBOOKS * IDS, IDS, device=codes.device)[:, None]
        return F.embedding(codes + offsets, self.audio_embeddings.weight).sum(dim=0)

    def logits(self, sequences: Sequence[Tensor], frames: Sequence[int]) -> list[Tensor]:
        lengths = [len(each) for each in sequences]
        most, mask = max(lengths), None
        if min(lengths) < most:
            ends = to_device(torch.tensor(lengths), self.like.device)
            mask = torch.arange(most, device=ends.device) < ends[:, None]
        hidden = self.llm.together(nn.utils.rnn.pad_sequence(list(sequences), batch_first=True), mask)
        return [
            self.audio_heads(row[end - count : end]).float().view(count, CODEBOOKS, IDS).transpose(0, 1)
            for row, end, count in zip(hidden, lengths, frames, strict=True)
        ]


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the projections and the heads of a talker by native code, unless they stay fp32: a `UseNativeCode`.

    In fp32 native code is no faster: with so many positions at once, arithmetic takes the time, not memory.
    """
    if precision == "fp32":
        for index, layer in enumerate([] if load is None else talker.llm.layers):
            assert load is not None
            load(layer, f"llm.layers.{index}")
            layer.float()
        return talker
    pack_projections(talker.llm, precision, layer_loader(load, "llm"), packed)
    talker.audio_heads = NativeLinear.of(talker.audio_heads, head_precision(precision))
    packed.keep()
    leave_threads_to_native_code()
    return talker


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


class OmniVoiceTalker(PlainTalker[TalkerConfig, Tokenizer, Prompt]):
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
