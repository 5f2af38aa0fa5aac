"""What Pocket TTS alone does: its texts, its end, its heads, its converter, and the file without an encoder."""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.doubles.fakes import clip
from tests.support.families.bare import Bare, run
from tests.support.families.trials import bare
from tools.families.pocket_tts.checkpoint_maker import SHAPES, make_checkpoint, make_mute, released
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.families.pocket_tts.config import NO_ENCODER, config_of
from voice_clone.families.pocket_tts.encoder import end_on_pause
from voice_clone.families.pocket_tts.prompt import ended, prepared
from voice_clone_server.complete_checkpoint import main
from voice_clone_server.families.pocket_tts import completer
from voice_clone_server.families.recognition import FamilyError, family_of
from voice_clone_server.preflight import check_checkpoints
from voice_clone_server.triton_server import MODELS

TEXT = "Good morning to all of you."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pocket") / "tiny"
    make_checkpoint("tiny", 0, made, "fp32")
    return made


@pytest.fixture(scope="module")
def own(folder: Path) -> Bare:
    return bare("pocket_tts", folder)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("wait -", "Wait."),
        ("it\u2019s  late", "It's late."),
        ('he said "hi"', 'He said "hi".'),
        ('"Yes!" he', '"Yes!" he.'),
        ("U.S.A. and 3.5", "U.S.A. and 3.5."),
        ("Done?)", "Done?)"),
        ("one\ntwo", "One two."),
    ],
)
def test_a_text_is_prepared(text: str, read: str, own: Any) -> None:
    assert ended(prepared(text, own.prompt.config)) == read


def test_blanks_stand_before_a_short_text_if_the_configuration_says_so(tmp_path: Path) -> None:
    make_checkpoint("tiny-pointwise", 0, tmp_path / "made", "fp32")
    tokenizer: Any = bare("pocket_tts", tmp_path / "made").prompt.tokenizer  # type: ignore[attr-defined]
    short, long = tokenizer.text_ids("Good morning; yes."), tokenizer.text_ids(TEXT)
    assert tokenizer.vocabulary.library.decode(short.tolist()) == " " * 8 + "Good morning, yes."
    assert tokenizer.vocabulary.library.decode(long.tolist()) == TEXT


@pytest.mark.parametrize("token", ["<s>", "</s>", "<unk>", "<0x41>"])
def test_a_text_that_spells_a_token_is_refused(token: str, own: Bare) -> None:
    with pytest.raises(InvalidArgument, match="remove it"):
        own.prepared(f"Good {token} morning", own.voice(clip(1, 1.0, 24000)))


@pytest.mark.parametrize(
    ("text", "asked", "heard"),
    [
        ("Good morning.", {}, 11),
        (TEXT, {}, 9),
        (TEXT, {"frames_after_end": 0}, 6),
        (TEXT, {"frames_after_end": 2}, 8),
    ],
)
def test_the_end_of_a_speech(text: str, asked: dict[str, Any], heard: int, own: Bare) -> None:
    """Above this threshold each frame is an end: the first that counts is the seventh. Few words end later."""
    spoken = own.speak(text, own.voice(clip(1, 1.0, 24000)), options={"end_threshold": -10.0, **asked})
    assert (len(spoken.codes), spoken.finish) == (heard, "stop")


def test_a_warm_voice_reads_its_text_alone(own: Bare) -> None:
    request = own.plan(TEXT, own.voice(clip(1, 2.0, 24000)), max_frames=1).request
    source = own.talker.source
    run(source, [request])
    unread = source.start(0, request)
    source.free(0)
    assert unread == len(request.prompt.text_ids) + 1  # and the row that begins the speech


def test_eight_streams_of_all_options_are_what_they_are_alone(own: Bare) -> None:
    """Steps, temperatures, thresholds and ends are mixed. Without sampling the seed means nothing."""
    requests = [
        own.plan(
            TEXT,
            own.voice(clip(1, 1.0, 24000)),
            seed=seed,
            max_frames=16,
            do_sample=seed > 1,
            temperature=0.2 * (seed + 1),
            options={"steps": 1 + seed // 2, "end_threshold": (10.0, -10.0)[seed // 4], "frames_after_end": seed},
        ).request
        for seed in range(8)
    ]
    alone, beside = [run(own.talker.source, [each])[0] for each in requests], run(own.talker.source, requests)
    for (one, why), (other, reason) in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one, other)
        assert why == reason
    np.testing.assert_array_equal(alone[0][0], alone[1][0])
    assert [len(frames) for frames, _ in alone] == [16, 16, 16, 16, 10, 11, 12, 13]


def test_steps_are_those_of_a_head_that_has_them(tmp_path: Path) -> None:
    make_checkpoint("tiny-drifting", 0, tmp_path / "made", "fp32")
    own = bare("pocket_tts", tmp_path / "made")
    voice = own.voice(clip(1, 1.0, 24000))
    assert len(own.speak(TEXT, voice, max_frames=3, options={"steps": 1}).codes) == 3
    with pytest.raises(Unsupported, match="makes a frame in one step"):
        own.prepared(TEXT, voice, options={"steps": 2})


def test_a_clip_ends_on_a_pause() -> None:
    rate = 24000
    speech = np.sin(np.arange(rate) / 9).astype(np.float32)
    made = end_on_pause(np.concatenate([speech, np.zeros(rate, np.float32)]), rate)
    assert len(made) == rate + int(0.08 * rate) and made[rate - 1] == 0
    assert len(end_on_pause(speech[:400], rate)) == 400


def test_the_file_without_an_encoder_is_told_before_a_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mute = make_mute(folder, tmp_path / "mute")
    check_checkpoints({"pocket_tts": mute}, [MODELS])
    assert NO_ENCODER in capsys.readouterr().err
    [encoder] = bare("pocket_tts", mute).encoders
    assert encoder.modes == {"reference": NO_ENCODER}
    check_checkpoints({"pocket_tts": folder}, [MODELS])
    assert not capsys.readouterr().err


def test_a_release_is_completed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of another language is read by its configuration alone, which pip fetches by the folder's name."""
    source = copy.deepcopy({**SHAPES["tiny"], "weights_path": "hf://there"})
    source["flow_lm"]["lookup_table"] |= {"tokenizer": "tokenizers", "tokenizer_path": "hf://there"}

    def fetch(command: list[str], **_: Any) -> Any:
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "package.whl", "w") as wheel:
            wheel.writestr("pocket_tts/config/german.yaml", yaml.safe_dump(source))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(completer.subprocess, "run", fetch)
    release = tmp_path / "german"
    release.mkdir()
    assert main([str(release)]) == 1, "there are no weights"
    for name in ("model.safetensors", "tokenizer.json"):
        (release / name).symlink_to(folder / name)
    for given in (release, tmp_path):
        with pytest.raises(FamilyError, match=f"run once: tools/complete_checkpoint {release}"):
            family_of(given, [MODELS])
    assert main([str(release)]) == 0
    assert "there" not in (release / "pocket_tts.json").read_text()
    voice = bare("pocket_tts", folder).voice(clip(1, 1.0, 24000))
    assert bare("pocket_tts", release).speak(TEXT, voice, max_frames=2).codes.size
    assert main([str(release), "--from", "french"]) == 1
    assert "give --from one of german" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("flow_lm.flow", "type", "flow_matching"),
        ("mimi.seanet", "pad_mode", "reflect"),
        ("mimi.seanet", "n_residual_layers", 3),
        ("flow_lm.transformer", "num_kv_heads", 3),
        ("mimi.quantizer", "output_dimension", 7),
        ("flow_lm.lookup_table", "dim", 7),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused(part: str, name: str, value: Any) -> None:
    values = copy.deepcopy(SHAPES["tiny"])
    first, second = part.split(".")
    values[first][second][name] = value
    with pytest.raises(CheckpointError, match=name):
        config_of(values)


def test_the_released_sizes() -> None:
    """Millions of weights of the talker."""
    found = {shape: sum(each.numel() for each in made.talker.parameters()) for shape, made in released().items()}
    wanted = {"100m": 89.4, "100m-2026-01": 89.9, "336m": 316.0, "18m": 15.6, "7m": 4.2, "2m": 0.9}
    assert found.keys() == wanted.keys()
    for shape, millions in wanted.items():
        assert abs(found[shape] / 1e6 - millions) < 0.06 + 0.01 * millions, (shape, found[shape])
