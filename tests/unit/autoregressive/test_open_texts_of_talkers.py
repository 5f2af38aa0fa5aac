"""A text that comes piece by piece gives the codes of the whole text, whatever the pieces and the company."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.support.doubles.counted_frames import Collector
from tests.support.families.talkers import make_prompt, make_talker, native_of, read_config
from tests.support.waiting import until
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.talker import MoreText, TalkerRequest
from voice_clone.batching.engine import Engine
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.native_talker import NativeTalker
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone.layers.graphs import GraphRunner

pytestmark = pytest.mark.thorough

SLOTS = 3
MAX_LENGTH = 160
PREFILL = 8
STREAMS = 6  # for each talker and kind of engine
FRAMES = 20

Codes = npt.NDArray[np.int32]


def codes_of(collector: Collector) -> Codes:
    until(collector.ended.is_set)
    assert collector.error is None
    return np.concatenate([chunk.payload for chunk in collector.chunks])


def engine_of(talker: Talker, deterministic: bool, ahead: bool) -> Engine[TalkerRequest[Prompt]]:
    generator = Generator(talker, SLOTS, MAX_LENGTH, deterministic, 5, GraphRunner() if ahead else None)
    return Engine(generator, schedule=(1, 2, 4), max_queue=64, prefill_chunk=PREFILL)


def write(engine: Engine[TalkerRequest[Prompt]], name: str, prompt: Prompt, begin: int, rng: random.Random) -> None:
    """Append the rest of a text in random pieces, with pauses in which its stream runs out of text."""
    place, end = begin, len(prompt.text_ids)
    while True:
        if rng.random() < 0.5:
            time.sleep(rng.choice((0.0, 0.002, 0.01)))
        size = rng.choice((0, 1, 1, 2, 3, 8))
        last = place + size >= end and rng.random() < 0.7
        engine.extend(name, MoreText(prompt.text_ids[place : place + size], last, FRAMES, False), last)
        place += size
        if last:
            return


@pytest.mark.parametrize(("deterministic", "ahead"), [(False, False), (True, False), (False, True)])
def test_codes_equal_those_of_the_whole_text(
    talker: Talker, config: Qwen3TTSConfig, deterministic: bool, ahead: bool
) -> None:
    if ahead and isinstance(talker, NativeTalker):
        pytest.skip("steps are begun ahead on a GPU alone, where torch computes")
    rng = random.Random(7)
    prompts = [make_prompt(config, i, icl=i % 2 == 1, language=(None, "english")[i % 3 == 0]) for i in range(STREAMS)]
    requests = [TalkerRequest(prompt, SamplingParameters(seed=50 + i), FRAMES) for i, prompt in enumerate(prompts)]
    engine = engine_of(talker, deterministic, ahead)
    whole = []
    for number, request in enumerate(requests):
        collector = Collector()
        engine.submit(f"whole {number}", request, collector)
        whole.append(codes_of(collector))
    assert all(len(codes) == FRAMES for codes in whole)
    for begin in range(0, STREAMS, SLOTS - 1):  # two open texts beside each other, and whole ones that come and go
        names, collectors = range(begin, min(begin + SLOTS - 1, STREAMS)), {}
        cuts = {number: rng.randrange(3) for number in names}
        for number in names:
            prompt = dataclasses.replace(
                prompts[number], text_ids=prompts[number].text_ids[: cuts[number]], text_open=True
            )
            collectors[number] = Collector()
            request = dataclasses.replace(requests[number], prompt=prompt)
            engine.submit(f"open {number}", request, collectors[number], text_open=True)
        company = Collector()
        engine.submit(f"company {begin}", requests[(begin + 5) % STREAMS], company)
        for number in names:
            write(engine, f"open {number}", prompts[number], cuts[number], rng)
        for number in names:
            np.testing.assert_array_equal(codes_of(collectors[number]), whole[number])
        np.testing.assert_array_equal(codes_of(company), whole[(begin + 5) % STREAMS])
    engine.close()


@pytest.mark.parametrize(("deterministic", "ahead"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("frames", [0, 1, 4, None])
def test_a_stream_goes_on_in_another_slot(
    talker: Talker, config: Qwen3TTSConfig, deterministic: bool, ahead: bool, frames: int | None
) -> None:
    """It was without a slot, for it waited for text after so many frames; None: its text is whole, and it was far
    ahead. Others have used its memory meanwhile.
    """
    if ahead and isinstance(talker, NativeTalker):
        pytest.skip("steps are begun ahead on a GPU alone, where torch computes")
    made = make_prompt(config, 1)
    is_open = frames is not None
    prompt = dataclasses.replace(made, text_ids=made.text_ids[:1], text_open=True) if is_open else made
    request, company = (
        TalkerRequest(each, SamplingParameters(seed=7), FRAMES) for each in (prompt, make_prompt(config, 2))
    )
    codes = []
    with torch.no_grad():
        for parked in (False, True):
            generator = Generator(talker, SLOTS, MAX_LENGTH, deterministic, 5, GraphRunner() if ahead else None)
            slot, heard = 0, []
            left = generator.start(slot, request)
            if frames is not None:
                generator.extend(slot, MoreText(made.text_ids[1 : 1 + frames], False, FRAMES, False))
            if frames != 0:
                generator.prefill({slot: left})
            while frames != 0 and generator.ready(slot, 0) and (is_open or len(heard) < 3):
                heard += generator.step([slot])
            if parked:
                stream = generator.park(slot)
                for other in range(2):
                    generator.prefill({other: generator.start(other, company)})
                generator.step([0, 1])
                slot = 2
                generator.resume(slot, stream)
                generator.free(0)
            if frames is not None:
                generator.extend(slot, MoreText(made.text_ids[1 + frames :], True, FRAMES, False))
            if frames == 0:
                generator.prefill({slot: generator.streams[slot].unread})
            while not heard or heard[-1].finish is None:
                heard += generator.step([slot])
            codes.append(np.stack([frame.payload for frame in heard if frame.payload is not None]))
    assert len(codes[0]) == FRAMES
    np.testing.assert_array_equal(*codes)


def test_a_text_that_is_cut_ends_as_such(talker: Talker, config: Qwen3TTSConfig) -> None:
    """The end code then has another name; a text without any token is no reason to fail."""
    with torch.no_grad():
        generator = Generator(talker, 1, MAX_LENGTH)
        prompt = dataclasses.replace(make_prompt(config, 1), text_ids=np.zeros(0, np.int32), text_open=True)
        unread = generator.start(0, TalkerRequest(prompt, SamplingParameters(seed=1), FRAMES))
        assert not generator.ready(0, unread)
        assert generator.ready(0, unread - 1)  # all but the text's first token
        generator.extend(0, MoreText(np.zeros(0, np.int32), True, 300, True, cut=True))
        assert generator.ready(0, unread)
        stream = generator.streams[0]
        assert (stream.ending, stream.limit, stream.max_frames) == ("text_timeout", "budget", 300)


@pytest.mark.parametrize("native", [False, True])
def test_rows_do_not_depend_on_the_others(tmp_path: Path, native: bool) -> None:
    """At the width of the released models, where a product of torch rounds by its number of rows."""
    config = read_config("projected", tmp_path / "checkpoint")
    wide = dataclasses.replace(config, talker=dataclasses.replace(config.talker, text_hidden_size=2048))
    torch_talker = make_talker(wide, 0)
    talker: Any = native_of(torch_talker, "fp32") if native else torch_talker
    ids = np.arange(40)
    with torch.inference_mode():
        together = talker.embed_text(ids)
        alone = np.concatenate([talker.embed_text(one) for one in np.split(ids, 40)])
        some = np.concatenate([talker.embed_text(part) for part in np.split(ids, range(7, 40, 7))])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, some)
