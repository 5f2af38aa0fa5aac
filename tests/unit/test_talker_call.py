"""A call of the talker: what it may hold, and how its stream is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.talkers import make_prompt, read_config
from voice_clone.batching.stream import Chunk, Timing
from voice_clone.errors import Cancelled, InvalidArgument, VoiceCloneError
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.json_text import parse_object
from voice_clone.triton import talker_call
from voice_clone.triton.last_chunks import LastChunks
from voice_clone.triton.talker_call import TalkerCall, TalkerSink

MAX_LENGTH = 400
TIMING = Timing(queue=1.0, prefill=2.0, generate=3.0, first_frame=4.0, gap=5.0)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Qwen3TTSConfig:
    return read_config("projected", tmp_path_factory.mktemp("checkpoint") / "folder")


class Inputs:
    def __init__(self, prompt: Prompt, deadline_ms: Any = None, **tensors: Any) -> None:
        names = ("role_ids", "text_ids", "speaker_embedding", "reference_ids", "reference_codes")
        self._tensors = {name: getattr(prompt, name) for name in names}
        self._tensors |= {"language_id": np.array([-1], np.int32), "stream_id": np.array(["s"], object)}
        self._tensors |= {name: np.array([value]) for name, value in tensors.items()}
        self._deadline_ms = deadline_ms

    def array(self, name: str) -> Any:
        return self._tensors.get(name)

    def text(self, name: str) -> Any:
        return None if name not in self._tensors else str(self._tensors[name][0])

    def json_object(self, name: str) -> Any:
        return parse_object(name, self.text(name))

    def number(self, name: str) -> Any:
        return None if name not in self._tensors else self._tensors[name][0].item()

    def parameter(self, name: str) -> Any:
        return self._deadline_ms if name == "deadline_ms" else None


class Answer:
    def __init__(self, broken: bool = False) -> None:
        self.left = False
        self.sent: list[Mapping[str, Any]] = []
        self.final = False
        self.error: BaseException | None = None
        self.broken = broken

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        assert not self.final
        if self.broken and self.sent:
            raise OSError("the line is broken")
        self.sent.append(outputs)
        self.final = final

    def fail(self, error: BaseException) -> None:
        assert not self.final
        self.final, self.error = True, error

    def cancelled(self) -> bool:
        return self.left


def read(config: Qwen3TTSConfig, **given: Any) -> TalkerCall:
    return TalkerCall.read(Inputs(make_prompt(config, 1, icl=True), **given), config, MAX_LENGTH)


def chunk(index: int, frames: int, finish: str | None = None) -> Chunk:
    return Chunk(index, np.full((frames, 16), index, np.int32), frames, finish, 9, TIMING)


def test_knobs_and_seed(config: Qwen3TTSConfig) -> None:
    call = read(config, temperature=0.5, seed=7, max_frames=9)
    assert (call.request.sampling.temperature, call.request.sampling.seed, call.request.max_frames) == (0.5, 7, 9)
    assert call.deadline is None and call.info == {"seed": 7}
    seeds = {read(config).request.sampling.seed for _ in range(5)}
    assert len(seeds) == 5


def test_the_deadline_counts_from_the_beginning(config: Qwen3TTSConfig) -> None:
    for given, seconds in (({}, 5.0), ({"prompt_info": '{"prompt_ms": 2000}'}, 3.0), ({"prompt_info": "{}"}, 5.0)):
        deadline = read(config, deadline_ms=5000, **given).deadline
        assert deadline is not None and abs(deadline - time.monotonic() - seconds) < 0.5


@pytest.mark.parametrize(
    "given",
    [
        *({"deadline_ms": value} for value in (0, -1, True, "5", float("nan"), float("inf"))),
        *({"prompt_info": value} for value in ("{", "[]", "3")),
        *({"stream_id": value} for value in ("", "x" * 129)),
        {"temperature": -1.0},
        {"max_frames": 0},
        {"language_id": 5},
    ],
)
def test_nonsense(config: Qwen3TTSConfig, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        read(config, **given).request.prompt.check(config)


def test_what_is_missing_is_named(config: Qwen3TTSConfig) -> None:
    inputs = Inputs(make_prompt(config, 1))
    del inputs._tensors["reference_codes"]
    with pytest.raises(InvalidArgument, match="reference_codes is missing"):
        TalkerCall.read(inputs, config, MAX_LENGTH)


def test_chunks(config: Qwen3TTSConfig) -> None:
    call, answer = read(config, seed=3, prompt_info='{"mode": "icl"}'), Answer()
    sink = TalkerSink(call, answer, LastChunks())
    for each in (chunk(0, 1), chunk(1, 2), chunk(2, 3, "stop")):
        assert not answer.final
        sink.chunk(each)
    assert answer.final and [sent["final"] for sent in answer.sent] == [False, False, True]
    contexts = [len(sent["context_codes"]) for sent in answer.sent]
    assert contexts == [len(call.request.prompt.reference_codes), 0, 0]
    first, middle, last = (sent["info"] for sent in answer.sent)
    assert middle == "" and "finish_reason" not in json.loads(first)
    assert json.loads(last) == {
        "mode": "icl",
        "seed": 3,
        "prompt_positions": 9,
        "frames": 3,
        "finish_reason": "stop",
        "queue_ms": 1.0,
        "prefill_ms": 2.0,
        "talker_ms": 3.0,
        "first_frame_ms": 4.0,
        "chunk_gap_ms": 5.0,
    }


@pytest.mark.parametrize("error", [Cancelled("gone"), RuntimeError("secret path")])
def test_a_failure_before_the_first_chunk_is_an_error_and_later_a_last_chunk(
    config: Qwen3TTSConfig, error: Exception
) -> None:
    early, late, broken = Answer(), Answer(), Answer(broken=True)
    TalkerSink(read(config), early, LastChunks()).fail(error)
    assert early.error is error and not early.sent
    for answer in (late, broken):
        sink = TalkerSink(read(config), answer, LastChunks())
        sink.chunk(chunk(0, 4))
        sink.fail(error)
        assert answer.final
    assert isinstance(broken.error, VoiceCloneError) and late.error is None
    last = late.sent[-1]
    info = json.loads(last["info"])
    assert last["chunk_index"] == 1 and last["codes"].shape == (0, 16) and info["frames"] == 4
    slug = "cancelled" if isinstance(error, Cancelled) else "internal"
    assert info["finish_reason"] == slug and info["error"].startswith(f"{slug}: ")
    assert "secret" not in info["error"]


def test_beats(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks without frames that are not final, between the chunks, with the index of the next one."""
    call, answer = read(config), Answer()
    sink = TalkerSink(call, answer, LastChunks())
    monkeypatch.setattr(talker_call, "BEAT_SECONDS", 3600.0)
    assert not sink.cancelled() and not answer.sent, "too early to ask"
    monkeypatch.setattr(talker_call, "BEAT_SECONDS", 0.0)
    assert not sink.cancelled() and len(answer.sent) == 1
    sink.chunk(chunk(0, 1))
    assert not sink.cancelled()
    sink.chunk(chunk(1, 2))
    assert not sink.cancelled()
    sink.chunk(chunk(2, 3, "stop"))
    assert [sent["chunk_index"] for sent in answer.sent] == [0, 0, 1, 1, 2, 2]
    assert [len(sent["codes"]) for sent in answer.sent] == [0, 1, 0, 2, 0, 3]
    assert [sent["final"] for sent in answer.sent] == [False] * 5 + [True]
    for beat in answer.sent[::2]:
        assert beat["codes"].shape == (0, 16) and beat["info"] == ""
    contexts = [sent["context_codes"] for sent in answer.sent]
    for context in contexts[:2]:  # with the beat before the first chunk, so that code2wav is ready for it
        np.testing.assert_array_equal(context, call.request.prompt.reference_codes)
    assert len(contexts[0]) > 0 and all(context.shape == (0, 16) for context in contexts[2:])


def test_a_caller_that_has_gone_gets_no_beat(config: Qwen3TTSConfig) -> None:
    answer = Answer()
    answer.left = True
    assert TalkerSink(read(config), answer, LastChunks()).cancelled() and not answer.sent


def test_a_beat_that_cannot_be_sent_ends_the_stream(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talker_call, "BEAT_SECONDS", 0.0)
    sink = TalkerSink(read(config), Answer(broken=True), LastChunks())
    sink.chunk(chunk(0, 1))
    assert sink.cancelled()


def test_a_failure_after_a_beat_is_a_last_chunk(config: Qwen3TTSConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """For code2wav may be at work on the beat."""
    monkeypatch.setattr(talker_call, "BEAT_SECONDS", 0.0)
    answer = Answer()
    sink = TalkerSink(read(config), answer, LastChunks())
    sink.cancelled()
    sink.fail(Cancelled("gone"))
    last = answer.sent[-1]
    assert answer.final and answer.error is None and last["final"] and last["chunk_index"] == 0
    assert json.loads(last["info"])["error"] == "cancelled: gone" and json.loads(last["info"])["frames"] == 0
