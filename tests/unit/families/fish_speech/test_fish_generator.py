"""Fish Speech: lower precisions, frames beyond every table, configurations, memory and budgets."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.fish import FISH_SHAPES, load_fish_talker, make_fish
from tests.support.families.in_torch import InTorch
from tests.support.families.trials import bare
from tests.support.oracles.fish_speech import load_codec, random_prompt
from tools.families.fish_speech.checkpoint_config import RELEASED_VOCABULARY, SHAPES, model_config
from tools.families.fish_speech.checkpoint_maker import write_checkpoint
from voice_clone.checkpoint_folder import parse
from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.families.fish_speech.checkpoint import Checkpoint
from voice_clone.families.fish_speech.codec import NativeCodecDecoder
from voice_clone.families.fish_speech.codec_decoder import CodecDecoder
from voice_clone.families.fish_speech.config import FishSpeechConfig, load_config
from voice_clone.families.fish_speech.prompt import CODES, Prompt, Tokenizer
from voice_clone.families.fish_speech.talker import Talker
from voice_clone.families.fish_speech.talker_network import SlowTransformer
from voice_clone.settings import PRECISIONS, Precision
from voice_clone.speech import ResolvedVoice

pytestmark = pytest.mark.thorough

FRAMES, STREAMS = 16, 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(make_fish(tmp_path_factory.mktemp("fish") / "checkpoint"))


def talker_of(checkpoint: Checkpoint, kind: str) -> Talker:
    return load_fish_talker(checkpoint, None if kind == "torch" else kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_a_lower_precision_is_close(checkpoint: Checkpoint, precision: Precision) -> None:
    """The logits after a prompt, against fp32; the tiny widths suffer more from few bits than the released ones."""
    prompt, hidden = random_prompt(checkpoint, 3), []
    for kind in ("fp32", precision):
        talker = talker_of(checkpoint, kind)
        cache = talker.stack.new_cache(1, 256)
        hidden.append(talker.head.logits(talker.stack.prefill(cache, 0, talker.embed_prompt(prompt).embeds)[None])[0])
    error = float((hidden[0] - hidden[1]).std() / hidden[0].std())
    assert 0 < error < {"bf16": 0.03, "int8": 0.03, "int4": 0.5}[precision]


def test_streams_beyond_every_official_table(checkpoint: Checkpoint) -> None:
    """Positions are absolute and have no last: frame 5000 is decoded, the same in any chunks and beside a fresh one."""
    _, decoder = load_codec(checkpoint)
    limits = torch.tensor(checkpoint.config.code_limits)
    codes = (torch.rand(1, 8, 10, generator=torch.Generator().manual_seed(0)) * limits).long().transpose(1, 2)

    def far(network: Any) -> Any:
        state = network.new_state(1)
        state.position = state.position + 5000
        return state

    wanted = decoder.decode_chunk(codes, far(decoder))
    native = InTorch(NativeCodecDecoder(lambda: decoder))
    torch.testing.assert_close(native.decode_chunk(codes, far(native)), wanted, atol=1e-5, rtol=1e-3)
    state = far(native)
    parts = [native.decode_chunk(part, state) for part in torch.split(codes, 3, dim=2)]
    assert torch.equal(torch.cat(parts, dim=1), native.decode_chunk(codes, far(native)))
    assert not torch.equal(native.decode_chunk(codes, native.new_state(1)), torch.cat(parts, dim=1))


def test_a_checkpoint_in_shards_and_bf16_speaks_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "shards")]
    for folder, shards in zip(folders, (1, 3), strict=True):
        folder.mkdir()
        write_checkpoint(FISH_SHAPES["tiny"], 4, folder, "bf16", shards)
    assert len([*folders[1].glob("model-*.safetensors")]) > 1
    codes = random_prompt(checkpoint, 2).reference_codes
    voice = ResolvedVoice({CODES: codes}, "One two.", "icl")
    spoken = [bare("fish_speech", folder).speak("Hello.", voice, max_frames=6, seed=3) for folder in folders]
    np.testing.assert_array_equal(spoken[0].samples, spoken[1].samples)


def test_the_prompt_is_checked(checkpoint: Checkpoint) -> None:
    prompt = random_prompt(checkpoint, 0)
    codes = prompt.reference_codes.copy()
    codes[0, 3] = 1024
    with pytest.raises(InvalidArgument, match="by codebook"):
        Prompt(prompt.reference_ids, codes, prompt.text_ids).check(checkpoint.config)
    with pytest.raises(InvalidArgument, match="expected 10"):
        Prompt(prompt.reference_ids, codes[:, :9], prompt.text_ids).check(checkpoint.config)
    with pytest.raises(InvalidArgument, match="UINT16"):
        Prompt(prompt.reference_ids, codes.astype(np.int32), prompt.text_ids)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3_tts"}, "not 'fish_qwen3_omni'"),
        ({"semantic_end_token_id": 5}, "semantic tokens"),
        ({"text_config": {"tie_word_embeddings": False}}, "tie_word_embeddings is False; only True"),
        ({"audio_decoder_config": {"attention_qk_norm": True}}, "not supported"),
        ({"audio_decoder_config": {"attention_qk_norm": None}}, "audio_decoder_config.attention_qk_norm is set"),
        ({"audio_decoder_config": {"dim": 32}}, "differ; not supported"),
        ({"audio_decoder_config": [1]}, "expected a JSON object"),
        ({"text_config": {"dim": "wide"}}, "unexpected value"),
    ],
)
def test_a_configuration_that_would_not_be_computed_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    values = json.loads((checkpoint.folder / "config.json").read_text())
    for name, value in change.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        load_config(tmp_path)


def test_what_the_fast_transformer_leaves_out_is_the_slow_ones(checkpoint: Checkpoint, tmp_path: Path) -> None:
    values = json.loads((checkpoint.folder / "config.json").read_text())
    for name in ("dim", "n_head", "head_dim", "intermediate_size"):
        del values["audio_decoder_config"][name]
    values["audio_decoder_config"]["n_local_heads"] = None
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert load_config(tmp_path) == checkpoint.config


def test_the_memory_of_a_stream_is_what_the_documentation_says() -> None:
    """Of the released sizes; the networks have no memory of their own here."""
    shape = SHAPES["s2-pro"]
    config = parse(FishSpeechConfig, model_config(shape, defaultdict(int), RELEASED_VOCABULARY), "config.json")
    with torch.device("meta"):
        cache = SlowTransformer(config).new_cache(8, 4096)
        state = CodecDecoder(shape.codec).new_state(1)
    assert cache.nbytes == 8 * 4096 * 294_912
    assert state.nbytes == pytest.approx(8.9e6, rel=0.01)


def test_a_text_has_a_budget_of_frames(checkpoint: Checkpoint) -> None:
    """Without max_frames, the family's own: a stream that uses it up has missed its end."""
    stages = bare("fish_speech", checkpoint.folder)
    voice = ResolvedVoice({CODES: random_prompt(checkpoint, 2).reference_codes}, "One two.", "icl")
    empty = Tokenizer(checkpoint.folder, checkpoint.config).text_ids("")
    for text, knobs, frames, budgeted in (
        ("Hi.", {}, 331, True),
        ("word " * 40, {}, None, True),
        ("Hi.", {"max_frames": 5}, 5, False),
        ("Hi.", {"max_frames": 4000}, 331, True),
    ):
        plan = stages.plan(text, voice, **knobs)
        expected = frames or 21 * (len(plan.request.prompt.text_ids) - len(empty))
        assert (plan.request.max_frames, plan.request.budgeted) == (expected, budgeted)
    with pytest.raises(InvalidArgument, match="max_frames is 0"):
        stages.plan("Hi.", voice, max_frames=0)
