"""A small checkpoint of OmniVoice, and its stages without server, engine and chunks: what the server must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.families.bare_family import Spoken, encode
from tests.support.families.omnivoice_codec import heard
from tests.support.families.omnivoice_talkers import BareTalker, settings_of
from tools.families.omnivoice.checkpoint_maker import write_checkpoint
from voice_clone.families.omnivoice.config import ICL
from voice_clone.families.omnivoice.decoder_stage import load_decoder
from voice_clone.families.omnivoice.encoder_stage import load_encoder
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.settings import DecoderSettings
from voice_clone.speech import ResolvedVoice


def make_omnivoice(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """A checkpoint in a new folder."""
    folder.mkdir(parents=True)
    write_checkpoint(shape, seed, folder)
    return folder


class BareOmniVoice:
    """The stages of a checkpoint, one after the other."""

    def __init__(self, checkpoint: Path) -> None:
        settings = settings_of(checkpoint)
        self.encoder, self.talker = load_encoder(settings), BareTalker(checkpoint)
        decoder = load_decoder(settings)
        self.streams = decoder.streams(DecoderSettings.of(settings), decoder.chunk_frames)

    def artifacts(self, clip: bytes) -> dict[str, NDArray[Any]]:
        """Of an audio file."""
        return dict(encode(self.encoder, clip, ICL))

    def speak(
        self,
        text: str,
        clip: bytes | None = None,
        transcript: str | None = None,
        *,
        seed: int = 0,
        language: str | None = None,
        **options: Any,
    ) -> Spoken:
        """The frames of a speech, in the voice of a clip or in any, and their decode in one piece."""
        voice = None if clip is None else ResolvedVoice(self.artifacts(clip), transcript, ICL)
        plan = self.talker.plan(text, voice, seed, language, **options)
        [codes] = self.talker.speak(plan.request)
        samples = heard(self.streams, FinishPlan.of(plan.voice), codes, [len(codes)])
        return Spoken(codes.astype(np.int32), samples, "stop")
