"""What the training computes at once is what the package's networks compute step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.demo_voice.dataset import Record
from tools.demo_voice.qwen3_tts.corpus import CodedClip
from tools.demo_voice.qwen3_tts.decoder_forward import decode
from tools.demo_voice.qwen3_tts.shape import codec_shape
from tools.demo_voice.qwen3_tts.talker_batch import NOTHING, collate, lay_out
from tools.demo_voice.qwen3_tts.talker_data import Spoken
from tools.demo_voice.qwen3_tts.talker_forward import complete, embed, embed_frames, predict, run
from tools.demo_voice.qwen3_tts.variations import Variation
from tools.demo_voice.synthesis import Utterance
from tools.families.qwen3_tts.checkpoint_config import SHAPES
from tools.families.qwen3_tts.checkpoint_maker import write_configuration
from tools.families.qwen3_tts.checkpoint_weights import fill_random
from voice_clone.autoregressive.predictor_by_step import complete_by_steps, frame_cache
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Talker:
    config = write_configuration(SHAPES["tiny"], tmp_path_factory.mktemp("configuration"))
    network = Talker(config)
    fill_random(network, "talker.", 3)
    return network


def spoken(config: Qwen3TTSConfig, tokens: int, frames: int, seed: int) -> Spoken:
    source = np.random.default_rng(seed)
    ids = source.integers(200, size=tokens)
    codes = source.integers(config.talker.vocab_size - 1024, size=(frames, config.talker.num_code_groups))
    no_one = Record(0, "", Utterance(np.zeros(0, np.int16), np.zeros(0, np.int16), np.zeros(0, np.float32)))
    at = np.sort(source.integers(tokens, size=frames))
    return Spoken(CodedClip(no_one, Variation(1.0, 0), codes.astype(np.uint8)), ids, codes, at)


def prompt_of(
    parts: list[Spoken], role: np.ndarray, speaker: np.ndarray, language: int | None, non_streaming: bool
) -> Prompt:
    """The server's prompt for the last part, with those before as its reference."""
    *references, said = parts
    return Prompt(
        role.astype(np.int32),
        said.tokens.astype(np.int32),
        speaker,
        np.concatenate([np.zeros(0, np.int32), *(part.tokens.astype(np.int32) for part in references)]),
        references[0].codes.astype(np.int32) if references else np.zeros((0, said.codes.shape[1]), np.int32),
        language,
        non_streaming,
    )


@pytest.mark.parametrize("sizes", [[(5, 12)], [(30, 9)], [(4, 9), (7, 11)], [(12, 6), (7, 11)]])
@pytest.mark.parametrize("language", ["english", None])
@pytest.mark.parametrize("non_streaming", [False, True])
def test_positions_are_those_of_the_server(
    talker: Talker, sizes: list[tuple[int, int]], language: str | None, non_streaming: bool
) -> None:
    config = talker.config
    identity = None if language is None else config.talker.codec_language_id[language]
    parts = [spoken(config, *size, seed) for seed, size in enumerate(sizes)]
    role = np.array([3, 4, 5], np.int32)
    speaker = torch.randn(1, config.talker.hidden_size, generator=torch.Generator().manual_seed(1))
    prompt = prompt_of(parts, role, speaker[0].numpy(), identity, non_streaming)
    layout = lay_out(parts, config, role, identity, non_streaming)
    mine = embed(talker, collate([layout], CPU).positions, speaker)[0]

    served = talker.embed_prompt(prompt)
    said = torch.from_numpy(parts[-1].codes)
    frames = talker.embed_frames(said)  # what the generator feeds after the prompt
    text = torch.cat([served.trailing_text, served.pad.expand(len(said), -1)])[: len(said)]
    theirs = torch.cat([served.embeds, frames + text])
    assert mine.shape == theirs.shape
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)

    first = layout.next[:, 0]
    spoken_frames = sum(len(part.codes) for part in parts)
    assert (first != NOTHING).sum() == spoken_frames + 1 and first[-1] == config.talker.codec_eos_token_id
    assert np.array_equal(first[-1 - len(said) : -1], parts[-1].codes[:, 0])
    # Each frame looks at its own token, unless that comes later.
    at = layout.spoken[-1 - spoken_frames : -1]
    seen = at != NOTHING
    tokens = np.concatenate([part.tokens[part.spoken] for part in parts])
    assert seen.any() == (non_streaming or len(parts[0].tokens) < 30) and np.array_equal(
        layout.text[at[seen]], tokens[seen]
    )
    assert np.all(at[seen] <= np.flatnonzero(seen) + len(first) - 1 - spoken_frames)


def test_hidden_states_are_those_of_the_cache(talker: Talker) -> None:
    x = torch.randn(2, 17, talker.config.talker.hidden_size, generator=torch.Generator().manual_seed(2))
    hidden, seen = run(talker.model, x, guided=(1, 2))
    cache = talker.model.new_cache(2, 32)
    for slot in range(2):
        for length in (1, 9, 17):
            theirs = talker.model.prefill(cache, slot, x[slot, :length])
            torch.testing.assert_close(hidden[slot, length - 1], theirs, rtol=1e-4, atol=1e-4)
    assert seen is not None
    torch.testing.assert_close(seen.exp().sum(dim=2), torch.ones(2, 17))
    assert not seen.exp().triu(1).any()


def test_padding_changes_nothing(talker: Talker) -> None:
    config = talker.config
    layouts = [lay_out([spoken(config, 5, frames, frames)], config, np.array([3, 4, 5]), None) for frames in (8, 13)]
    speaker = torch.randn(2, config.talker.hidden_size, generator=torch.Generator().manual_seed(1))
    both, _ = run(talker.model, embed(talker, collate(layouts, CPU).positions, speaker))
    short, _ = run(talker.model, embed(talker, collate(layouts[:1], CPU).positions, speaker[:1]))
    torch.testing.assert_close(both[0, : short.shape[1]], short[0], rtol=1e-4, atol=1e-4)


def test_predicted_codes_are_those_of_the_steps(talker: Talker) -> None:
    source = torch.Generator().manual_seed(4)
    hidden = torch.randn(3, talker.config.talker.hidden_size, generator=source)
    code0 = torch.randint(2048, (3,), generator=source)
    chosen: list[torch.Tensor] = []

    def choose(logits: torch.Tensor, book: int) -> torch.Tensor:
        chosen.append(logits)
        return logits.argmax(dim=-1)

    cache = frame_cache(talker.code_predictor, 3)
    codes = complete_by_steps(talker.code_predictor, cache, hidden, code0, talker.embed_codec_tokens(code0), choose)
    mine = predict(talker, hidden, codes)
    torch.testing.assert_close(mine, torch.stack(chosen, dim=1), rtol=1e-4, atol=1e-4)
    assert torch.equal(complete(talker, hidden, code0, 1e-4, source), codes)  # so cold that the likeliest is drawn
    torch.testing.assert_close(embed_frames(talker, codes), talker.embed_frames(codes), rtol=1e-5, atol=1e-5)


def test_decoded_audio_is_that_of_the_stream() -> None:
    decoder = CodecDecoder(codec_shape().decoder_config)
    fill_random(decoder, "decoder.", 3)
    codes = torch.randint(256, (2, 16, 40), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        mine = decode(decoder, codes, 40).clamp(-1, 1)
    theirs = decoder(codes)
    assert theirs.abs().mean() > 0.01
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
