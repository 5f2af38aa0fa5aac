"""Many streams of codec frames from one talker. Knows nothing of queues or servers.

A frame of a stream: the talker's hidden state gives codebook 0, the code predictor the other 15; their
embeddings, summed, plus one text embedding are the talker's next input. Streams sit in slots; every step advances
any subset of them by one frame in one batch.

The order of floating-point sums depends on the shape of a batch, so a stream's logits move by rounding with its
neighbours, and a code may flip where two are all but equally likely. A deterministic generator always computes all
slots, occupied or not, and lets each stream attend by itself: shapes are then the same whoever is there, and a
request with a seed gives the same codes, bit for bit, alone and in any company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voice_clone.errors import InvalidArgument
from voice_clone.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.qwen3_tts.philox import uniforms
from voice_clone.qwen3_tts.prefill import TalkerInput, build_talker_input, prefill_length
from voice_clone.qwen3_tts.repetition import Repetition
from voice_clone.qwen3_tts.sampling import MIN_FRAMES, Sampler, SamplingParameters, penalise, suppressed_ids
from voice_clone.qwen3_tts.talker import Talker
from voice_clone.qwen3_tts.talker_request import TalkerRequest

Finish = Literal["stop", "length", "runaway", "error"]


@dataclass(frozen=True, eq=False)
class Frame:
    """What one step brought for one stream.

    Attributes:
        codes: int32 [codebooks]; None if the stream ended without a frame (`stop`, `error`).
        finish: why the stream ended with this frame, or None if it goes on. `stop`: the model said so; `length`:
            this is the last frame allowed; `runaway`: its text is said and it repeats itself; `error`: the model's
            values were not finite.
    """

    codes: npt.NDArray[np.int32] | None
    finish: Finish | None


@dataclass
class _Stream:
    text: TalkerInput
    sampling: SamplingParameters
    max_frames: int
    read: int = 0  # prompt positions prefilled
    frames: int = 0  # made so far
    finish: Finish | None = None
    repetition: Repetition = field(default_factory=Repetition)

    @property
    def unread(self) -> int:
        return self.text.embeds.shape[0] - self.read

    @property
    def position(self) -> int:
        """Where the newest frame goes, after the prompt and the frames before."""
        return self.text.embeds.shape[0] + self.frames - 1

    def next_text(self) -> Tensor:
        """The text embedding [C] that goes with the newest frame."""
        index = self.frames - 1
        trailing = self.text.trailing_text
        return trailing[index] if index < trailing.shape[0] else self.text.pad


class Generator:
    """A frame model of `slots` concurrent streams. Not thread-safe: one engine thread calls it.

    A stream's life: `start(slot, ...)`, `prefill(slot, ...)` until its prompt is read, `step([slot, ...])` until a
    frame has a `finish`, `free(slot)`.
    """

    def __init__(
        self,
        talker: Talker,
        config: Qwen3TTSConfig,
        slots: int,
        max_length: int,
        deterministic: bool = False,
        runaway_frames: int | None = None,
    ) -> None:
        """Preallocates all key-value memory, on the device and in the dtype of the talker's weights.

        Args:
            slots: the most streams at once.
            max_length: the most positions of one stream: prompt + frames.
            deterministic: neighbours change no bit of a stream; costs the work of all slots in every step.
            runaway_frames: a stream that repeats itself for so many frames after its text ends; None: never.
        """
        self.talker = talker
        self.config = config
        self.slots = slots
        self.max_length = max_length
        self.deterministic = deterministic
        self._runaway_frames = runaway_frames
        self._streams: dict[int, _Stream] = {}
        # Where rows without a stream write: behind everybody's last position.
        self._cache = talker.new_cache(slots, max_length + 1 if deterministic else max_length)
        self._predictor_cache = talker.code_predictor.new_cache(slots)
        weight, device = talker.model.norm.weight, talker.device
        self._hidden = torch.zeros(slots, config.talker.hidden_size, dtype=weight.dtype, device=device)
        self._codes = torch.zeros(slots, config.talker.num_code_groups, dtype=torch.int64, device=device)
        self._used = torch.zeros(slots, config.talker.vocab_size, dtype=torch.bool, device=device)
        self._suppressed = suppressed_ids(config.talker, device)
        nothing = torch.zeros(0, config.talker.hidden_size, dtype=weight.dtype, device=device)
        greedy = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)
        self._nobody = _Stream(TalkerInput(nothing, nothing, self._hidden[0].clone()), greedy, max_frames=0, frames=1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the talker's and the code predictor's key-value memory."""
        return self._cache.nbytes + self._predictor_cache.nbytes

    @property
    def live(self) -> frozenset[int]:
        """The slots that hold a stream, finished or not."""
        return frozenset(self._streams)

    @torch.inference_mode()
    def start(self, slot: int, request: TalkerRequest) -> int:
        """Give a free slot to a stream. Nothing is changed if this raises.

        Returns: the positions of its prompt, which `prefill` reads.
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
        self._used[slot] = False
        self._streams[slot] = _Stream(text, request.sampling, max_frames)
        return length

    @torch.inference_mode()
    def prefill(self, slot: int, count: int) -> None:
        """Read the next `count` positions of a started stream's prompt."""
        stream = self._streams[slot]
        embeds = stream.text.embeds[stream.read : stream.read + count]
        self._hidden[slot] = self.talker.prefill(self._cache, slot, embeds, stream.read)
        stream.read += count

    @torch.inference_mode()
    def step(self, slots: Sequence[int]) -> list[Frame]:
        """Make the next frame of every listed stream, in the order of `slots`; of a prompt, first read what is left.

        The talker runs at the beginning of a step, on the frame before: a stream's first frame costs no more
        than the code predictor. If this raises, no stream has moved, and the step may be tried again.
        """
        streams = [self._streams[slot] for slot in slots]
        if any(stream.finish for stream in streams):
            raise ValueError("a listed stream has ended; free its slot")
        if not streams:
            return []
        for slot, stream in zip(slots, streams, strict=True):
            if stream.unread:
                self.prefill(slot, stream.unread)
        self._advance([slot for slot in slots if self._streams[slot].frames])
        codes, finite = self._sample(slots)
        return [self._frame(stream, row, bool(ok)) for stream, row, ok in zip(streams, codes, finite, strict=True)]

    def free(self, slot: int) -> None:
        """End the stream in `slot`, finished or not; the slot may be started again."""
        stream = self._streams.pop(slot)
        if stream.finish == "error" or not stream.frames:  # not finite, or not known to be
            self._cache.wipe(slot, stream.position + 1)

    def reset(self) -> None:
        """Forget all streams, whatever state they are in."""
        streams, self._streams = self._streams, {}
        for slot, stream in streams.items():
            self._cache.wipe(slot, stream.position + 1)

    def _rows(self, slots: Sequence[int]) -> tuple[list[int], list[_Stream]]:
        """The batch that computes `slots`: a row's slot and stream."""
        if not self.deterministic:
            ordered = sorted(slots)
            return ordered, [self._streams[slot] for slot in ordered]
        rows = list(range(self.slots))
        return rows, [self._streams[slot] if slot in slots else self._nobody for slot in rows]

    def _advance(self, slots: Sequence[int]) -> None:
        """Talker step: the newest frame of each listed stream and its text -> the next hidden state."""
        if not slots:
            return
        rows, streams = self._rows(slots)
        where = torch.tensor(rows, device=self.talker.device)
        text = torch.stack([stream.next_text() for stream in streams])
        embeds = self.talker.embed_frames(self._codes[where]) + text
        if not self.deterministic:
            positions = [stream.position for stream in streams]
            self._hidden[where] = self.talker.decode(self._cache, rows, positions, embeds)
            return
        # A row of nobody's writes behind everything and sees one position, whatever lies there.
        positions = [self.max_length if stream is self._nobody else stream.position for stream in streams]
        seen = [1 if stream is self._nobody else stream.position + 1 for stream in streams]
        hidden = self.talker.decode(self._cache, rows, positions, embeds, seen)
        chosen = torch.tensor(slots, device=self.talker.device)
        self._hidden[chosen] = hidden[chosen]

    def _sample(self, slots: Sequence[int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Hidden states -> codes int32 [B, 16] and whether each stream's values were finite, bool [B]."""
        talker, device = self.talker, self.talker.device
        rows, streams = self._rows(slots)
        ids, groups = self.config.talker, self.config.talker.num_code_groups
        where = torch.tensor(rows, device=device)
        draws = uniforms([stream.sampling.seed for stream in streams], [stream.frames for stream in streams], groups)
        uniform = torch.from_numpy(draws).to(device)
        knobs = [stream.sampling for stream in streams]
        first = Sampler([(k.do_sample, k.temperature, k.top_k, k.top_p) for k in knobs], ids.vocab_size, device)
        limits = torch.tensor([(s.sampling.repetition_penalty, s.frames >= MIN_FRAMES) for s in streams], device=device)

        hidden = self._hidden[where]
        logits = penalise(talker.codec_head(hidden).float(), self._used[where], limits[:, :1])
        finite = torch.isfinite(logits).all(dim=-1)
        logits = logits.masked_fill(self._suppressed, -torch.inf)
        may_stop = limits[:, 1] != 0
        eos = ids.codec_eos_token_id
        logits[:, eos] = torch.where(may_stop, logits[:, eos], -torch.inf)
        code0 = first(logits, uniform[:, 0])

        codes = torch.zeros(len(rows), groups, dtype=torch.int64, device=device)
        codes[:, 0] = code0
        going = self._going(code0)
        if going:
            some = torch.tensor(going, device=device)
            rest, fine = self._complete([knobs[row] for row in going], hidden[some], code0[some], uniform[some])
            codes[some] = rest
            finite[some] &= fine
        order = torch.tensor([rows.index(slot) for slot in slots], device=device)
        chosen = torch.tensor(slots, device=device)
        codes, finite = codes[order], finite[order]
        result = torch.cat([codes, finite[:, None]], dim=1).cpu().numpy()  # the one wait of a step
        # Nothing of a stream has been changed up to here, but for what a second try would compute again.
        self._codes[chosen] = codes
        self._used[chosen, codes[:, 0]] = True
        return result[:, :-1].astype(np.int32), result[:, -1] != 0

    def _going(self, code0: Tensor) -> list[int]:
        """The rows that the code predictor completes.

        On a CPU those that have not just stopped; on a GPU all, because it would have to be waited for to know, and
        in a deterministic generator all, because the shape must not change.
        """
        if self.deterministic or code0.device.type != "cpu":
            return list(range(code0.shape[0]))
        eos = self.config.talker.codec_eos_token_id
        return [row for row, code in enumerate(code0.tolist()) if code != eos]

    def _complete(
        self, knobs: list[SamplingParameters], hidden: Tensor, code0: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Code predictor: hidden [B, C], code0 int64 [B], uniform [B, 16] -> codes int64 [B, 16], finite bool [B]."""
        finite = torch.ones_like(code0, dtype=torch.bool)
        draw = Sampler(
            [(k.subtalker_do_sample, k.subtalker_temperature, k.subtalker_top_k, k.subtalker_top_p) for k in knobs],
            self.config.talker.code_predictor_config.vocab_size,
            code0.device,
        )

        def choose(logits: Tensor, book: int) -> Tensor:
            nonlocal finite
            logits = logits.float()
            finite = finite & torch.isfinite(logits).all(dim=-1)
            return draw(logits, uniform[:, book])

        embed0 = self.talker.model.codec_embedding(code0)
        codes = self.talker.code_predictor.predict(self._predictor_cache, hidden, code0, embed0, choose)
        return codes, finite

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
        elif self._is_runaway(stream, int(codes[0])):
            stream.finish = "runaway"
        return Frame(codes, stream.finish)

    def _is_runaway(self, stream: _Stream, code0: int) -> bool:
        if self._runaway_frames is None or stream.frames <= stream.text.trailing_text.shape[0]:
            return False
        return stream.repetition.add(code0) >= self._runaway_frames
