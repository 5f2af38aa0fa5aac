"""Any family in this process, without server, engine and chunks: what the server's speech must equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.audio import decode, resample
from voice_clone.codec.chunk import Reference
from voice_clone.family import Family
from voice_clone.lru_cache import Origin
from voice_clone.settings import DecoderSettings, Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import (
    Arrays,
    DecoderStage,
    EncoderStage,
    Prepared,
    PromptStage,
    StreamPlan,
    TalkerStage,
)
from voice_clone_server.families.cards import function


@dataclass(frozen=True, eq=False)
class Spoken:
    """Frames [n, width], samples float32, and why the stream ended."""

    codes: NDArray[Any]
    samples: NDArray[np.float32]
    finish: str


class Bare:
    """The stages of a checkpoint, one after the other; each is loaded when it is needed.

    Args:
        package: of the family's code.
        more: settings of the stages, by the names of their variables.
    """

    def __init__(self, card: Family, package: str, checkpoint: Path, **more: Any) -> None:
        given = {"CHECKPOINT_DIR": checkpoint, "DEVICE": "cpu", **more}
        environ = {f"VOICE_CLONE_{name}": str(value) for name, value in given.items()}
        self.card, self._package = card, package
        self.settings = Settings({}, environ, card.name)
        self._loaded: dict[str, Any] = {}

    def _stage(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = function(self._package, name)(self.settings)
        return self._loaded[name]

    @property
    def encoders(self) -> list[EncoderStage]:
        """The networks that make artifacts."""
        return [self._stage(each.load) for each in self.card.encoders if each.artifacts]

    @property
    def prompt(self) -> PromptStage[Any]:
        """The prompt stage."""
        stage: PromptStage[Any] = self._stage("prompt.load_prompt")
        return stage

    @property
    def talker(self) -> TalkerStage[Any, Any]:
        """The talker stage."""
        stage: TalkerStage[Any, Any] = self._stage("talker.load_talker")
        return stage

    @property
    def decoder(self) -> DecoderStage:
        """The decoder's stage."""
        stage: DecoderStage = self._stage("codec.load_decoder")
        return stage

    @property
    def streams(self) -> Any:
        """The streams of the decoder."""
        if "streams" not in self._loaded:
            settings = DecoderSettings.of(self.settings)
            self._loaded["streams"] = self.decoder.streams(settings, self.decoder.chunk_frames)
        return self._loaded["streams"]

    def mode(self, transcript: str | None) -> str:
        """The best one for a clip with that transcript."""
        needs = next(each.modes for each in self.encoders if each.modes is not None)
        return next(mode for mode, needed in needs.items() if transcript is not None or not needed)

    def artifacts(self, clip: bytes, mode: str) -> dict[str, NDArray[Any]]:
        """Of an audio file."""
        decoded, made = decode(clip), dict[str, NDArray[Any]]()
        for stage in self.encoders:
            waveform = resample(decoded.waveform, decoded.sample_rate, stage.sample_rate)
            made |= stage.encode(waveform, mode)
        return made

    def voice(self, clip: bytes, transcript: str | None = None) -> ResolvedVoice:
        """Of an audio file."""
        mode = self.mode(transcript)
        return ResolvedVoice(self.artifacts(clip, mode), transcript, mode)

    def prepared(self, text: str, voice: ResolvedVoice | str | None = None, **asked: Any) -> Prepared:
        """A prompt.

        Args:
            voice: of a clip, or the name of one of the checkpoint's.
            asked: further fields of a `SpeechRequest`.
        """
        named = {} if voice is None else {"voice": voice if isinstance(voice, str) else "anybody"}
        speech = SpeechRequest(text, **{"voiceless": self.prompt.voiceless, **named, **asked})
        resolved = voice if isinstance(voice, ResolvedVoice) else None
        return self.prompt.prepare(speech, self.prompt.draft(speech), resolved)

    def plan(
        self,
        text: str,
        voice: ResolvedVoice | str | None = None,
        *,
        options: dict[str, Any] | None = None,
        language: str | None = None,
        **knobs: Any,
    ) -> StreamPlan[Any]:
        """The stream of a request."""
        tensors = self.prepared(text, voice, options=options or {}, language=language).tensors
        return self.talker.plan(tensors, {"seed": 0, **knobs}, options or {})

    def speak(self, *request: Any, **more: Any) -> Spoken:
        """A request's frames, and their decode in one piece; arguments as of `plan`."""
        plan = self.plan(*request, **more)
        [(codes, finish)] = run(self.talker.source, [plan.request])
        return Spoken(codes, self.decode(codes, plan), finish)

    def decode(
        self, codes: NDArray[Any], plan: StreamPlan[Any], sizes: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """The samples of a stream, decoded in chunks of so many frames; None: in one."""
        stream, _ = self.streams.open(Reference(plan.context, plan.voice, Origin.unknown()))
        samples, done = list[NDArray[np.float32]](), 0
        for size in [len(codes)] if sizes is None else sizes:
            samples += self.streams.decode([stream], [codes[done : done + size]]) if size else []
            done += size
        samples.append(self.streams.flush(stream))
        self.streams.close(stream)
        return np.concatenate(samples)


def run(source: Any, requests: Sequence[Any]) -> list[tuple[NDArray[Any], str]]:
    """The frames of streams side by side, and why each ended."""
    counts = {slot: source.start(slot, request) for slot, request in enumerate(requests)}
    if unread := {slot: count for slot, count in counts.items() if count}:
        source.prefill(unread)
    live, made, why = [*counts], [list[NDArray[Any]]() for _ in requests], dict[int, str]()
    while live:
        for slot, frame in zip(live[:], source.begin(live)(), strict=True):
            if frame is None:
                continue
            if frame.payload is not None:
                made[slot].append(frame.payload.reshape(-1, source.payload.width))
            if frame.finish is not None:
                why[slot] = frame.finish
                live.remove(slot)
                source.free(slot)
    empty = source.payload.zeros(0)
    return [(np.concatenate([empty, *frames]), why[slot]) for slot, frames in enumerate(made)]


def check_artifacts(found: Arrays, wanted: Arrays) -> None:
    """The same arrays; floats may differ by rounding."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        if array.dtype == np.float32:
            np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)
