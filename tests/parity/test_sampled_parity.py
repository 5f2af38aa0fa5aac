"""Sampled codes against the official package, which draws at our uniforms; and a long greedy speech."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.families.talkers import SHAPES, make_prompt
from tests.support.official.official_talker import Pair, our_draws
from voice_clone.families.qwen3_tts.sampling import SamplingParameters

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]

FRAMES = 100
LONG_FRAMES = 400
# Rounding moves the bound between two codes, a probability, by about 1e-6; a logit by 5e-7.
NEAR, CUT = 1e-5, 2e-6
# Options of the official `generate`; ours has `do_sample` in one word more.
SAMPLINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "subtalker heated": {"subtalker_temperature": 1.6, "subtalker_top_k": 0, "subtalker_top_p": 0.7},
    "subtalker narrow": {"subtalker_temperature": 0.5, "subtalker_top_k": 4},
    "subtalker greedy": {"subtalker_dosample": False, "temperature": 1.2, "top_k": 7},
    "talker greedy": {"do_sample": False, "repetition_penalty": 1.4, "subtalker_top_p": 0.4},
    "both": {"temperature": 0.7, "top_k": 0, "top_p": 0.6, "repetition_penalty": 1.0, "subtalker_top_k": 9},
}
USUAL = {("projected", "default")}  # of seed 0, in the default run
CASES = [(shape, seed, name) for shape in SHAPES for seed in range(3) for name in SAMPLINGS]


def ours(options: dict[str, Any], seed: int) -> SamplingParameters:
    """Our parameters for those of the official `generate`."""
    given = {name.replace("dosample", "do_sample"): value for name, value in options.items()}
    return SamplingParameters(seed=seed, **given)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Pair]:
    """By shape and seed of the weights, made when first asked for."""

    class Pairs(dict[tuple[str, int], Pair]):
        def __missing__(self, key: tuple[str, int]) -> Pair:
            self[key] = Pair(*key, tmp_path_factory.mktemp("checkpoint") / "folder")
            return self[key]

    return Pairs()


@pytest.mark.parametrize(
    ("shape", "seed", "name"),
    [
        pytest.param(*case, marks=[] if case[1] == 0 and (case[0], case[2]) in USUAL else pytest.mark.long)
        for case in CASES
    ],
)
def test_sampled_codes(pairs: dict[tuple[str, int], Pair], shape: str, seed: int, name: str) -> None:
    pair, options = pairs[shape, seed], SAMPLINGS[name]
    prompt = make_prompt(pair.config, seed, icl=bool(seed % 2), language="english")
    for drawn in itertools.count(10**12 + seed):  # the first seed at which rounding decides nothing
        with our_draws(pair.config, drawn, NEAR) as draws:
            expected = pair.official_codes(prompt, "english", FRAMES, **options)
            if draws.cut <= CUT:  # of top-k
                continue
            codes = [pair.our_codes(prompt, ours(options, drawn), FRAMES, native) for native in (False, True)]
        if not any(draws.close_call(each, expected, CUT) for each in codes):
            break
    assert expected.shape == (FRAMES, 16)
    assert options.get("subtalker_dosample", True) == (draws.frames >= FRAMES), "the official package drew elsewhere"
    assert len(draws.moved) < 0.1 * expected.size
    assert len(np.unique(expected)) > 200 and len(np.unique(expected[:, 0])) > 20  # else the comparison is empty
    np.testing.assert_array_equal(codes[0], expected)
    np.testing.assert_array_equal(codes[1], expected, err_msg="native")
    other = pair.our_codes(prompt, ours(options, drawn + 1), FRAMES)
    assert (other[:, 0] != expected[:, 0]).any(), "another seed draws the same"


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_long_greedy_speech(pairs: dict[tuple[str, int], Pair], shape: str) -> None:
    pair = pairs[shape, 0]
    prompt = make_prompt(pair.config, 3, icl=True)
    greedy: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False}
    expected = pair.official_codes(prompt, None, LONG_FRAMES, **greedy)
    assert expected.shape == (LONG_FRAMES, 16) and len(np.unique(expected[:, 0])) > 20
    for native in (False, True):
        np.testing.assert_array_equal(pair.our_codes(prompt, ours(greedy, 0), LONG_FRAMES, native), expected)
