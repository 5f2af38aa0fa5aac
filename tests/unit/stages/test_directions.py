"""Files of directions, and styles that name some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from voice_clone_client import InvalidArgument as Refused
from voice_clone_client.embedding import encoded_direction
from voice_clone_client.types import clips_and_directions

from voice_clone.errors import CheckpointError, InvalidArgument
from voice_clone.speech import SpeechRequest
from voice_clone.stages.directions import MOST, read_directions, without_directions

VECTOR = np.array([1, -2], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "directions").mkdir()
    return tmp_path / "directions"


def test_files_of_a_checkpoint(tmp_path: Path, folder: Path) -> None:
    (folder / "joy.safetensors").write_bytes(encoded_direction("joy", VECTOR, "f"))
    save_file({"calm": VECTOR, "rage": 3 * VECTOR}, folder / "more.safetensors", {"fingerprint": "g", "scale": "0.5"})
    found = read_directions(tmp_path)
    assert {name: (each.vector.tolist(), each.fingerprint) for name, each in found.items()} == {
        "joy": ([1, -2], "f"), "calm": ([0.5, -1], "g"), "rage": ([1.5, -3], "g")
    }  # fmt: skip
    assert read_directions(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"joy": VECTOR}, None),
        ({"joy": VECTOR}, {"scale": "1"}),
        ({"joy": VECTOR}, {"fingerprint": "f", "scale": "nan"}),
        ({"joy": VECTOR}, {"fingerprint": "f", "scale": "big"}),
        ({"Joy": VECTOR}, {"fingerprint": "f"}),
        ({"neutral": VECTOR}, {"fingerprint": "f"}),
        ({"a b": VECTOR}, {"fingerprint": "f"}),
        ({"known": VECTOR}, {"fingerprint": "f"}),
        ({"joy": VECTOR.astype(np.float16)}, {"fingerprint": "f"}),
        ({"joy": VECTOR[None]}, {"fingerprint": "f"}),
        ({"joy": VECTOR * np.float32(np.inf)}, {"fingerprint": "f"}),
    ],
)
def test_a_file_of_something_else_is_named(
    tmp_path: Path, folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    save_file({"known": VECTOR}, folder / "a.safetensors", {"fingerprint": "f"})
    save_file(tensors, folder / "b.safetensors", metadata)
    with pytest.raises(CheckpointError, match=r"directions/b\.safetensors.*direction make"):
        read_directions(tmp_path)


def test_directions_are_bounded(tmp_path: Path, folder: Path) -> None:
    (folder / "cut.safetensors").write_bytes(encoded_direction("joy", VECTOR, "f")[:-1])
    with pytest.raises(CheckpointError, match=r"directions/cut\.safetensors"):
        read_directions(tmp_path)
    vectors = {f"d{number}": VECTOR for number in range(MOST + 1)}
    save_file(vectors, folder / "cut.safetensors", {"fingerprint": "f"})
    with pytest.raises(CheckpointError, match=f"at most {MOST}"):
        read_directions(tmp_path)


@pytest.mark.parametrize("name", ["Joy", "neutral", "instructions", "a b", "", "x" * 65, "joy:1"])
def test_a_name_that_no_style_could_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="1 to 64 of a-z"):
        encoded_direction(name, VECTOR, "f")


@pytest.mark.parametrize(
    ("style", "clips", "strengths", "of_client"),
    [
        (None, None, {}, (["neutral"], "")),
        ("happy", "happy", {}, (["happy"], "")),
        ("Happy, neutral", "Happy, neutral", {}, (["happy", "neutral"], "")),
        ("joy:0.6", None, {"joy": 0.6}, (["neutral"], "+joy:0.6")),
        ("+joy:-3", None, {"joy": -3.0}, (["neutral"], "+joy:-3")),
        ("a,b+Joy: 1+calm:0", "a,b", {"joy": 1.0, "calm": 0.0}, (["a", "b"], "+Joy: 1+calm:0")),
        ("joy:1+calm:2", None, {"joy": 1.0, "calm": 2.0}, (["neutral"], "+joy:1+calm:2")),
    ],
)
def test_directions_of_a_style(
    style: str | None, clips: str | None, strengths: dict[str, float], of_client: tuple[list[str], str]
) -> None:
    """The client sees the same clips in it as the server."""
    speech, found = without_directions(SpeechRequest(text="A", voice="Ada", style=style))
    assert (speech.style, found) == (clips, strengths)
    assert clips_and_directions(style) == of_client


@pytest.mark.parametrize(
    "style", ["joy:", "joy:x", "joy:nan", "joy:inf", "joy:3.01", "joy:1+joy:2", "joy:1+happy", "a+", "joy:+0.6"]
)
def test_a_wrong_strength_says_what_is_right(style: str) -> None:
    with pytest.raises(InvalidArgument, match=r"from -3 to 3, such as joy:0\.6, without a plus sign"):
        without_directions(SpeechRequest(text="A", voice="Ada", style=style))


def test_a_ready_embedding_has_no_style() -> None:
    """A caller that makes the embedding adds the vector to it."""
    with pytest.raises(InvalidArgument, match="registered voice or of a voice_prompt"):
        SpeechRequest(text="A", speaker_embedding=VECTOR, style="joy:0.6")
