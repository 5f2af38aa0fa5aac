"""Upload, cache, ensemble and client against the public interface of the official package, for unusual checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from torch import Tensor
from voice_clone_client import Client

from tests.support.official.official_talker import our_draws
from tests.support.oracles.qwen_tts import load_official, official_speech, quiet
from tests.support.same_audio import ROUNDING
from tests.support.servers.running import running
from tools.families.qwen3_tts.checkpoint_config import SHAPES, Shape
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from tools.families.qwen3_tts.checkpoint_weights import codec_shapes, model_shapes, random_tensor
from tools.families.weight_files import write_weights
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, Qwen3TTSConfig, load_config
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

FRAMES = 41
TEXT = "Zwei Boote, two boats — 两只船, and 3 more; all came home in the evening."
SPEECHES = [  # language, in context, non-streaming
    ("English", True, False),
    ("Auto", False, True),
]
TINY = SHAPES["tiny"]
ODD_HEADS = replace(
    TINY,
    talker={**TINY.talker, "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 2},
    predictor={**TINY.predictor, "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 96},
    encoder={**TINY.encoder, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64},
    decoder={**TINY.decoder, "num_attention_heads": 5, "num_key_value_heads": 5},
)
SHORT_WINDOWS = replace(
    TINY,
    talker={**TINY.talker, "hidden_size": 96},
    speaker={**TINY.speaker, "enc_dim": 96},
    encoder={**TINY.encoder, "sliding_window": 17},
    decoder={**TINY.decoder, "sliding_window": 7},
)


@dataclass(frozen=True)
class Unusual:
    """A checkpoint: its sizes, the files of its weights, and whether its tokenizer is tokenizer.json alone."""

    shape: Shape
    shards: int
    tokenizer_json: bool


BOTH = replace(
    ODD_HEADS,
    talker={**ODD_HEADS.talker, "hidden_size": 96},
    speaker=SHORT_WINDOWS.speaker,
    encoder={**ODD_HEADS.encoder, "sliding_window": 17},
    decoder={**ODD_HEADS.decoder, "sliding_window": 7},
)
CASES = {
    "odd heads, shards": Unusual(ODD_HEADS, 3, False),
    "short windows, tokenizer.json": Unusual(SHORT_WINDOWS, 1, True),
    "all of it": Unusual(BOTH, 3, True),
}
USUAL = "all of it"  # one server and one official model instead of two


def make(case: Unusual, folder: Path) -> None:
    """Write it, with random weights, so that speech does not end by itself."""
    folder.mkdir()
    config = write_configuration(case.shape, folder)

    def tensor(name: str, sizes: tuple[int, ...]) -> Tensor:
        made = random_tensor(name, sizes, 5)
        if name == "talker.codec_head.weight":
            made[config.talker.codec_eos_token_id] = 0
        return made

    write_weights(folder, model_shapes(config), tensor, "bf16", case.shards)
    write_weights(folder / CODEC_FOLDER, codec_shapes(config), tensor, "fp32", 1)
    if case.tokenizer_json:
        keep_tokenizer_json(folder)


def keep_tokenizer_json(folder: Path) -> None:
    """What transformers saves of a tokenizer when it is asked for one file."""
    from transformers import AutoTokenizer

    with quiet():
        AutoTokenizer.from_pretrained(str(folder), fix_mistral_regex=True).save_pretrained(str(folder))  # type: ignore[no-untyped-call]
    for name in ("vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    assert (folder / "tokenizer.json").exists()


@dataclass(frozen=True, eq=False)
class Both:
    """A server with a checkpoint, and the official model with the same."""

    server: TritonServer
    official: Any
    config: Qwen3TTSConfig


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name == USUAL else pytest.mark.long) for name in CASES]
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("whole-way")
    checkpoint = folder / "checkpoint"
    make(CASES[request.param], checkpoint)
    assert len(list(checkpoint.glob("model*.safetensors"))) == CASES[request.param].shards
    with running(checkpoint, folder, VOICE_CLONE_PRECISION="fp32") as server:
        yield Both(server, load_official(checkpoint), load_config(checkpoint))


@pytest.fixture(scope="module")
def flac(tmp_path_factory: pytest.TempPathFactory, reference_clip: bytes) -> Path:
    """The shipped clip as a file of a studio: stereo, 44.1 kHz, another sound on each side, with a name of its own."""
    import io

    import librosa

    samples, rate = soundfile.read(io.BytesIO(reference_clip), dtype="float32")
    left = librosa.resample(samples, orig_sr=rate, target_sr=44100)
    right = 0.5 * np.roll(left, 300)
    path = tmp_path_factory.mktemp("flac") / "Hafen am Abend.flac"
    soundfile.write(path, np.stack([left, right], axis=1), 44100, subtype="PCM_16")
    return path


@pytest.mark.parametrize(("language", "in_context", "non_streaming"), SPEECHES)
@pytest.mark.parametrize("sampled", [False, True])
def test_the_same_speech(
    both: Both, flac: Path, reference_text: str, language: str, in_context: bool, non_streaming: bool, sampled: bool
) -> None:
    seed = 11
    transcript = reference_text if in_context else None
    sampling: dict[str, Any] = {} if sampled else {"do_sample": False, "subtalker_dosample": False}
    with our_draws(both.config, seed) as draws:
        wanted, codes, item = official_speech(
            both.official, str(flac), transcript, TEXT, language, FRAMES, non_streaming, **sampling
        )
    assert (draws.frames >= FRAMES) == sampled and len(codes) == FRAMES
    assert len(np.unique(codes)) > 200, "few codes occur, so equal codes prove little"
    knobs: dict[str, Any] = {"do_sample": False, "options": {"subtalker_do_sample": False}}
    with Client(both.server.url) as client:
        if "Harbour" not in {voice.name for voice in client.list()}:
            client.upload("Harbour", flac, reference_text=reference_text, wait=True)
        embedding = client.speaker_embedding("Harbour")
        np.testing.assert_allclose(embedding, item.ref_spk_embedding.numpy(), atol=1e-5)
        speech = client.speak(
            TEXT,
            voice="Harbour",
            x_vector_only=not in_context,
            language=language,
            non_streaming_mode=non_streaming,
            max_frames=FRAMES,
            seed=seed,
            **({} if sampled else knobs),
        )
        heard, rate = speech.read()
    assert speech.info is not None and speech.info["cache"] == "hit" and speech.info["frames"] == FRAMES
    assert rate == 24000 and len(heard) == 1920 * FRAMES
    # The official cut behind the reference is proportional, so it may be a sample off at the front.
    assert abs(len(wanted) - len(heard)) <= 1
    rms = float(np.sqrt((wanted**2).mean()))
    assert rms > 0.01, "a comparison of silence proves nothing"
    np.testing.assert_allclose(heard[1:], wanted[-len(heard) :][1:], atol=ROUNDING * rms)
