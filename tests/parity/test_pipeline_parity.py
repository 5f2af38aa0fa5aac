"""From a clip and a text to the waveform: our stages against the official package, on the same checkpoint folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.factories import CheckpointFactory
from tests.support.official import quiet, qwen_tts
from tools.demo_voice.dataset import sentence_of
from tools.families.qwen3_tts import checkpoint_weights
from tools.families.qwen3_tts.checkpoint_maker import make_endless, write_configuration
from tools.families.qwen3_tts.demo_voice.export import export
from tools.families.qwen3_tts.demo_voice.shape import EOS, GENERATION, SHAPE
from tools.families.qwen3_tts.demo_voice.vocabulary import train_merges
from voice_clone.audio import decode, resample
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.codec.chunk import Chunk, Decoded
from voice_clone.codec.code2wav import Code2Wav
from voice_clone.families.qwen3_tts import decoder_stage, encoder_stages, talker_stage
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.prompt_stage import language_id
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.settings import Settings

FRAMES = 41
CASES = [  # (layout, language)
    ("x_vector", "Auto"),
    ("x_vector", "English"),
    ("icl", "Chinese"),
    ("icl", "Auto"),
    ("x_vector non-streaming", "German"),
    ("icl non-streaming", "French"),
]
TEXT = "Zwei Boote, two boats — 两只船, and 3 more; all came home in the evening."


class Ours:
    """All stages of one checkpoint in this process."""

    def __init__(self, folder: Path) -> None:
        settings = Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder), "VOICE_CLONE_PRECISION": "fp32"})
        self.speaker_encoder, self.config, _ = encoder_stages.load_speaker_encoder(settings)
        self.codec_encoder, _, _ = encoder_stages.load_codec_encoder(settings)
        self.decoder, _ = decoder_stage.load_codec_decoder(settings)
        self.talker, _ = talker_stage.load_network(settings)
        self.tokenizer = Tokenizer(folder)

    def embed(self, clip: bytes) -> np.ndarray:
        return self.speaker_encoder.embed(self._at_24k(clip)).numpy()

    def encode(self, clip: bytes) -> np.ndarray:
        return self.codec_encoder.encode(self._at_24k(clip)).numpy().astype(np.int32)

    def _at_24k(self, clip: bytes) -> torch.Tensor:
        decoded = decode(clip)
        return torch.from_numpy(resample(decoded.waveform, decoded.sample_rate, 24000))

    def prompt(self, clip: bytes, transcript: str, layout: str, language: str) -> Prompt:
        given = {"reference_codes": self.encode(clip), "reference_ids": self.tokenizer.reference_ids(transcript)}
        return Prompt(
            role_ids=self.tokenizer.role_ids,
            text_ids=self.tokenizer.text_ids(TEXT),
            speaker_embedding=self.embed(clip),
            language_id=language_id(language, self.config),
            non_streaming_mode="non-streaming" in layout,
            **(given if layout.startswith("icl") else {}),
        )

    def greedy(self, prompt: Prompt, frames: int) -> np.ndarray:
        generator = Generator(self.talker, slots=1, max_length=1024)
        sampling = SamplingParameters(seed=0, do_sample=False, subtalker_do_sample=False)
        generator.start(0, TalkerRequest(prompt, sampling, frames))
        codes = []
        while True:
            [frame] = generator.step([0])
            if frame.payload is not None:
                codes.append(frame.payload)
            if frame.finish is not None:
                return np.array(codes, np.int32).reshape(-1, prompt.reference_codes.shape[1] or 16)

    def waveform(self, prompt: Prompt, codes: np.ndarray, chunk: int) -> np.ndarray:
        code2wav = Code2Wav(self.decoder, decoder_stage.codec_format(self.config.codec))
        parts = []
        for index, start in enumerate(range(0, len(codes), chunk)):
            context = prompt.reference_codes if index == 0 else codes[:0]
            final = start + chunk >= len(codes)
            [decoded] = code2wav.decode([Chunk("s", index, codes[start : start + chunk], context, final)])
            assert isinstance(decoded, Decoded), decoded
            parts.append(decoded.waveform)
        assert code2wav.streams == 0
        return np.concatenate(parts)


@lru_cache(maxsize=1)
def load(folder: Path) -> tuple[Ours, Any]:
    with quiet():
        official = qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, device_map="cpu")
    return Ours(folder), official


def official_speech(
    official: Any, clip: bytes, transcript: str, layout: str, language: str, frames: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Waveform, codes of the new frames, and the prompt item of the official package."""
    decoded = decode(clip)
    x_vector = layout.startswith("x_vector")
    with quiet():
        [item] = official.create_voice_clone_prompt(
            (decoded.waveform, decoded.sample_rate), None if x_vector else transcript, x_vector
        )
        seen: list[np.ndarray] = []
        tokenizer = official.model.speech_tokenizer
        real = type(tokenizer).decode

        def spy(encoded: Any) -> Any:
            seen.append(encoded[0]["audio_codes"].numpy())
            return real(tokenizer, encoded)

        tokenizer.decode = spy
        try:
            [waveform], _ = official.generate_voice_clone(
                TEXT,
                language,
                voice_clone_prompt=[item],
                non_streaming_mode="non-streaming" in layout,
                do_sample=False,
                subtalker_dosample=False,
                max_new_tokens=frames + 1,  # the official package gives one frame less
            )
        finally:
            del tokenizer.decode
    reference = 0 if item.ref_code is None else len(item.ref_code)
    return waveform, seen[0][reference:], item


def check(folder: Path, clip: bytes, transcript: str, layout: str, language: str, frames: int) -> np.ndarray:
    ours, official = load(folder)
    expected, expected_codes, item = official_speech(official, clip, transcript, layout, language, frames)
    prompt = ours.prompt(clip, transcript, layout, language)
    np.testing.assert_allclose(prompt.speaker_embedding, item.ref_spk_embedding.numpy(), atol=1e-5)
    if item.ref_code is not None:
        np.testing.assert_array_equal(prompt.reference_codes, item.ref_code.numpy())
    codes = ours.greedy(prompt, frames)
    np.testing.assert_array_equal(codes, expected_codes)
    assert len(codes) == frames
    rms = float(np.sqrt((expected**2).mean()))
    assert rms > 0.01, "a comparison of silence proves nothing"
    for chunk in (7, len(codes)):
        waveform = ours.waveform(prompt, codes, chunk)
        assert len(waveform) == 1920 * len(codes)
        # The official cut behind the reference is proportional, so it may be a sample off at the front.
        assert abs(len(expected) - len(waveform)) <= 1
        np.testing.assert_allclose(waveform[1:], expected[-len(waveform) :][1:], atol=1e-4 * rms)
    return codes


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiny(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, reference_clip: bytes, reference_text: str, seed: int
) -> None:
    # Where speech ends is compared elsewhere.
    folder = make_endless(checkpoint_folder("tiny", seed), tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in CASES if seed == 0 else CASES[seed::3]:
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    assert len(seen) > 200, "few codes occur, so equal codes prove little"


def test_demo_voice(
    tmp_path: Path, reference_clip: bytes, reference_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape, the tokenizer and the files of the demo's checkpoint, with random weights."""
    monkeypatch.setattr(checkpoint_weights, "CODEC_EOS", EOS)
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    texts = [sentence_of(0, "train", number) for number in range(500)]
    config = write_configuration(SHAPE, configuration, train_merges(texts), GENERATION)
    model, codec = (
        {name: checkpoint_weights.random_tensor(name, shape, 0) for name, shape in shapes.items()}
        for shapes in (checkpoint_weights.model_shapes(config), checkpoint_weights.codec_shapes(config))
    )
    decoder, encoder = (
        {name.removeprefix(f"{part}."): tensor for name, tensor in codec.items() if name.startswith(f"{part}.")}
        for part in ("decoder", "encoder")
    )
    export(configuration, model, decoder, encoder, tmp_path / "checkpoint")
    folder = make_endless(tmp_path / "checkpoint", tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in [*CASES[:2], (CASES[3][0], "English")]:
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    assert len(seen) > 100


@pytest.mark.long
@pytest.mark.parametrize("shape", ["0.6b", "1.7b"])
def test_released_shapes(tmp_path: Path, reference_clip: bytes, reference_text: str, shape: str) -> None:
    from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint

    load.cache_clear()
    make_checkpoint(shape, 0, tmp_path / "checkpoint")
    folder = make_endless(tmp_path / "checkpoint", tmp_path / "endless")
    seen: set[int] = set()
    for layout, language in (CASES[1], CASES[3], CASES[4]):
        seen |= set(check(folder, reference_clip, reference_text, layout, language, FRAMES).ravel().tolist())
    load.cache_clear()
    assert len(seen) > 200
