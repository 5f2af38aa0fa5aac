"""Loading weights: bad files are refused, and only the requested tensors are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone.errors import CheckpointError
from voice_clone.families.qwen3_tts.checkpoint import Checkpoint
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker

Stage = tuple[Callable[[Qwen3TTSConfig], nn.Module], str, str]
STAGES: dict[str, Stage] = {
    "talker": (lambda config: Talker(config), "model", "talker."),
    "speaker encoder": (lambda config: SpeakerEncoder(config.speaker_encoder), "model", "speaker_encoder."),
    "codec encoder": (
        lambda config: CodecEncoder(config.codec.encoder_config, config.codec.encoder_valid_num_quantizers),
        "speech_tokenizer/model",
        "encoder.",
    ),
    "codec decoder": (lambda config: CodecDecoder(config.codec.decoder_config), "speech_tokenizer/model", "decoder."),
}
SOME_TENSOR = {
    "talker": "codec_head.weight",
    "speaker encoder": "fc.weight",
    "codec encoder": "downsample.conv.weight",
    "codec decoder": "pre_conv.conv.weight",
}
TEXT_EMBEDDING = "model.text_embedding.weight"


def load(folder: Path, stage: str, dtype: torch.dtype | None = None, keep: tuple[str, ...] = ()) -> nn.Module:
    build, file, prefix = STAGES[stage]
    checkpoint = Checkpoint(folder)
    with torch.device("meta"):
        module = build(checkpoint.config)
    checkpoint.load(module, file, prefix, dtype, "cpu", keep)
    return module


def refusal(folder: Path, stage: str = "talker") -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder, stage)
    message = str(caught.value)
    assert "\n" not in message and str(folder) not in message
    return message


@pytest.fixture
def copy(checkpoint_folder: Callable[[str, int], Path], tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil."""
    return Path(shutil.copytree(checkpoint_folder("tiny", 0), tmp_path / "copy"))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # not mapped: the file is replaced
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_holds_the_tensors_of_the_file(checkpoint_folder: Callable[[str, int], Path], stage: str) -> None:
    folder = checkpoint_folder("tiny", 0)
    _, file, prefix = STAGES[stage]
    stored = load_file(folder / f"{file}.safetensors")
    module = load(folder, stage, torch.float32)
    assert module.state_dict()
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[prefix + name].float()), name


def test_without_a_dtype_tensors_stay_as_stored(checkpoint_folder: Callable[[str, int], Path]) -> None:
    module = load(checkpoint_folder("tiny", 0), "talker")
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.bfloat16}


def test_kept_tensors_are_mapped_and_others_are_not(checkpoint_folder: Callable[[str, int], Path]) -> None:
    folder = checkpoint_folder("tiny", 0)
    state = load(folder, "talker", torch.float32, keep=(TEXT_EMBEDDING,)).state_dict()
    assert state[TEXT_EMBEDDING].dtype == torch.bfloat16
    mapped = [
        tuple(int(address, 16) for address in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(folder / "model.safetensors"))
    ]

    def is_mapped(name: str) -> bool:
        return any(start <= state[name].data_ptr() < end for start, end in mapped)

    assert [name for name in state if is_mapped(name)] == [TEXT_EMBEDDING]


def test_a_stage_does_not_need_the_tensors_of_others(copy: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("talker.")]:
            del tensors[name]

    rewrite(copy / "model.safetensors", drop)
    load(copy, "speaker encoder")
    (copy / "speech_tokenizer" / "model.safetensors").unlink()
    load(copy, "speaker encoder")
    assert refusal(copy).startswith("model.safetensors: tensor talker.")


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_tensor_is_named(copy: Path, stage: str) -> None:
    _, file, prefix = STAGES[stage]
    name = prefix + SOME_TENSOR[stage]

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    rewrite(copy / f"{file}.safetensors", drop)
    assert refusal(copy, stage) == f"{file}.safetensors: tensor {name} is missing"


@pytest.mark.parametrize("stage", STAGES)
def test_a_wrong_shape_is_named(copy: Path, stage: str) -> None:
    _, file, prefix = STAGES[stage]
    name = prefix + SOME_TENSOR[stage]
    shapes: list[tuple[int, ...]] = []

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        whole = tensors[name]
        tensors[name] = whole[:1].contiguous()
        shapes.extend((tuple(tensors[name].shape), tuple(whole.shape)))

    rewrite(copy / f"{file}.safetensors", cut)
    assert refusal(copy, stage) == f"{file}.safetensors: {name}: shape {shapes[0]}, expected {shapes[1]}"


def test_integers_are_refused(copy: Path) -> None:
    def convert(tensors: dict[str, torch.Tensor]) -> None:
        tensors["encoder.downsample.conv.weight"] = tensors["encoder.downsample.conv.weight"].to(torch.int8)

    rewrite(copy / "speech_tokenizer" / "model.safetensors", convert)
    message = refusal(copy, "codec encoder")
    assert message == (
        "speech_tokenizer/model.safetensors: encoder.downsample.conv.weight: type I8, expected one of F32, F16, BF16"
    )


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(copy: Path, length: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert refusal(copy).startswith("model.safetensors: not a whole safetensors file")


def test_a_missing_file_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert refusal(copy) == "model.safetensors: the file is missing from the checkpoint folder"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, "talker_config: rope_scaling is of type 'yarn'"),
        ({"use_sliding_window": True}, "talker_config: use_sliding_window is set"),
        ({"attention_bias": True}, "talker_config: attention_bias is set"),
        ({"hidden_act": "gelu"}, "talker_config: hidden_act is 'gelu'"),
        ({"code_predictor_config": {"use_sliding_window": True}}, "code_predictor_config: use_sliding_window is set"),
    ],
)
def test_a_variant_that_is_not_computed_is_refused(copy: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((copy / "config.json").read_text())
    talker = config["talker_config"]
    predictor = {**talker["code_predictor_config"], **change.get("code_predictor_config", {})}
    config["talker_config"] = {**talker, **change, "code_predictor_config": predictor}
    (copy / "config.json").write_text(json.dumps(config))
    assert message in refusal(copy)


def test_encoders_of_different_rates_are_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["speaker_encoder_config"]["sample_rate"] = 16000
    (copy / "config.json").write_text(json.dumps(config))
    assert "speaker_encoder_config.sample_rate is 16000, but the codec's input_sample_rate is 24000" in refusal(copy)


@pytest.mark.parametrize(
    ("kind", "talker", "message"),
    [
        ("singer", {}, "tts_model_type is 'singer'; known are base, custom_voice, voice_design"),
        ("custom_voice", {}, "spk_id is empty, but a CustomVoice checkpoint has speakers"),
        ("custom_voice", {"spk_id": {"a": "b"}}, "spk_id must be the speakers' tokens by name"),
        ("custom_voice", {"spk_id": {"a": 3072}}, "spk_id of a must lie in 0..3071"),
        (
            "custom_voice",
            {"spk_id": {"a": 1}, "spk_is_dialect": {"a": True}},
            "spk_is_dialect must be a dialect or false",
        ),
        (
            "custom_voice",
            {"spk_id": {"a": 1}, "spk_is_dialect": {"a": "x"}},
            "codec_language_id lacks 'x', which a speaks",
        ),
    ],
)
def test_the_kind_of_a_checkpoint(copy: Path, kind: str, talker: dict[str, Any], message: str) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["tts_model_type"] = kind
    config["talker_config"] |= talker
    (copy / "config.json").write_text(json.dumps(config))
    assert message in refusal(copy)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("talker_config", {"codec_eos_token_id": 3072}, "talker_config: codec_eos_token_id must lie in 0..3071"),
        ("talker_config", {"codec_language_id": {"a": -1}}, "codec_language_id of a must lie in 0..3071"),
        (None, {"tts_pad_token_id": 151671}, "config.json: tts_pad_token_id must lie in 0.."),
        (None, {"tts_eos_token_id": "end"}, "config.json: tts_eos_token_id must lie in 0.."),
    ],
)
def test_tokens_beyond_the_tables_are_refused(
    copy: Path, part: str | None, change: dict[str, Any], message: str
) -> None:
    """At load, not with the first request."""
    config = json.loads((copy / "config.json").read_text())
    (config if part is None else config[part]).update(change)
    (copy / "config.json").write_text(json.dumps(config))
    assert message in refusal(copy)


class TestShards:
    @pytest.fixture
    def sharded(self, tmp_path: Path) -> Path:
        make_checkpoint("tiny", 0, tmp_path / "sharded", shards=3)
        return tmp_path / "sharded"

    def test_load_the_same(self, checkpoint_folder: Callable[[str, int], Path], sharded: Path) -> None:
        assert len(list(sharded.glob("model-0000?-of-00003.safetensors"))) == 3
        assert not (sharded / "model.safetensors").exists()
        whole, parts = (load(folder, "talker").state_dict() for folder in (checkpoint_folder("tiny", 0), sharded))
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[name], parts[name]) for name in whole)

    def test_have_the_same_fingerprint(self, checkpoint_folder: Callable[[str, int], Path], sharded: Path) -> None:
        names = list(load(sharded, "speaker encoder").state_dict())
        first, second = (
            Checkpoint(folder).stage_fingerprint("model", "speaker_encoder.", names)
            for folder in (checkpoint_folder("tiny", 0), sharded)
        )
        assert first == second

    def test_a_missing_shard_is_named(self, sharded: Path) -> None:
        shard = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"][
            "talker.codec_head.weight"
        ]
        (sharded / shard).unlink()
        assert refusal(sharded) == f"{shard}: the file is missing from the checkpoint folder"

    def test_a_tensor_missing_from_the_index_is_named(self, sharded: Path) -> None:
        self.change_index(sharded, None)
        message = refusal(sharded)
        assert message == "model.safetensors.index.json: tensor talker.codec_head.weight is missing"

    def test_shards_outside_the_folder_are_refused(self, sharded: Path) -> None:
        self.change_index(sharded, "../model.safetensors")
        assert "not in a file of this folder" in refusal(sharded)

    def change_index(self, folder: Path, shard: str | None) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"]["talker.codec_head.weight"] = shard
        path.write_text(json.dumps(index))


class TestFingerprint:
    NAMES = ("fc.weight", "fc.bias")

    def of(self, folder: Path) -> str:
        return Checkpoint(folder).stage_fingerprint("model", "speaker_encoder.", self.NAMES)

    def test_is_a_sha256_and_the_same_each_time(self, copy: Path) -> None:
        first = self.of(copy)
        assert len(first) == 64 and int(first, 16) >= 0
        assert self.of(copy) == first
        assert Checkpoint(copy).stage_fingerprint("model", "speaker_encoder.", self.NAMES[::-1]) == first

    def test_changes_with_one_weight(self, copy: Path) -> None:
        first = self.of(copy)

        def nudge(tensors: dict[str, torch.Tensor]) -> None:
            tensors["speaker_encoder.fc.bias"][3] += 1

        rewrite(copy / "model.safetensors", nudge)
        assert self.of(copy) != first

    def test_changes_with_the_dtype(self, copy: Path) -> None:
        first = self.of(copy)

        def widen(tensors: dict[str, torch.Tensor]) -> None:
            tensors["speaker_encoder.fc.bias"] = tensors["speaker_encoder.fc.bias"].float()

        rewrite(copy / "model.safetensors", widen)
        assert self.of(copy) != first

    def test_changes_with_the_stage_s_configuration_alone(self, copy: Path) -> None:
        first = self.of(copy)
        path = copy / "config.json"
        config = json.loads(path.read_text())
        config["talker_config"]["rope_theta"] = 12345
        path.write_text(json.dumps(config))
        assert self.of(copy) == first
        config["speaker_encoder_config"]["mel_dim"] = 80
        path.write_text(json.dumps(config))
        assert self.of(copy) != first

    def test_does_not_change_with_another_stage_s_weights(self, copy: Path) -> None:
        first = self.of(copy)

        def nudge(tensors: dict[str, torch.Tensor]) -> None:
            tensors["talker.codec_head.weight"] += 1

        rewrite(copy / "model.safetensors", nudge)
        assert self.of(copy) == first

    def test_names_a_missing_tensor(self, copy: Path) -> None:
        with pytest.raises(CheckpointError, match=r"^model\.safetensors: tensor speaker_encoder\.no is missing$"):
            Checkpoint(copy).stage_fingerprint("model", "speaker_encoder.", ["no"])
