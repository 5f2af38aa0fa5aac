"""What all families check alike of a checkpoint folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from voice_clone.checkpoint_folder import (
    check_converted,
    check_file,
    check_fixed,
    check_folder,
    multiple_of,
    parse,
    read_recognised,
    read_tokenizer,
    sizes_of,
)
from voice_clone.errors import CheckpointError

FIXED = {"bias": False, "scaling": None, "strides": [1, 1]}


@pytest.mark.parametrize("values", [{}, {"scaling": None}, {"bias": False, "strides": [1, 1], "other": 3}])
def test_a_key_that_is_missing_is_right(values: dict[str, Any]) -> None:
    check_fixed(values, FIXED, "config.json: layers.")


def test_null_is_right_where_the_official_code_takes_it_for_nothing() -> None:
    check_fixed({"bias": None, "strides": None}, FIXED, "config.json: layers.", null=True)
    with pytest.raises(CheckpointError):
        check_fixed({"bias": True}, FIXED, "config.json: layers.", null=True)


@pytest.mark.parametrize("values", [{"bias": True}, {"bias": None}, {"scaling": {}}, {"strides": [1, 2]}])
def test_another_value_is_refused_by_the_name_of_its_key(values: dict[str, Any]) -> None:
    [(name, value)] = values.items()
    with pytest.raises(CheckpointError) as refused:
        check_fixed(values, FIXED, "config.json: layers.")
    assert str(refused.value) == f"config.json: layers.{name} is {value!r}; only {FIXED[name]!r} is supported"


@dataclass(frozen=True)
class Voices:
    voice: Mapping[str, int]
    theta: float = 1.0
    factors: tuple[float, ...] = ()


def test_numbers_are_parsed() -> None:
    parsed = parse(Voices, {"voice": {"a": 1}, "theta": 2, "factors": [3, 0.5]}, "config.json")
    assert parsed == Voices({"a": 1}, 2.0, (3.0, 0.5)) and isinstance(parsed.theta, float)


@pytest.mark.parametrize(
    "values",
    [
        {"voice": {"a": "1"}},
        {"voice": {"a": 1, "b": None}},
        {"voice": {"a": True}},
        {"voice": ["a"]},
        {"theta": 10**400},
        {"theta": math.nan},
        {"theta": math.inf},
        {"theta": True},
        {"factors": [1.0, 10**400]},
        {"factors": [False]},
    ],
)
def test_other_values_are_refused(values: dict[str, Any]) -> None:
    [name] = values
    with pytest.raises(CheckpointError, match=f"config.json: {name}: unexpected value"):
        parse(Voices, {"voice": {}, **values}, "config.json")


def test_pickles_without_what_is_made_of_them_are_refused(tmp_path: Path) -> None:
    check_converted(tmp_path, "codec", "codec.pth")  # neither: its weights are then missing
    (tmp_path / "codec.pth").touch()
    (tmp_path / "voice_embedding").mkdir()
    for weights, pickles in (("codec", "codec.pth"), ("voices", "voice_embedding")):
        with pytest.raises(CheckpointError, match=f"{pickles} is not converted yet; .* convert-pickles"):
            check_converted(tmp_path, weights, pickles)
        (tmp_path / f"{weights}.safetensors").touch()
        check_converted(tmp_path, weights, pickles)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    check_folder(tmp_path)
    with pytest.raises(CheckpointError, match="set checkpoint_dir or VOICE_CLONE_CHECKPOINT_DIR"):
        check_folder(tmp_path / "other")
    for check in (check_file, read_tokenizer):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*missing"):
            check(tmp_path, "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    check_file(tmp_path, "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer that can be read"):
        read_tokenizer(tmp_path, "tokenizer.json")


@dataclass(frozen=True)
class Heads:
    keys: int
    heads: int = field(default=6, metadata=multiple_of("keys"))
    sizes: tuple[int, ...] = (1, 2)


def test_numbers_have_limits() -> None:
    assert parse(Heads, {"keys": 2}, "config.json", positive=True) == Heads(2)
    for values, message in (
        ({"keys": 4}, "config.json: heads 6 is no multiple of keys 4"),
        ({"keys": 0}, "config.json: keys is 0; it must be above 0"),
        ({"keys": 2, "sizes": [1, -1]}, "sizes is .* it must be above 0"),
    ):
        with pytest.raises(CheckpointError, match=message):
            parse(Heads, values, "config.json", positive=True)


def test_a_checkpoint_is_recognised_by_the_mark_of_its_family(tmp_path: Path) -> None:
    mark = "config.json: model_type=made_up"
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_recognised(tmp_path, mark)
    (tmp_path / "config.json").write_text('{"model_type": "made_up", "size": 3}')
    assert read_recognised(tmp_path, mark)["size"] == 3
    with pytest.raises(CheckpointError, match="model_type is 'made_up', not 'other'"):
        read_recognised(tmp_path, "config.json: model_type=other")


SIZES = {"width": ("in.weight", 2, 1)}


def test_sizes_are_read_from_tensors() -> None:
    shapes = {"in.weight": (3, 5), "layers.0.a": (1,), "layers.1.a": (1,), "layers.1.b": (1,)}
    assert sizes_of(shapes, "the file", SIZES, {"parts": "layers"}) == {"width": 5, "parts": 2}


@pytest.mark.parametrize(
    ("shapes", "wrong"),
    [
        ({}, "in.weight"),
        ({"in.weight": (5,)}, "in.weight"),
        ({"in.weight": (3, 0)}, "in.weight"),
        ({"in.weight": (3, 5)}, "parts"),
        ({"in.weight": (3, 5), "layers.1.a": (1,)}, "parts"),
        ({"in.weight": (3, 5), "layers.x.a": (1,)}, "parts"),
    ],
)
def test_what_gives_no_size_is_named(shapes: dict[str, tuple[int, ...]], wrong: str) -> None:
    with pytest.raises(CheckpointError, match=f"the file: .*{wrong}"):
        sizes_of(shapes, "the file", SIZES, {"parts": "layers"})
