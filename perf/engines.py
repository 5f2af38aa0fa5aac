"""Two engines that speak the same: the official package, and ours without a server."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from perf.machine import give_threads, keep_threads
from perf.reference import CLIP, TRANSCRIPT
from voice_clone import compute
from voice_clone.audio import decode
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.stream import Frame
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.batching.steps import Steps
from voice_clone.codec.chunk import Chunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.codec.decoder import StreamDecoder
from voice_clone.codec.graphed_streams import Graphs
from voice_clone.families.qwen3_tts.decoder_stage import codec_format, load_codec_decoder
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.talker_stage import load_network
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.layers.graphs import GraphRunner
from voice_clone.native.matrix.weights import Precision
from voice_clone.settings import Settings

TEXT = "The boats lay still on the silver water, and nobody said a word until the lamp went out."
MAX_LENGTH = 2048  # positions of a stream
SCHEDULE = (1, 2, 4, 8, 12)  # frames of the first chunks; the last repeats

Codes = npt.NDArray[np.int32]


MEASURES = ("first_audio", "prefill", "frame", "code2wav", "total")  # the times of `Spent`


@dataclass(frozen=True)
class Spent:
    """Seconds of one speech, or of several side by side.

    Attributes:
        first_audio: to the first samples.
        prefill: of the prompt.
        frame: a step of the talker and one of the code predictor, the first frame left out.
        code2wav: of the codec decoder.
        total: of all.
        decoded: no time: frames that code2wav decoded of each speech; those of the reference count where it did.
    """

    first_audio: float
    prefill: float
    frame: float
    code2wav: float
    total: float
    decoded: int


class Official:
    """The official model."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        from tests.support.official import quiet, qwen_tts  # here, since it takes long and talks

        give_threads()
        self._quiet = quiet
        with quiet():
            self.model = qwen_tts().Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype, device_map=device)
            clip = decode(CLIP.read_bytes())
            self.items = self.model.create_voice_clone_prompt((clip.waveform, clip.sample_rate), TRANSCRIPT)

    def speak(self, frames: int, streams: int = 1) -> tuple[Codes, Spent]:
        """The codes of the first speech. `streams` are one call with lists, as the package takes them."""
        seen: list[Codes] = []
        spent = {"code2wav": 0.0}
        steps: list[float] = []  # times of the talker's calls: for the prompt, then one for each frame
        inner, tokenizer = self.model.model, self.model.model.speech_tokenizer
        forward, real = inner.talker.forward, tokenizer.decode

        @functools.wraps(forward)
        def timed_forward(*args: Any, **kwargs: Any) -> Any:
            steps.append(time.perf_counter())
            return forward(*args, **kwargs)

        def timed_decode(encoded: Any) -> Any:
            seen.append(encoded[0]["audio_codes"].cpu().numpy())
            with _clock(spent, "code2wav"):
                return real(encoded)

        give_threads()
        inner.talker.forward, tokenizer.decode = timed_forward, timed_decode
        began = time.perf_counter()
        try:
            with self._quiet():
                self.model.generate_voice_clone(
                    [TEXT] * streams,
                    ["English"] * streams,
                    voice_clone_prompt=self.items * streams,
                    do_sample=False,
                    subtalker_dosample=False,
                    max_new_tokens=frames + 1,  # the official package gives one frame less
                )
        finally:
            del inner.talker.forward, tokenizer.decode
        total = time.perf_counter() - began
        frame = (steps[frames] - steps[1]) / (frames - 1)
        result = Spent(total, steps[1] - steps[0], frame, spent["code2wav"], total, len(seen[0]))
        return seen[0][len(self.items[0].ref_code) :].astype(np.int32), result


class Ours:
    """Our engine as a server would set it up; the prompt comes from the official model's voice.

    Args:
        precision: of the talker. The decoder has that of the server, fp32.
        slots: streams of steps with fixed shapes, which are CUDA graphs on a GPU. 0: shapes follow the streams.
        max_length: positions of a stream.
    """

    def __init__(
        self, folder: Path, precision: Precision, device: str = "cpu", slots: int = 0, max_length: int = MAX_LENGTH
    ) -> None:
        give_threads()
        environ = {
            "VOICE_CLONE_CHECKPOINT_DIR": str(folder),
            "VOICE_CLONE_DEVICE": device,
            "VOICE_CLONE_CUDA_GRAPHS": "false",
        }
        settings = Settings({}, {**environ, "VOICE_CLONE_PRECISION": precision})
        compute.prepare(settings)  # the process then has the server's switches: no TF32, no attention of cuDNN
        self.talker, self.config = load_network(settings)
        self.decoder: StreamDecoder
        self.decoder, _ = load_codec_decoder(Settings({}, environ))
        self.form = codec_format(self.config.codec)
        self.tokenizer = Tokenizer(folder)
        self.max_length = max_length
        self.runners: list[GraphRunner] = []
        self._fixed: Generator[Prompt] | None = None
        graphs: Graphs | None = None
        if slots:
            self.runners = [GraphRunner.on(self.talker.stack.like.device) for _ in range(2)]
            self._fixed = Generator(self.talker, slots, max_length, runner=self.runners[0])
            self._fixed.prepare()
            if self.decoder.padded:
                graphs = Graphs(self.runners[1], slots, SCHEDULE)
        self.code2wav = Code2Wav(self.decoder, self.form, graphs=graphs)
        if graphs is not None:
            self.code2wav.warm_up((1,), (slots,), 60.0)

    @property
    def native(self) -> NativeTalker:
        """The talker, on a CPU."""
        assert isinstance(self.talker, NativeTalker)
        return self.talker

    def prompt(self, embedding: npt.NDArray[np.float32], codes: Codes) -> Prompt:
        return Prompt(
            role_ids=self.tokenizer.role_ids,
            text_ids=self.tokenizer.text_ids(TEXT),
            speaker_embedding=embedding,
            reference_ids=self.tokenizer.reference_ids(TRANSCRIPT),
            reference_codes=codes,
            language_id=self.config.talker.codec_language_id["english"],
        )

    def speak(self, prompt: Prompt, frames: int, streams: int = 1, served: bool = False) -> tuple[Codes, Spent]:
        """The codes of the first stream. `streams` speak the same side by side.

        Args:
            served: as a server speaks: the usual draws, and with fixed shapes each step is begun before the frames of
                the one before are seen. Otherwise greedy, one step after the other.
        """
        keep_threads()
        generator = self.generator(streams)
        self.code2wav.warm_up((1,), (streams,), 60.0)
        in_context = prompt.mode == "icl"
        if in_context:  # a known voice
            self._decode(0, [prompt.reference_codes[:1]] * streams, prompt.reference_codes)
        how = SamplingParameters(seed=0, do_sample=served, subtalker_do_sample=served)
        spent: defaultdict[str, float] = defaultdict(float)
        began, first = time.perf_counter(), 0.0
        with _clock(spent, "prefill"):
            for slot in range(streams):
                length = generator.start(slot, TalkerRequest(prompt, how, frames))
                generator.prefill({slot: length})
        chunk: list[list[Codes]] = [[] for _ in range(streams)]
        codes: list[Codes] = []
        index = 0
        advance = _ahead(generator, streams) if served else lambda: generator.step(range(streams))
        for number in range(frames):
            with _clock(spent, "frames" if number else "first frame"):
                made = advance()
            for rows, frame in zip(chunk, made, strict=True):
                if frame.payload is None:
                    raise SystemExit(f"the speech ended after {number} frames: take another seed")
                rows.append(frame.payload)
            if len(chunk[0]) == SCHEDULE[min(index, len(SCHEDULE) - 1)] or number == frames - 1:
                with _clock(spent, "code2wav"):
                    self._decode(index + in_context, [np.stack(rows) for rows in chunk])
                first = first or time.perf_counter() - began
                codes.extend(chunk[0])
                chunk, index = [[] for _ in range(streams)], index + 1
        total = time.perf_counter() - began
        generator.reset()
        self._forget(streams)
        per_frame = spent["frames"] / (frames - 1)
        return np.stack(codes), Spent(first, spent["prefill"], per_frame, spent["code2wav"], total, frames)

    def generator(self, streams: int) -> Generator[Prompt]:
        """A generator without streams."""
        return self._fixed or Generator(self.talker, streams, self.max_length)

    def sound(self, codes: Codes) -> npt.NDArray[np.float32]:
        """Codes [streams, frames, K], decoded side by side in chunks -> [streams, samples]."""
        pieces, done = [], 0
        for index, size in enumerate([*SCHEDULE, *[SCHEDULE[-1]] * codes.shape[1]]):
            if done < codes.shape[1]:
                pieces.append(np.stack(self._decode(index, [*codes[:, done : done + size]])))
                done += size
        self._forget(len(codes))
        return np.concatenate(pieces, axis=1)

    def _decode(self, index: int, rows: list[Codes], context: Codes | None = None) -> list[npt.NDArray[np.float32]]:
        before = rows[0][:0] if context is None else context
        chunks = [Chunk(str(slot), index, each, before, final=False) for slot, each in enumerate(rows)]
        waveforms = []
        for decoded in self.code2wav.decode(chunks):
            if not isinstance(decoded, Decoded):
                raise decoded
            waveforms.append(decoded.waveform)
        return waveforms

    def _forget(self, streams: int) -> None:
        for slot in range(streams):
            self.code2wav.drop(str(slot))


def _ahead(generator: Generator[Prompt], streams: int) -> Callable[[], list[Frame]]:
    """What makes the next frame of all streams, by the loop of the server's engine."""
    steps, live = Steps(generator), dict.fromkeys(range(streams), cast(Any, generator))

    def failed(slot: int, error: Exception) -> None:
        raise error

    def advance() -> list[Frame]:
        while not (made := steps.run(range(streams), live, lambda *begun: None, failed)):
            pass  # the first call begins a step and has no frames to give
        return [cast(Frame, frame) for _, _, frame in made]

    return advance


@contextmanager
def _clock(spent: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[name] += time.perf_counter() - began
