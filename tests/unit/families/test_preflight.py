"""What is found wrong with a checkpoint folder of every family before a server starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.families.checkpoint_faults import Fault, configured, cut, holding, renamed, without
from tests.support.families.factories import CheckpointFactory
from tests.support.families.trials import CARDS, EXAMPLE, TRIALS, bare, package_of
from tools.families.omnivoice.checkpoint_maker import make_checkpoint as make_omnivoice
from tools.families.omnivoice.checkpoint_maker import make_endless
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
from voice_clone.errors import CheckpointError
from voice_clone.families.omnivoice.config import load_config
from voice_clone.family import Family
from voice_clone_server.families.cards import check_checkpoint
from voice_clone_server.families.recognition import FamilyError
from voice_clone_server.triton_server import TritonServer

Case = tuple[str, Fault, str]  # family, what is changed, and what is said of it
BLANK = "CosyVoice-BlankEN/config.json"
MEL, TOKENS = "campplus.onnx", "speech_tokenizer_v3.onnx"


def of_files(card: Family) -> dict[str, Case]:
    """What may be wrong with the files that a card names."""
    name, mark = card.name, card.recognised_by.partition(":")[0]
    found: dict[str, Case] = {f"{name}: no {mark}": (name, without(mark), f"{mark}: the file is missing")}
    for weights in card.weights:
        file = f"{weights.name}.safetensors"
        found[f"{name}: no {file}"] = name, without(file, weights.pickles or file), f"{file}: the file is missing"
        for size in (100, 0):
            found[f"{name}: {size} bytes of {file}"] = name, cut(file, size), f"{file}: not a whole safetensors file"
        found[f"{name}: no end of {file}"] = name, cut(file, -10), f"{file}: not a whole safetensors file"
        if weights.pickles:
            converted = f"{weights.pickles} is not converted yet; run once: voice-clone-server convert-pickles"
            found[f"{name}: {file} is not converted"] = name, without(file), converted
    for graph in card.graphs:
        found[f"{name}: no {graph}"] = name, without(graph), f"{graph}: the file is missing"
        found[f"{name}: no end of {graph}"] = name, cut(graph, -1), f"{graph}: not a whole ONNX file"
    for alternatives in card.files:
        *others, last = alternatives.split("|")
        for file in last.split("+")[1:] or [last]:
            found[f"{name}: no {file}"] = name, without(file, *others), f"{file}: the file is missing"
    return found


CASES: dict[str, Case] = {
    **{name: case for card in CARDS.values() for name, case in of_files(card).items()},
    "fish: biases": (
        "fish_speech",
        configured("text_config", attention_qkv_bias=True),
        "config.json: text_config.attention_qkv_bias is True; only False is supported",
    ),
    "fish: a head of its own": (
        "fish_speech",
        configured("text_config", tie_word_embeddings=False),
        "config.json: text_config.tie_word_embeddings is False; only True is supported",
    ),
    "fish: other tokens": (
        "fish_speech",
        configured("", eos_token_id=7),
        "tokenizer.json: <|im_end|> does not have the id 7 of config",
    ),
    "fish: no tokenizer": ("fish_speech", without("tokenizer.json"), "tokenizer.json: the file is missing"),
    "cosyvoice3: no configuration": ("cosyvoice3", without(BLANK), f"{BLANK}: the file is missing"),
    "cosyvoice3: half a tokenizer": ("cosyvoice3", cut(TOKENS, 1_000_000), f"{TOKENS}: not a whole ONNX file"),
    "cosyvoice3: empty": ("cosyvoice3", holding(MEL, b""), f"{MEL}: not a whole ONNX file"),
    "cosyvoice3: no graph in it": ("cosyvoice3", holding(MEL, b"\x08\x08\x12\x02ab"), f"{MEL}: not a whole ONNX file"),
    "cosyvoice3: an endless number": ("cosyvoice3", holding(MEL, b"\xff" * 40), f"{MEL}: not a whole ONNX file"),
    "cosyvoice3: a huge length": (
        "cosyvoice3",
        holding(MEL, b"\x3a" + b"\xff" * 9 + b"\x01"),
        f"{MEL}: not a whole ONNX file",
    ),
    "cosyvoice3: a pointer of Git LFS": (
        "cosyvoice3",
        holding(TOKENS, b"version https://git-lfs.github.com/spec/v1\n"),
        f"{TOKENS}: not a whole ONNX file",
    ),
    "omnivoice: another model": (
        "omnivoice",
        configured("", model_type="other"),
        "model_type is 'other', not 'omnivoice'",
    ),
    "omnivoice: other codes": ("omnivoice", configured("", audio_vocab_size=2049), "audio_vocab_size is 2049; only"),
    "omnivoice: other layers": (
        "omnivoice",
        configured("llm_config", model_type="llama"),
        "llm_config.model_type is 'llama'",
    ),
    "omnivoice: other positions": (
        "omnivoice",
        configured("llm_config", rope_parameters={"rope_type": "yarn", "rope_theta": 1e6}),
        "rope_type must be 'default'",
    ),
    "omnivoice: no theta": ("omnivoice", configured("llm_config", rope_parameters=None), "'rope_theta' is missing"),
    "omnivoice: heads": (
        "omnivoice",
        configured("llm_config", num_key_value_heads=3),
        "num_attention_heads 4 is no multiple of",
    ),
    "omnivoice: no tokenizer": ("omnivoice", without("tokenizer.json"), "tokenizer.json: the file is missing"),
    "omnivoice: half a tokenizer": ("omnivoice", cut("tokenizer.json", -10), "not a tokenizer that can be read"),
    "omnivoice: no token": ("omnivoice", renamed("<|denoise|>", "<|noise|>"), "<|denoise|> is no token of it"),
    "omnivoice: few tokens": ("omnivoice", configured("llm_config", vocab_size=900), "in config.json is 900"),
    "omnivoice: no codec": (
        "omnivoice",
        without("audio_tokenizer/config.json"),
        "audio_tokenizer/config.json: the file is missing",
    ),
    "qwen: no speakers": (
        "qwen3_tts",
        configured("", tts_model_type="custom_voice"),
        "config.json: talker_config: spk_id is empty",
    ),
    "qwen: no configuration of the codec": (
        "qwen3_tts",
        without("speech_tokenizer/config.json"),
        "speech_tokenizer/config.json: the file is",
    ),
    "voxcpm2: VoxCPM 1": ("voxcpm2", configured("", architecture="voxcpm"), "architecture is 'voxcpm', not 'voxcpm2'"),
    "voxcpm2: muP": (
        "voxcpm2",
        configured("lm_config", use_mup=True),
        "lm_config.use_mup is True; only False is known",
    ),
    "voxcpm2: mean velocity": ("voxcpm2", configured("dit_config", mean_mode=True), "dit_config.mean_mode is True"),
    "voxcpm2: as official reads it": ("voxcpm2", configured("dit_config", dit_mean_mode=True), "dit_mean_mode is True"),
    "voxcpm2: RoPE": ("voxcpm2", configured("", residual_lm_no_rope=False), "residual_lm_no_rope is False"),
    "voxcpm2: another AudioVAE": (
        "voxcpm2",
        configured("audio_vae_config", depthwise=False),
        "depthwise is False; only True is known",
    ),
}


USUAL = ("fish_speech", "qwen3_tts")  # the others in a thorough run
CHOSEN = [
    pytest.param(name, marks=[] if family in USUAL else pytest.mark.thorough) for name, (family, *_) in CASES.items()
]


@pytest.mark.parametrize("case", CHOSEN)
def test_what_is_wrong_is_said_in_one_line_before_a_start(
    case: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """In the same words by each tool that starts a server, if it is known whose checkpoint it is."""
    family, change, message = CASES[case]
    card, package = CARDS[family], package_of(family)
    folder = Path(shutil.copytree(checkpoint(family), tmp_path / "checkpoint"))
    check_checkpoint(card, package, folder)
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        check_checkpoint(card, package, folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    mark, _, said = card.recognised_by.partition(": ")
    if package != EXAMPLE and (folder / mark).exists() and said.split("=")[-1] in (folder / mark).read_text():
        with pytest.raises(FamilyError) as refused:
            TritonServer(folder)
        assert str(refused.value).startswith(f"{folder}") and str(caught.value) in str(refused.value)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [name for name in CASES if ": no " in name and ".safetensors" in name])
def test_a_stage_does_not_open_what_is_missing(case: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Nor a pickle in its place."""
    family, change, _ = CASES[case]
    folder = Path(shutil.copytree(checkpoint(family), tmp_path / "checkpoint"))
    change(folder)
    stages, refused = bare(family, folder, PACKED_BYTES=0), []
    for load in (lambda: stages.encoders, lambda: stages.prompt, lambda: stages.talker, lambda: stages.streams):
        try:
            load()
        except CheckpointError as error:
            refused.append(str(error))
    assert refused and all(".safetensors: " in each for each in refused)


@pytest.mark.thorough
def test_kinds_on_one_server_have_one_decoder(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    base, custom, design = (checkpoint_folder(shape, 0) for shape in ("tiny", "tiny-custom", "tiny-design"))
    assert set(TritonServer([design, base, custom]).families) == {
        *("qwen3_tts", "qwen3_tts_custom_voice", "qwen3_tts_voice_design")
    }
    make_checkpoint("tiny-design", 1, tmp_path / "other")
    for first in (base, custom):
        with pytest.raises(FamilyError) as refused:
            TritonServer([first, tmp_path / "other"])
        assert "cannot be on one server: speech_tokenizer: the kinds of Qwen3-TTS share one decoder" in str(
            refused.value
        )


def test_shards(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    make_checkpoint("tiny", 0, folder, shards=3)
    card, package = CARDS["qwen3_tts"], package_of("qwen3_tts")
    check_checkpoint(card, package, folder)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"{shard.name}: not a whole safetensors file"):
        check_checkpoint(card, package, folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: the file is missing"):
        check_checkpoint(card, package, folder)


@pytest.mark.thorough
def test_checkpoints_of_omnivoice(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """One without an end is whole, too; older files have theta elsewhere; none is written over another."""
    made = checkpoint("omnivoice")
    check_checkpoint(CARDS["omnivoice"], package_of("omnivoice"), make_endless(made, tmp_path / "endless"))
    with pytest.raises(FileExistsError):
        make_omnivoice("tiny", 0, made)
    folder = Path(shutil.copytree(made, tmp_path / "checkpoint"))
    configured("llm_config", rope_parameters=None, rope_theta=5000)(folder)
    assert load_config(folder).rope_theta == 5000.0


@pytest.mark.thorough
@pytest.mark.parametrize("family", CARDS)
def test_a_checkpoint_depends_on_its_seed_alone(family: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    made = [checkpoint(family), *(TRIALS[family].make(seed, tmp_path / str(seed)) for seed in (0, 1))]
    weights = [(each / f"{CARDS[family].weights[0].name}.safetensors").read_bytes() for each in made]
    assert weights[0] == weights[1] != weights[2]
