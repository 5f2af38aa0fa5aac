"""Small talkers of OmniVoice, and prompts for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.families.omnivoice.talker import make_talker
from voice_clone.families.omnivoice.config import CODEBOOKS, CODEC_CODES, CODES, ICL, REF_RMS
from voice_clone.families.omnivoice.prompt import OmniVoicePrompt, Prompt, load_prompt
from voice_clone.families.omnivoice.talker import OmniVoiceTalker, Talker, load_network
from voice_clone.mask_predict.predictor import MaskRequest
from voice_clone.mask_predict.source import MaskPredictSource
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import StreamPlan

SLOTS, LENGTH = 4, 2048


def make_omnivoice_talker(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """The files of the talker alone, in a new folder."""
    folder.mkdir(parents=True)
    make_talker(shape, seed, folder)
    return folder


def settings_of(folder: Path, **more: str) -> Settings:
    """Those of stages, by default in fp32, on the CPU."""
    values = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "PRECISION": "fp32", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in values.items()}, "omnivoice")


def some_voice(
    frames: int, transcript: str = "It's late, we're tired", rms: float = 0.05, seed: int = 0
) -> ResolvedVoice:
    """A voice of so many frames."""
    codes = np.random.default_rng(seed).integers(0, CODES, (frames, CODEBOOKS)).astype(np.uint16)
    return ResolvedVoice({CODEC_CODES: codes, REF_RMS: np.array([rms], np.float32)}, transcript, ICL)


class BareTalker:
    """Prompt and talker of a checkpoint without a server.

    Args:
        together: streams run together, as on a GPU.
        more: settings of the talker.
    """

    def __init__(self, folder: Path, together: bool = False, **more: str) -> None:
        self.network: Talker = load_network(settings_of(folder, **more))
        self.source = MaskPredictSource(self.network, SLOTS, LENGTH, together)
        self.prompt: OmniVoicePrompt = load_prompt(settings_of(folder))
        self.stage = OmniVoiceTalker(self.source, self.prompt.config, self.prompt.tokenizer)

    def plan(
        self, text: str, voice: ResolvedVoice | None = None, seed: int = 0, language: str | None = None, **options: Any
    ) -> StreamPlan[MaskRequest[Prompt]]:
        """The stream of a speech."""
        speech = SpeechRequest(text, options=options, language=language, voiceless=True)
        tensors = self.prompt.prepare(speech, self.prompt.draft(speech), voice).tensors
        return self.stage.plan(tensors, {"seed": seed}, options)

    def speak(self, *requests: MaskRequest[Prompt]) -> list[NDArray[Any]]:
        """The frames of streams beside each other, [T, 8] each."""
        return [np.concatenate(runs) for runs in self.runs(requests)]

    def runs(self, requests: Sequence[MaskRequest[Prompt]]) -> list[list[NDArray[Any]]]:
        """The runs of frames of streams beside each other."""
        found: list[list[NDArray[Any]]] = [[] for _ in requests]
        live = list(range(len(requests)))
        for slot, request in enumerate(requests):
            self.source.start(slot, request)
        while live:
            frames = self.source.begin(live)()
            for slot, frame in zip(list(live), frames, strict=True):
                if frame is None:
                    continue
                found[slot] += [] if frame.payload is None else [frame.payload]
                if frame.finish is not None:
                    assert frame.finish in ("stop", "length"), frame.finish
                    self.source.free(slot)
                    live.remove(slot)
        return found
