"""The prefix of a voice is read once, and no bit of a stream depends on whether it was read or kept."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.families.talkers import codes_of, make_prompt, make_talker, native_of, read_config
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.prompt_reader import prefill_length, voice_length
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.lru_cache import Origin

MAX_LENGTH = 96
HOW = SamplingParameters(seed=7)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("equal", tmp_path_factory.mktemp("checkpoint") / "folder")


@pytest.fixture(scope="module")
def talker(config: Qwen3TTSConfig) -> Talker:
    return native_of(make_talker(config, 0), "fp32")


def generator_of(talker: Talker, config: Qwen3TTSConfig, prefix_bytes: int) -> Generator[Prompt]:
    return Generator(talker, 2, MAX_LENGTH, prefix_bytes=prefix_bytes)


def positions_of(config: Qwen3TTSConfig, count: int) -> int:
    """Bytes of their keys and values."""
    talker = config.talker
    return count * 2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * 4


def unread(generator: Generator, prompt: Prompt, origin: Origin | None = None) -> int:
    """Positions that a stream with this prompt has to read; they are read."""
    count = generator.start(0, TalkerRequest(prompt, HOW, 4, origin=origin or Origin.unknown()))
    generator.prefill({0: count})
    generator.free(0)
    return count


def known(prompt: Prompt) -> tuple[Origin, Prompt]:
    """The prompt of some voice on disk."""
    return Origin.unknown(), prompt


VOICES: list[dict[str, Any]] = [
    {},
    {"non_streaming": True, "language": "german"},
    {"icl": True},
    {"icl": True, "language": "english"},
    {"icl": True, "non_streaming": True},
]


@pytest.mark.parametrize("piece", [1, 5, MAX_LENGTH])
@pytest.mark.parametrize("kinds", VOICES, ids=str)
def test_a_voice_is_read_once_and_no_bit_shows_it(
    talker: Talker, config: Qwen3TTSConfig, kinds: dict[str, Any], piece: int
) -> None:
    """Another text in another slot, read in pieces of any size."""
    first = make_prompt(config, 3, **kinds)
    again = replace(first, text_ids=make_prompt(config, 4).text_ids)
    keeping, forgetful = generator_of(talker, config, 1 << 20), generator_of(talker, config, 0)
    assert unread(keeping, first) == prefill_length(first)
    states, codes = [], []
    for generator, known in ((keeping, voice_length(first)), (forgetful, 0)):
        left = generator.start(1, TalkerRequest(again, HOW, 12))
        assert left == prefill_length(again) - known
        while left:
            count = min(left, piece)
            generator.prefill({1: count})
            left -= count
        states.append(generator.model.hidden[1].copy())
        codes.append(codes_of(generator, 1))
    np.testing.assert_array_equal(*states)
    assert len(codes[0]) == 12
    np.testing.assert_array_equal(*codes)


def test_a_transcript_longer_than_its_clip(talker: Talker, config: Qwen3TTSConfig) -> None:
    """The rest of it comes frame by frame, and the last position is always read: the first frame comes from it."""
    prompt = make_prompt(config, 3, icl=True)
    short = replace(prompt, reference_codes=prompt.reference_codes[:2], reference_ids=np.arange(9, dtype=np.int32))
    assert voice_length(short) == prefill_length(short)
    generator = generator_of(talker, config, 1 << 20)
    assert [unread(generator, short), unread(generator, short)] == [prefill_length(short), 1]


def test_every_part_of_a_voice_distinguishes_its_prefix(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 3, icl=True, language="english")
    generator = generator_of(talker, config, 1 << 20)
    others = [
        prompt,
        replace(prompt, role_ids=prompt.role_ids + 1),
        replace(prompt, speaker_embedding=prompt.speaker_embedding + np.float32(1)),
        replace(prompt, reference_ids=prompt.reference_ids + 1),
        replace(prompt, reference_ids=prompt.reference_ids[:-1]),
        replace(prompt, reference_codes=prompt.reference_codes[::-1].copy()),
        replace(prompt, language_id=None),
        replace(prompt, non_streaming_mode=True),
    ]
    for other in others:
        assert unread(generator, other) == prefill_length(other)
    for other in others:
        assert unread(generator, other) < prefill_length(other)


def test_the_longest_unused_goes_first_and_bytes_stay_below_the_limit(talker: Talker, config: Qwen3TTSConfig) -> None:
    one, two, three = (make_prompt(config, seed) for seed in (1, 2, 3))
    length = voice_length(one)
    generator = generator_of(talker, config, positions_of(config, 2 * length) + 1)
    for prompt in (one, two, one, three):
        unread(generator, prompt)
    assert generator.prefixes.nbytes == positions_of(config, 2 * length)
    known = [prefill_length(prompt) - unread(generator, prompt) for prompt in (one, three, two)]
    assert known == [length, length, 0]
    small = generator_of(talker, config, positions_of(config, length) - 1)
    assert unread(small, one) == unread(small, one) == prefill_length(one)
    assert small.prefixes.nbytes == 0


def test_a_reset_forgets(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt = make_prompt(config, 1)
    generator = generator_of(talker, config, 1 << 20)
    unread(generator, prompt)
    generator.reset()
    assert generator.prefixes.nbytes == 0 and unread(generator, prompt) == prefill_length(prompt)


def test_only_of_native_code(config: Qwen3TTSConfig) -> None:
    """Elsewhere the bits of a position depend on how many are read with it."""
    generator, prompt = generator_of(make_talker(config, 0), config, 1 << 20), make_prompt(config, 1)
    assert unread(generator, prompt) == unread(generator, prompt) == prefill_length(prompt)
    assert generator.restore([known(prompt)], 60.0) == 0


def test_voices_are_restored_beforehand(talker: Talker, config: Qwen3TTSConfig) -> None:
    """As many as fit; the most wanted is the last to go; what belongs to another checkpoint is passed over."""
    prompts = [make_prompt(config, seed) for seed in range(4)]
    foreign = replace(prompts[0], speaker_embedding=prompts[0].speaker_embedding[:-1])
    length = voice_length(prompts[0])
    generator = generator_of(talker, config, positions_of(config, 2 * length))
    assert generator.restore(map(known, [foreign, *prompts]), 60.0) == 2
    assert generator.live == frozenset()
    unread(generator, prompts[3])
    read = [prefill_length(prompt) - unread(generator, prompt) for prompt in prompts[:2]]
    assert read == [length, 0]
    assert generator_of(talker, config, 1 << 20).restore(map(known, prompts), 1e-9) == 0


def test_a_forgotten_voice_leaves_no_prefix(talker: Talker, config: Qwen3TTSConfig) -> None:
    """Neither the one that is there, nor one of a stream that found the voice before."""
    prompt, generator = make_prompt(config, 1), generator_of(talker, config, 1 << 20)
    whole = prefill_length(prompt)
    generator.restore([(Origin("7", 0.0), prompt)], 60.0)
    assert unread(generator, prompt, Origin("8", time.monotonic())) < whole
    early = Origin("9", time.monotonic())
    count = generator.start(1, TalkerRequest(prompt, HOW, 4, origin=early))  # it reads while its voice is deleted
    assert generator.forget(()).voices == {"7", "8", "9"}
    assert generator.forget(["8"]) == (0, 0, frozenset())
    generator.prefill({1: count})
    assert unread(generator, prompt, early) == whole and generator.forget(()).entries == 0
    assert unread(generator, prompt, Origin("10", time.monotonic())) == whole
    assert generator.forget(()).voices == {"10"}


def test_owners_of_one_clip_share_no_prefix(talker: Talker, config: Qwen3TTSConfig) -> None:
    prompt, generator = make_prompt(config, 1), generator_of(talker, config, 1 << 20)
    whole = prefill_length(prompt)
    for scope in ("", "of ada", "of bob", "voice 7"):
        origin = Origin.unknown()._replace(scope=scope)
        generator.restore([(origin, prompt)] if scope == "of bob" else [], 60.0)
        reads = [unread(generator, prompt, origin) == whole for _ in range(2)]
        assert reads == [scope != "of bob", False]
