"""How a stream begins: which prompts are refused, how they are read in chunks, and cached = uncached."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.families.lone_streams import GREEDY, MAX_LENGTH, codes_in, solo
from tests.support.families.talkers import ROLE_IDS, TEXT_VOCAB, codes_of, make_prompt
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters


@pytest.mark.parametrize("non_streaming", [False, True])
@pytest.mark.parametrize("icl", [False, True])
@pytest.mark.parametrize("language", [None, "german"])
def test_prefill_length(
    talker: Talker, config: Qwen3TTSConfig, icl: bool, non_streaming: bool, language: str | None
) -> None:
    for seed in range(6):
        prompt = make_prompt(config, seed, icl=icl, non_streaming=non_streaming, language=language)
        built = talker.embed_prompt(prompt)
        assert built.embeds.shape == (prefill_length(prompt), config.talker.hidden_size)
        # Every text token and the end mark are either in the prefill or follow.
        total = len(prompt.text_ids) + len(prompt.reference_ids) + 1
        held = 0 if non_streaming else max(0, total - 1 - len(prompt.reference_codes))
        assert len(built.trailing_text) == held


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_prefill_in_chunks_between_steps(talker: Talker, config: Qwen3TTSConfig, chunk: int) -> None:
    """A new stream's prompt is read between the steps of another stream; both are as if alone."""
    generator = Generator(talker, 2, MAX_LENGTH)
    prompts, how = [make_prompt(config, 1), make_prompt(config, 2, icl=True)], SamplingParameters(seed=8)
    generator.start(0, TalkerRequest(prompts[0], how, 60))
    left = generator.start(1, TalkerRequest(prompts[1], how, 10))
    assert left == prefill_length(prompts[1])
    beside = []
    while left:
        beside += generator.step([0])
        generator.prefill({1: min(left, chunk)})
        left -= min(left, chunk)
    pairs = [generator.step([1, 0]) for _ in range(10)]
    codes = [codes_in(frame) for frame in [*beside, *(pair[1] for pair in pairs)]]
    np.testing.assert_array_equal(codes, solo(talker, config, prompts[0], how, len(codes)))
    np.testing.assert_array_equal([codes_in(p[0]) for p in pairs], solo(talker, config, prompts[1], how, 10))


@pytest.mark.parametrize("cut", [1, 7, 12])
def test_prefill_in_chunks_equals_whole(talker: Talker, config: Qwen3TTSConfig, cut: int) -> None:
    embeds = talker.embed_prompt(make_prompt(config, 1, icl=True)).embeds
    cache = talker.stack.new_cache(3, MAX_LENGTH)
    whole = talker.stack.prefill(cache, 0, embeds)
    talker.stack.prefill(cache, 2, embeds[:cut])
    torch.testing.assert_close(talker.stack.prefill(cache, 2, embeds[cut:], offset=cut), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(cache.keys[:, 2], cache.keys[:, 0], rtol=0, atol=1e-5)


def test_cached_equals_uncached(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Decoding position by position, in slots that are neighbours or not, equals one prefill of all."""
    embeds = talker.embed_prompt(make_prompt(config, 2, icl=True)).embeds
    length = len(embeds)
    for slots in ([0, 1], [3, 1]):
        cache = talker.stack.new_cache(4, MAX_LENGTH)
        starts = [length - 5, 3]  # streams of different lengths in one batch
        for slot, start in zip(slots, starts, strict=True):
            talker.stack.prefill(cache, slot, embeds[:start])
        for step in range(5):
            positions = [start + step for start in starts]
            hidden = talker.stack.decode(cache, slots, positions, embeds[positions])
        for row, start in enumerate(starts):
            expected = talker.stack.prefill(talker.stack.new_cache(1, MAX_LENGTH), 0, embeds[: start + 5])
            torch.testing.assert_close(hidden[row], expected, rtol=0, atol=1e-5)


def test_a_prompt_that_does_not_fit_is_refused(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt, room = make_prompt(config, 0), 12
    length = prefill_length(prompt) + room
    generator = Generator(talker, 1, length)
    with pytest.raises(InvalidArgument, match=f"at most {length} fit"):
        generator.start(0, TalkerRequest(prompt, GREEDY, room + 1))
    with pytest.raises(InvalidArgument, match="max_frames"):
        generator.start(0, TalkerRequest(prompt, GREEDY, 0))
    generator.start(0, TalkerRequest(prompt, GREEDY, room))  # the slot is still free, and the last position is usable
    assert len(codes_of(generator, 0)) == room


def test_prompts_are_checked(talker: Talker, config: Qwen3TTSConfig) -> None:
    generator = Generator(talker, 1, MAX_LENGTH)
    text, embedding = np.array([1, 2], np.int32), np.zeros(config.talker.hidden_size, np.float32)
    codes, reference = np.zeros((4, 16), np.int32), np.array([1], np.int32)
    wrong: dict[str, Callable[[], Prompt]] = {
        "text_ids": lambda: Prompt(ROLE_IDS, np.array([TEXT_VOCAB], np.int32), embedding),
        "text_ids must": lambda: Prompt(ROLE_IDS, np.array([-1], np.int32), embedding),
        "speaker_embedding has 63": lambda: Prompt(ROLE_IDS, text, embedding[1:]),
        "NaN": lambda: Prompt(ROLE_IDS, text, np.full_like(embedding, np.nan)),
        "the text is empty": lambda: Prompt(ROLE_IDS, text[:0], embedding),
        "reference_codes must": lambda: Prompt(ROLE_IDS, text, embedding, reference, codes + 2048),
        "reference codes have 15": lambda: Prompt(ROLE_IDS, text, embedding, reference, codes[:, 1:]),
        "need each other": lambda: Prompt(ROLE_IDS, text, embedding, reference),
        "language_id": lambda: Prompt(ROLE_IDS, text, embedding, language_id=1),
        "INT32": lambda: Prompt(ROLE_IDS, text.astype(np.int64), embedding),
    }
    for message, make in wrong.items():
        with pytest.raises(InvalidArgument, match=message):
            generator.start(0, TalkerRequest(make(), GREEDY, 5))
    assert not generator.live
