"""The prompt and talker stages of CosyVoice3: modes, what is refused, how streams end, and what the decoder gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.families.bare import run
from tests.support.families.cosyvoice3 import make_cosyvoice3_talker, some_clip, some_voice
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import Internal, InvalidArgument, Unsupported
from voice_clone.families.cosyvoice3.config import CODES, MEL, SPEAKER, TOKENS, load_config, stream_chunks
from voice_clone.families.cosyvoice3.prompt import CosyVoice3Prompt, Prompt, Tokenizer, load_prompt
from voice_clone.families.cosyvoice3.talker import PAUSES, CosyVoice3Talker, load_talker
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings
from voice_clone.speech import ResolvedVoice, SpeechRequest
from voice_clone.stages.protocols import Arrays, StreamPlan

pytestmark = pytest.mark.thorough

FRAMES = 12
TRANSCRIPT = "It's late, we're tired."


def settings(folder: Path, **more: str) -> Settings:
    given = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cpu", "MAX_LENGTH": "512", "MAX_STREAMS": "3", **more}
    return Settings({}, {f"VOICE_CLONE_{name}": value for name, value in given.items()}, "cosyvoice3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice3_talker(tmp_path_factory.mktemp("cosyvoice3") / "checkpoint")


@pytest.fixture(scope="module")
def prompt(folder: Path) -> CosyVoice3Prompt:
    return load_prompt(settings(folder, MAX_CHUNK_FRAMES="750"))


@pytest.fixture(scope="module")
def talker(folder: Path) -> CosyVoice3Talker:
    return load_talker(settings(folder))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, load_config(folder))


def tensors(prompt: CosyVoice3Prompt, voice: ResolvedVoice | None = None, **asked: Any) -> Arrays:
    speech = SpeechRequest(**{"text": "Good morning.", "voice": "Ada", **asked})
    return prompt.prepare(speech, prompt.draft(speech), voice or some_voice(TRANSCRIPT)).tensors


def plan(talker: CosyVoice3Talker, given: Arrays, **knobs: Any) -> StreamPlan[TalkerRequest[Prompt]]:
    return talker.plan(given, {"seed": 1, "max_frames": FRAMES, **knobs}, {})


def spoken(generator: Generator[Prompt], *requests: TalkerRequest[Prompt]) -> list[NDArray[Any]]:
    """The frames that are heard of streams side by side."""
    return [made for made, _ in run(generator, requests)]


def test_the_mode_says_what_the_talker_hears(prompt: CosyVoice3Prompt, tokenizer: Tokenizer) -> None:
    voice, speech = some_voice(TRANSCRIPT), SpeechRequest("Good morning.", voice="Ada")
    found = prompt.prepare(speech, prompt.draft(speech), voice)
    assert found.info == {"mode": "zero_shot", "text_tokens": 6, "reference_tokens": 25, "reference_frames": 30}
    np.testing.assert_array_equal(found.tensors["heard_tokens"], voice.artifacts[TOKENS])
    np.testing.assert_array_equal(found.tensors["prefix_ids"], tokenizer.reference_ids(TRANSCRIPT))
    for silent, asked in ((some_voice(None), {}), (voice, {"x_vector_only": True})):
        speech = SpeechRequest("Good morning.", voice="Ada", **asked)
        alone = prompt.prepare(speech, prompt.draft(speech), silent)
        assert alone.info["mode"] == "cross_lingual" and not len(alone.tensors["heard_tokens"])
        np.testing.assert_array_equal(alone.tensors["prefix_ids"], tokenizer.reference_ids())
        np.testing.assert_array_equal(alone.tensors[TOKENS], voice.artifacts[TOKENS])


def test_an_instruction_takes_the_place_of_the_clip(prompt: CosyVoice3Prompt, tokenizer: Tokenizer) -> None:
    for voice in (some_voice(TRANSCRIPT), some_voice(None)):
        speech = SpeechRequest("Good morning.", voice="Ada", options={"instruct": "Whisper."})
        found = prompt.prepare(speech, prompt.draft(speech), voice)
        assert found.info["mode"] == "instruct" and not len(found.tensors["heard_tokens"])
        np.testing.assert_array_equal(found.tensors["prefix_ids"], tokenizer.instruction_ids("Whisper."))


@pytest.mark.parametrize(("tokens", "mel", "kept"), [(30, 61, 30), (30, 59, 29), (101, 200, 100), (1, 2, 1)])
def test_tokens_and_mel_are_cut_to_one_length(
    prompt: CosyVoice3Prompt, talker: CosyVoice3Talker, tokens: int, mel: int, kept: int
) -> None:
    clip = some_clip(tokens, mel)
    given = tensors(prompt, ResolvedVoice(clip, TRANSCRIPT, "zero_shot"))
    made = plan(talker, given)
    assert made.context.dtype == np.uint16 and given["heard_tokens"].shape == (kept,)
    np.testing.assert_array_equal(made.context, clip[TOKENS][:kept, None])
    np.testing.assert_array_equal(made.voice[MEL], clip[MEL][: 2 * kept])
    np.testing.assert_array_equal(made.voice[SPEAKER], clip[SPEAKER])


@pytest.mark.parametrize(("tokens", "cut"), [(5, 0), (99, 0), (100, 13), (111, 24), (112, 0), (250, 13)])
def test_an_aligned_stream_is_heard_after_sixteen_tokens(
    prompt: CosyVoice3Prompt, talker: CosyVoice3Talker, tokens: int, cut: int
) -> None:
    """The flow does without the first tokens of the clip; the talker hears all of them."""
    clip = some_clip(tokens, 2 * tokens)
    given = tensors(prompt, ResolvedVoice(clip, TRANSCRIPT, "zero_shot"), options={"align": True})
    made = talker.plan(given, {"seed": 1}, {"align": True})
    np.testing.assert_array_equal(made.request.prompt.heard_tokens, clip[TOKENS])
    np.testing.assert_array_equal(made.context, clip[TOKENS][cut:, None])
    np.testing.assert_array_equal(made.voice[MEL], clip[MEL][2 * cut :])
    assert made.chunk_frames == stream_chunks(tokens - cut) and (made.chunk_frames[0] == 16) == (tokens >= 100)
    assert len(plan(talker, given).context) == tokens, "without the option nothing is cut"


def test_chunks_end_where_a_block_does() -> None:
    """Blocks of 25 are counted from the reference's first token on; the flow sees 3 tokens ahead."""
    for reference in range(1, 80):
        first, *others = stream_chunks(reference)
        assert (reference + first - 3) % 25 == 0 and 10 <= first < 35
        assert all(each % 25 == 0 for each in others)


@pytest.mark.parametrize(
    ("artifacts", "error", "message"),
    [
        (some_clip(0, 9), InvalidArgument, "too short; give some seconds"),
        (some_clip(3, 1), InvalidArgument, "too short; give some seconds"),
        (some_clip(751, 1502), InvalidArgument, "has 751 frames, and this server takes at most 750"),
        ({**some_clip(3, 6), SPEAKER: np.zeros(191, np.float32)}, Internal, "belong to another checkpoint"),
        ({**some_clip(3, 6), MEL: np.zeros((6, 128), np.int16)}, Internal, "belong to another checkpoint"),
    ],
)
def test_voices_that_are_refused(
    prompt: CosyVoice3Prompt, artifacts: Arrays, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tensors(prompt, ResolvedVoice(artifacts, TRANSCRIPT, "zero_shot"))


CLIP: dict[str, Any] = {"voice": None, "reference_audio": b"..."}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"options": {"instruct": "Whisper."}, "x_vector_only": False}, "not cloned in context"),
        ({"options": {"instruct": "a " * 2000}}, "options.instruct has .* at most 1024 are allowed"),
        ({**CLIP, "reference_text": "a <|im_end|>"}, "reference_text holds '<|im_end|>', a control token"),
    ],
)
def test_speeches_that_are_refused(prompt: CosyVoice3Prompt, asked: dict[str, Any], message: str) -> None:
    speech = SpeechRequest(**{"text": "Good morning.", "voice": "Ada", **asked})
    with pytest.raises((InvalidArgument, Unsupported), match=message.replace("|", r"\|")):
        prompt.draft(speech)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("text_ids", np.array([1280], np.int32), "text_ids must lie in 0..1279"),
        ("text_ids", np.zeros(0, np.int32), "text_ids must be INT32 of 1 dimension and not empty"),
        ("prefix_ids", np.array([-1], np.int32), "prefix_ids must lie in 0..1279"),
        ("heard_tokens", np.array([CODES], np.uint16), "heard_tokens must lie in 0..6560"),
        ("heard_tokens", np.zeros(3, np.int32), "heard_tokens must be UINT16 of 1 dimension$"),
        (TOKENS, np.full(30, CODES, np.uint16), "speech_tokens must be UINT16 .* lie in 0..6560"),
        (MEL, np.zeros((59, 80), np.int16), r"mel must be INT16 \[60, 80\]"),
        (SPEAKER, np.zeros(192, np.float64), r"speaker must be FP32 \[192\]"),
    ],
)
def test_prompts_that_are_refused(
    talker: CosyVoice3Talker, prompt: CosyVoice3Prompt, name: str, value: NDArray[Any], message: str
) -> None:
    given = {**tensors(prompt), name: value}
    with pytest.raises(InvalidArgument, match=message):
        talker.source.start(0, plan(talker, given).request)


def test_speech_is_neither_too_short_nor_too_long(tmp_path: Path, prompt: CosyVoice3Prompt) -> None:
    """Two frames a token of the text at least, where the model would end at once; and as many as the budget has."""
    folder = make_cosyvoice3_talker(tmp_path / "checkpoint", ends=True)
    ends = load_talker(settings(folder, MAX_LENGTH="1024"))
    given = tensors(prompt, text="Good morning. We read the same short story.")
    lengths = []
    for seed in range(8):
        request = ends.plan(given, {"seed": seed}, {}).request
        assert request.min_frames == 2 * len(given["text_ids"]) and request.budgeted
        assert request.max_frames == 375
        lengths.append(len(spoken(ends.source, request)[0]))
    assert min(lengths) >= request.min_frames and max(lengths) < 375


def test_long_silence_is_not_heard(talker: CosyVoice3Talker, prompt: CosyVoice3Prompt) -> None:
    request = plan(talker, tensors(prompt)).request
    assert request.pauses == PAUSES and PAUSES.most == 5 and max(PAUSES.silent) < CODES


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_a_gpu_gets_all_of_a_step(
    folder: Path,
    prompt: CosyVoice3Prompt,
    talker: CosyVoice3Talker,
    precision: str,
    graphs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU that is none: nothing is left on another device or in another type, and fp32 speaks as on a CPU."""
    monkeypatch.setattr(GraphRunner, "on", lambda device: GraphRunner())  # steps of fixed shapes run as they are
    given = [tensors(prompt), tensors(prompt, some_voice(None), options={"instruct": "Whisper."})]
    with pretend_gpu():
        asked = settings(folder, DEVICE="cuda", PRECISION=precision, CUDA_GRAPHS=graphs)
        on_gpu = load_talker(asked)
        on_gpu.source.prepare()
        made = spoken(on_gpu.source, *(plan(on_gpu, each).request for each in given))
    assert on_gpu.source.ahead == (graphs == "true")
    if precision == "fp32":
        for ours, theirs in zip(
            made, spoken(talker.source, *(plan(talker, each).request for each in given)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert [len(frames) for frames in made] == [FRAMES, FRAMES]
