"""A clip to the artifacts of its voice: the three `voice_clone.stages.protocols.EncoderStage`s.

Both networks are ONNX files of the checkpoint, and run as they are. On a GPU for which there is no ONNX Runtime the
tokenizer runs in torch, with the weights of its file. Frames are computed in torch on the CPU.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voice_clone import compute
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported, VoiceCloneError
from voice_clone.families.cosyvoice3.config import (
    CODES,
    FRAMES_PER_TOKEN,
    LEAST_SECONDS,
    MEL,
    MEL_STEPS,
    MOST_MEL_FRAMES,
    MOST_SECONDS,
    MOST_TOKENS,
    SPEAKER,
    SPEAKER_ENCODER,
    SPEAKER_INPUTS,
    SPEAKER_SIZE,
    TOKENIZER,
    TOKENIZER_INPUTS,
    TOKENS,
    check_mark,
)
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.networks import features
from voice_clone.families.cosyvoice3.tokenizer_graph import REMEDY, TorchGraph
from voice_clone.layers.mel import whisper_frames
from voice_clone.onnx.session import ReleasedGraph, Runtime, graph_file, has_provider
from voice_clone.settings import EncoderSettings, Settings
from voice_clone.stages.protocols import Arrays, Call, Limit

TRIAL_SECONDS = 4
ALIKE = 0.95  # of the tokens; a rounding that falls the other way changes one

_INT16 = np.iinfo(np.int16)


class _ClipStage(ABC):
    """Waveform to one artifact, the same in every mode."""

    modes: Mapping[str, tuple[str, ...]] | None = None  # the tokens' stage says them
    presets = ()
    sample_rate = features.RATE
    artifact: ClassVar[str]

    def __init__(self, fingerprint: str) -> None:
        self.fingerprints = {"fingerprint": fingerprint}
        [self._empty] = (each.zeros(0, 0) for each in CARD.artifacts if each.name == self.artifact)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        """None here: the tokens' stage answers them for all."""
        return {}

    def encode(self, waveform: NDArray[np.float32], mode: str | None) -> Arrays:
        if not waveform.size:
            return {self.artifact: self._empty}
        _check(waveform, self.sample_rate)
        return {self.artifact: self.made(torch.from_numpy(waveform))}

    @abstractmethod
    def made(self, waveform: Tensor) -> NDArray[Any]:
        """The artifact of a clip."""


class TokenStage(_ClipStage):
    """Waveform to speech tokens, uint16 [n], 25 a second.

    Raises:
        CheckpointError: the network does not make speech tokens.
    """

    modes, artifact = CARD.modes, TOKENS

    def __init__(self, graph: ReleasedGraph | TorchGraph, fingerprint: str) -> None:
        super().__init__(fingerprint)
        self._graph = graph
        _try(self, graph.file)

    def limits(self, mode: str | None) -> dict[str, Limit]:
        return {TOKENS: Limit(CODES, (1, MOST_TOKENS)), MEL: Limit(None, (2, MOST_MEL_FRAMES))}

    def made(self, waveform: Tensor) -> NDArray[np.uint16]:
        frames = whisper_frames(waveform).numpy()
        tokens = self._graph.run(frames[None], np.array([frames.shape[1]], np.int32)).ravel()
        expected = -(-frames.shape[1] // FRAMES_PER_TOKEN)
        if tokens.dtype.kind not in "iu" or tokens.size != expected or tokens.min() < 0 or tokens.max() >= CODES:
            raise CheckpointError(
                f"{self._graph.file}: makes no {expected} speech tokens below {CODES} of {frames.shape[1]} frames"
            )
        return tokens.astype(np.uint16)


class SpeakerStage(_ClipStage):
    """Waveform to speaker embedding, float32 [192].

    Raises:
        CheckpointError: the network does not make one.
    """

    artifact = SPEAKER

    def __init__(self, graph: ReleasedGraph, fingerprint: str) -> None:
        super().__init__(fingerprint)
        self._graph = graph
        _try(self, graph.file)

    def made(self, waveform: Tensor) -> NDArray[np.float32]:
        speaker = self._graph.run(features.speaker_frames(waveform).numpy()[None]).ravel()
        if speaker.dtype != np.float32 or speaker.size != SPEAKER_SIZE:
            raise CheckpointError(f"{self._graph.file}: makes no speaker embedding of {SPEAKER_SIZE} numbers")
        return speaker


class MelStage(_ClipStage):
    """Waveform to log-mel frames, int16 [frames, 80], 50 a second, in steps of 1 / 2048.

    So they take half the room of float32, and 2048 times all that a waveform in -1..1 can have, -11.6 to 6, fits.
    """

    artifact, sample_rate = MEL, features.REFERENCE_RATE

    def __init__(self) -> None:
        form = (features.REFERENCE_BANDS, features.REFERENCE_FFT, features.REFERENCE_HOP, self.sample_rate, MEL_STEPS)
        super().__init__(hashlib.sha256(repr(form).encode()).hexdigest())

    def made(self, waveform: Tensor) -> NDArray[np.int16]:
        frames = features.reference_frames(waveform).numpy()
        steps: NDArray[np.int16] = np.clip(np.rint(frames * MEL_STEPS), _INT16.min, _INT16.max).astype(np.int16)
        return steps


def load_tokens(given: Settings, call: Call | None = None) -> TokenStage:
    """As the settings ask for it: on a GPU by ONNX Runtime's CUDA provider, or in torch if ONNX Runtime has none.

    Raises:
        CheckpointError: the file has no such network, or torch makes other tokens with it than ONNX Runtime.
    """
    settings = EncoderSettings.of(given)
    provider, device = settings.onnx_provider, compute.device(settings)
    in_torch = provider == "auto" and device == "cuda" and not has_provider("cuda")
    if provider == "auto":
        provider = "cpu" if in_torch else device
    graph, fingerprint = _graph(settings, provider, TOKENIZER, TOKENIZER_INPUTS)
    stage = TokenStage(graph, fingerprint)
    if not in_torch:
        return stage
    other = TokenStage(TorchGraph(graph_file(settings.checkpoint_dir, TOKENIZER), torch.device(device)), fingerprint)
    noise = _noise(TRIAL_SECONDS * features.RATE)
    equal = (stage.encode(noise, None)[TOKENS] == other.encode(noise, None)[TOKENS]).mean()
    if equal < ALIKE:
        raise CheckpointError(f"{graph.file}: torch makes {equal:.0%} of ONNX Runtime's speech tokens; {REMEDY}")
    return other


def load_speaker(given: Settings, call: Call | None = None) -> SpeakerStage:
    """As the settings ask for it; on the CPU, which needs a hundredth of a second for it."""
    graph, fingerprint = _graph(EncoderSettings.of(given), "cpu", SPEAKER_ENCODER, SPEAKER_INPUTS)
    return SpeakerStage(graph, fingerprint)


def load_mel(given: Settings, call: Call | None = None) -> MelStage:
    """It has no weights, and no settings but those of its process."""
    check_mark(EncoderSettings.of(given).checkpoint_dir)
    return MelStage()


def _graph(
    settings: EncoderSettings, provider: str, name: str, inputs: tuple[tuple[str, int], ...]
) -> tuple[ReleasedGraph, str]:
    """A graph of the checkpoint, and its fingerprint: the digest of its file, whatever the provider."""
    check_mark(settings.checkpoint_dir)
    runtime = Runtime(settings.checkpoint_dir, provider, torch.get_num_threads())
    graph = ReleasedGraph(runtime, name, inputs)
    return graph, _digest(graph_file(settings.checkpoint_dir, name))


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _try(stage: TokenStage | SpeakerStage, file: str) -> None:
    """Encode a second of noise, so that a wrong network is found when it is loaded."""
    try:
        stage.encode(_noise(stage.sample_rate), None)
    except CheckpointError:
        raise
    except VoiceCloneError as error:
        raise CheckpointError(f"{file}: not such a network as it should be ({error})") from None


def _noise(samples: int) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)


def _check(waveform: NDArray[np.float32], rate: int) -> None:
    """Check the length of a clip.

    Raises:
        InvalidArgument: it is too short for any family.
        Unsupported: it is too long for this one.
    """
    seconds = waveform.size / rate
    if seconds < LEAST_SECONDS:
        raise InvalidArgument(f"the `audio` is {seconds:.3f} s long; it must be at least {LEAST_SECONDS} s")
    if round(seconds, 3) > MOST_SECONDS:  # resampling may add a sample
        raise Unsupported(f"the `audio` is {seconds:.2f} s long; CosyVoice3 takes at most {MOST_SECONDS} s of a voice")
