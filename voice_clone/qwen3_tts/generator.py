"""Many streams of codec frames from one talker. Knows nothing of queues or servers.

A frame of a stream: the talker's hidden state gives codebook 0, the code predictor the other 15; their
embeddings, summed, plus one text embedding are the talker's next input. Streams sit in slots; every step advances
any subset of them by one frame in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.qwen3_tts.philox import uniforms
from voice_clone.qwen3_tts.prefill import TalkerInput, build_talker_input, prefill_length
from voice_clone.qwen3_tts.sampling import MIN_FRAMES, Sampler, SamplingParameters, penalise, suppressed_ids
from voice_clone.qwen3_tts.talker import Talker
from voice_clone.qwen3_tts.talker_request import TalkerRequest

Finish = Literal["stop", "length", "error"]


@dataclass(frozen=True, eq=False)
class Frame:
    """What one step brought for one stream.

    Attributes:
        codes: int32 [codebooks]; None if the stream ended without a frame (`stop`, `error`).
        finish: why the stream ended with this frame, or None if it goes on. `stop`: the model said so; `length`:
            this is the last frame allowed; `error`: the model's values were not finite.
    """

    codes: npt.NDArray[np.int32] | None
    finish: Finish | None


@dataclass
class _Stream:
    text: TalkerInput
    sampling: SamplingParameters
    max_frames: int
    frames: int = 0  # made so far
    finish: Finish | None = None

    def next_text(self) -> Tensor:
        """The text embedding [C] that goes with the newest frame."""
        index = self.frames - 1
        trailing = self.text.trailing_text
        return trailing[index] if index < trailing.shape[0] else self.text.pad


class Generator:
    """A frame model of `slots` concurrent streams. Not thread-safe: one engine thread calls it.

    A stream's life: `start(slot, ...)`, `step([slot, ...])` until a frame has a `finish`, `free(slot)`.
    """

    def __init__(self, talker: Talker, config: Qwen3TTSConfig, slots: int, max_length: int) -> None:
        """Preallocates all key-value memory, on the device and in the dtype of the talker's weights.

        Args:
            slots: the most streams at once.
            max_length: the most positions of one stream: prompt + frames.
        """
        self.talker = talker
        self.config = config
        self.slots = slots
        self.max_length = max_length
        self._streams: dict[int, _Stream] = {}
        self._cache = talker.new_cache(slots, max_length)
        self._predictor_cache = talker.code_predictor.new_cache(slots)
        weight, device = talker.codec_head.weight, talker.device
        self._hidden = torch.zeros(slots, config.talker.hidden_size, dtype=weight.dtype, device=device)
        self._codes = torch.zeros(slots, config.talker.num_code_groups, dtype=torch.int64, device=device)
        self._used = torch.zeros(slots, config.talker.vocab_size, dtype=torch.bool, device=device)
        self._suppressed = suppressed_ids(config.talker, device)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the talker's and the code predictor's key-value memory."""
        return self._cache.nbytes + self._predictor_cache.nbytes

    @property
    def live(self) -> frozenset[int]:
        """The slots that hold a stream, finished or not."""
        return frozenset(self._streams)

    @torch.inference_mode()
    def start(self, slot: int, request: TalkerRequest) -> None:
        """Prefill a free slot. Nothing is changed if this raises.

        Raises:
            InvalidArgument: the prompt does not suit the checkpoint, or prompt and frames do not fit the slot.
        """
        if slot in self._streams or not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is taken or none of 0..{self.slots - 1}")
        prompt, max_frames = request.prompt, request.max_frames
        prompt.check(self.config)
        if max_frames < 1:
            raise InvalidArgument(f"max_frames must be at least 1, got {max_frames}")
        length = prefill_length(prompt)
        if length + max_frames > self.max_length:
            raise InvalidArgument(
                f"text and reference take {length} positions and max_frames {max_frames}; "
                f"together at most {self.max_length} fit"
            )
        text = build_talker_input(self.talker, self.config, prompt)
        self._hidden[slot] = self.talker.prefill(self._cache, slot, text.embeds)
        self._used[slot] = False
        self._streams[slot] = _Stream(text, request.sampling, max_frames)

    @torch.inference_mode()
    def step(self, slots: Sequence[int]) -> list[Frame]:
        """Make the next frame of every listed stream, in the order of `slots`.

        The talker runs at the beginning of a step, on the frame before: a stream's first frame costs no more
        than the code predictor.
        """
        streams = [self._streams[slot] for slot in slots]
        if any(stream.finish for stream in streams):
            raise ValueError("a listed stream has ended; free its slot")
        if not streams:
            return []
        self._advance(sorted(slot for slot in slots if self._streams[slot].frames))
        codes, finite = self._sample(slots, streams)
        return [self._frame(stream, row, bool(ok)) for stream, row, ok in zip(streams, codes, finite, strict=True)]

    def free(self, slot: int) -> None:
        """End the stream in `slot`, finished or not; the slot may be started again."""
        stream = self._streams.pop(slot)
        if stream.finish == "error" or not stream.frames:  # not finite, or not known to be
            self._cache.wipe(slot, stream.text.embeds.shape[0] + stream.frames)

    def _advance(self, slots: list[int]) -> None:
        """Talker step: the newest frame of each listed stream and its text -> the next hidden state."""
        if not slots:
            return
        streams = [self._streams[slot] for slot in slots]
        rows = torch.tensor(slots, device=self.talker.device)
        text = torch.stack([stream.next_text() for stream in streams])
        embeds = self.talker.embed_frames(self._codes[rows]) + text
        positions = [stream.text.embeds.shape[0] + stream.frames - 1 for stream in streams]
        self._hidden[rows] = self.talker.decode(self._cache, slots, positions, embeds)

    def _sample(
        self, slots: Sequence[int], streams: list[_Stream]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Hidden states -> codes int32 [B, 16] and whether each stream's values were finite, bool [B]."""
        talker, device = self.talker, self.talker.device
        ids, groups = self.config.talker, self.config.talker.num_code_groups
        rows = torch.tensor(slots, device=device)
        draws = uniforms([stream.sampling.seed for stream in streams], [stream.frames for stream in streams], groups)
        uniform = torch.from_numpy(draws).to(device)
        knobs = [stream.sampling for stream in streams]
        first = Sampler([(k.do_sample, k.temperature, k.top_k, k.top_p) for k in knobs], ids.vocab_size, device)
        rest = Sampler(
            [(k.subtalker_do_sample, k.subtalker_temperature, k.subtalker_top_k, k.subtalker_top_p) for k in knobs],
            ids.code_predictor_config.vocab_size,
            device,
        )
        limits = torch.tensor([(s.sampling.repetition_penalty, s.frames >= MIN_FRAMES) for s in streams], device=device)

        hidden = self._hidden[rows]
        logits = penalise(talker.codec_head(hidden).float(), self._used[rows], limits[:, :1])
        finite = torch.isfinite(logits).all(dim=-1)
        logits = logits.masked_fill(self._suppressed, -torch.inf)
        may_stop = limits[:, 1] != 0
        eos = ids.codec_eos_token_id
        logits[:, eos] = torch.where(may_stop, logits[:, eos], -torch.inf)
        code0 = first(logits, uniform[:, 0])

        def choose(logits: Tensor, book: int) -> Tensor:
            nonlocal finite
            logits = logits.float()
            finite = finite & torch.isfinite(logits).all(dim=-1)
            return rest(logits, uniform[:, book])

        # A stream that stops here runs through the predictor too: to leave it out, the device would have to wait.
        embed0 = talker.model.codec_embedding(code0)
        codes = talker.code_predictor.predict(self._predictor_cache, hidden, code0, embed0, choose)
        self._codes[rows] = codes
        self._used[rows, code0] = True
        result = torch.cat([codes, finite[:, None]], dim=1).cpu().numpy()  # the one wait of a step
        return result[:, :-1].astype(np.int32), result[:, -1] != 0

    def _frame(self, stream: _Stream, codes: npt.NDArray[np.int32], finite: bool) -> Frame:
        if not finite:
            stream.finish = "error"
            return Frame(None, "error")
        if codes[0] == self.config.talker.codec_eos_token_id:
            stream.finish = "stop"
            return Frame(None, "stop")
        stream.frames += 1
        if stream.frames == stream.max_frames:
            stream.finish = "length"
        return Frame(codes, stream.finish)
