"""params.json: what it leaves out, what is refused, and what a quick look at a folder finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.families.voxtral import load_voxtral_network, make_voxtral
from tools.families.voxtral.checkpoint_config import SHAPES, VOICES, model_params
from tools.families.voxtral.checkpoint_maker import make_checkpoint, make_endless
from tools.families.weight_files import write_json
from voice_clone.errors import CheckpointError
from voice_clone.families.voxtral.checkpoint import Checkpoint
from voice_clone.families.voxtral.config import CodecConfig, load_config
from voice_clone.families.voxtral.family import CARD
from voice_clone_server.families.cards import check_checkpoint

check = partial(check_checkpoint, CARD, "voice_clone.families.voxtral")

pytestmark = pytest.mark.thorough


@pytest.fixture
def released(tmp_path: Path) -> dict[str, Any]:
    """params.json of the released shape."""
    content = model_params(SHAPES["4b"], 131072)
    write_json(tmp_path / "params.json", content)
    return content


def test_the_released_shape(released: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert (config.dim, config.n_layers, config.n_heads, config.n_kv_heads) == (3072, 26, 32, 8)
    assert config.flow.n_decoding_steps == 7, "which the file lacks"
    assert config.code_limits == (8192, *[21] * 36) and config.id_limits == (8194, *[23] * 36)
    assert (config.frame_rate, config.codec.frame_samples) == (12.5, 1920)
    assert config.codec.encoder_blocks == ((2, 4, 2), (2, 4, 2), (2, 4, 2), (2, 3, 1)), "which the file lacks"
    assert config.codec.decoder_blocks == ((2, 3, 1), (2, 4, 2), (2, 4, 2), (2, 4, 2))
    assert config.presets == VOICES and len(VOICES) == 20
    assert config.presets[1] == "casual_male" and config.presets[19] == "hi_female"
    assert config.codec == CodecConfig(voice=config.codec.voice), "the defaults are the released values"


Change = Callable[[dict[str, Any]], object]


def audio(part: str, **values: Any) -> Change:
    return lambda content: content["multimodal"][part].update(values)


def flow(**values: Any) -> Change:
    return lambda content: content["multimodal"]["audio_model_args"]["acoustic_transformer_args"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(model_type="voxtral"), "model_type is 'voxtral', not 'voxtral_tts'"),
        (lambda content: content.pop("dim"), "the key 'dim' is missing"),
        (lambda content: content.update(n_layers="26"), "n_layers: unexpected value '26'"),
        (lambda content: content.pop("multimodal"), "the key 'multimodal' is missing"),
        (lambda content: content.update(multimodal=[]), "multimodal: expected a JSON object"),
        (lambda content: content.update(n_kv_heads=5), "n_heads 32 is no multiple of n_kv_heads 5"),
        (audio("audio_tokenizer_args", causal=False), "causal is False; only True is supported"),
        (audio("audio_tokenizer_args", channels=2), "channels is 2; only 1 is supported"),
        (audio("audio_tokenizer_args", semantic_codebook_size=4096), "disagree about codebooks"),
        (audio("audio_tokenizer_args", decoder_convs_strides_str="1,2,2"), "must be of one length"),
        (audio("audio_tokenizer_args", decoder_convs_strides_str="1,2,2,x"), "must be like '2,2,2,2'"),
        (audio("audio_tokenizer_args", decoder_convs_strides_str="1,2,2,4"), "strides must be 1 or 2"),
        (audio("audio_tokenizer_args", decoder_convs_strides_str="1,1,2,2"), "must change the rate alike"),
        (audio("audio_tokenizer_args", attn_sliding_window_size=12), "it must be a multiple of 8"),
        (audio("audio_tokenizer_args", patch_proj_kernel_size=9), "must not be above the 8 patches"),
        (audio("audio_tokenizer_args", sampling_rate=0), "sampling_rate is 0; it must be above 0"),
        (
            audio("audio_tokenizer_args", pretransform_patch_size=0),
            "pretransform_patch_size is 0; it must be above 0",
        ),
        (audio("audio_tokenizer_args", voice={"a": "b"}), "voice: unexpected value"),
        (audio("audio_model_args", n_acoustic_codebook=35), "disagree about codebooks"),
        (flow(use_biases=True), "use_biases is True; only False is supported"),
        (flow(input_dim=1024), "input_dim is 1024; only 3072 is supported"),
        (flow(n_decoding_steps=0), "n_decoding_steps is 0; it must be above 0"),
    ],
)
def test_what_is_refused(released: dict[str, Any], tmp_path: Path, change: Change, message: str) -> None:
    change(released)
    write_json(tmp_path / "params.json", released)
    with pytest.raises(CheckpointError, match=message):
        load_config(tmp_path)


def test_unknown_keys_are_ignored(released: dict[str, Any], tmp_path: Path) -> None:
    expected = load_config(tmp_path)
    for part in (released, released["multimodal"], *released["multimodal"].values()):
        part["of_tomorrow"] = {"a": 1}
    write_json(tmp_path / "params.json", released)
    assert load_config(tmp_path) == expected


def test_a_quick_look_at_the_folder(tmp_path: Path) -> None:
    whole = make_voxtral(tmp_path / "whole")
    check(whole)
    for name, message in (
        ("params.json", "the file is missing"),
        ("tekken.json", "the file is missing"),
        ("consolidated.safetensors", "the file is missing"),
        (
            "voices.safetensors",
            "voice_embedding is not converted yet; run once: voice-clone-server convert-pickles",
        ),
    ):
        broken = tmp_path / name
        shutil.copytree(whole, broken)
        (broken / name).unlink()
        with pytest.raises(CheckpointError, match=message):
            check(broken)
    with (whole / "voices.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match=r"voices.safetensors: not a whole"):
        check(whole)


def test_every_voice_must_be_there(tmp_path: Path) -> None:
    """At load, not when one is asked for."""
    folder = make_voxtral(tmp_path / "checkpoint")
    assert set(Checkpoint(folder).voices()) == set(VOICES)
    content = json.loads((folder / "params.json").read_text())
    content["multimodal"]["audio_tokenizer_args"]["voice"]["another"] = 20
    write_json(folder / "params.json", content)
    with pytest.raises(CheckpointError, match="the voice another is missing"):
        Checkpoint(folder).voices()
    content["multimodal"]["audio_tokenizer_args"].pop("voice")
    write_json(folder / "params.json", content)
    assert Checkpoint(folder).voices() == {}, "a checkpoint may have none"


@pytest.mark.parametrize("shards", [1, 3])
def test_an_endless_checkpoint_differs_in_the_end_of_speech_alone(tmp_path: Path, shards: int) -> None:
    make_checkpoint("tiny-presets", 0, tmp_path / "whole", shards=shards)
    endless = make_endless(tmp_path / "whole", tmp_path / "endless")
    before, after = (
        dict(load_voxtral_network(Checkpoint(folder)).named_parameters()) for folder in (tmp_path / "whole", endless)
    )
    differ = {name: (value != after[name]).any(dim=-1).nonzero() for name, value in before.items()}
    [(name, rows)] = [(name, rows) for name, rows in differ.items() if len(rows)]
    assert name == "flow.semantic_codebook_output.weight" and rows.tolist() == [[0]] and not after[name][0].any()
    linked = [file.name for file in endless.iterdir() if file.is_symlink()]
    assert len(linked) == len([*(tmp_path / "whole").iterdir()]) - 1
