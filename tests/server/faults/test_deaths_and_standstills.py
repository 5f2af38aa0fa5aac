"""Each model of a server dies, or stands still, in the middle of speeches and uploads. What the callers see is bounded.

`tools/serve` runs the server and starts it again. `-s` shows a table: when the streams had ended, when the service was
back, what was lost. Long tests pause for 20 s, as a debugger does, and have each model in turn.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
from voice_clone_client import Client, ConnectionFailed, Overloaded, VoiceCloneError

from tests.support.doubles.fakes import clip
from tests.support.families.fish import make_fish
from tests.support.servers.left_behind import wait_until_gone
from tests.support.waiting import until
from voice_clone_server.triton_server import ROOT, free_ports

pytestmark = pytest.mark.thorough

WAIT = 240.0
STREAMS = 8
ENDLESS, WHOLE = 20_000, 1_500  # frames: more than is made until a model dies; some seconds' worth
SHORT = 20
FRAME = 1920  # samples
TEXT = "A long story. " * 20
EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)
STAGES = ("talker", "code2wav", "prompt", "voice_encoder")
MODELS = ["speaker_cache", *(f"qwen3_tts_{stage}" for stage in STAGES)]
OTHER = "fish_speech"
SERVER = "tritonserver"
ABORTED = "boost::interprocess::lock_exception"  # in the log
USUAL = ("speaker_cache", "qwen3_tts_talker")
MODELS_OF_BOTH = [*MODELS, *(f"{OTHER}_{stage}" for stage in STAGES)]
SETTINGS = {
    "VOICE_CLONE_MAX_LENGTH": str(ENDLESS + 1_000),
    "VOICE_CLONE_RUNAWAY_SECONDS": "100000",
    "VOICE_CLONE_MAX_STREAMS": str(2 * STREAMS),
    "VOICE_CLONE_WARM_UP_SECONDS": "0.1",
    "VOICE_CLONE_LOST_MODEL_SECONDS": "100",  # the machine may be busy
}


def some(models: Sequence[str], usual: Sequence[str]) -> list[Any]:
    """The usual ones in every run, the others in long ones."""
    return [pytest.param(model, marks=[] if model in usual else pytest.mark.long) for model in models]


class Served:
    """`tools/serve` with its gateway, ready, and with one voice."""

    def __init__(self, checkpoints: Sequence[Path], folder: Path, voice: tuple[bytes, str]) -> None:
        ports = free_ports(4)
        self.url, self.gateway, self.log = f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[3]}", folder / "log"
        kinds = ("--grpc-port", "--http-port", "--metrics-port", "--gateway")
        words = [word for kind, port in zip(kinds, ports, strict=True) for word in (kind, str(port))]
        words += [word for checkpoint in checkpoints for word in ("--checkpoint", str(checkpoint))]
        command = [
            sys.executable,
            "-m",
            "tools.run",
            "voice_clone_server.serve",
            *words,
            "--voices",
            str(folder / "voices"),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--restarts", "99"], cwd=ROOT, env=os.environ | SETTINGS, stdout=log, stderr=log
            )
        until(lambda: "\nReady" in self.text or self.process.poll() is not None, WAIT)
        assert self.process.poll() is None, self.text
        with Client(self.url) as client:
            client.upload("Ada", voice[0], reference_text=voice[1], wait=True)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def process_of(self, model: str) -> int:
        """The process id of a model's stub, or of the server itself."""
        pattern = "/tritonserver$" if model == SERVER else f"/{model}/1/model.py$"
        children = psutil.Process(self.process.pid).children(recursive=True)
        [found] = [child.pid for child in children if any(re.search(pattern, word) for word in child.cmdline()[:2])]
        return found

    def health(self) -> int:
        """The status of the gateway's /health."""
        return httpx2.get(f"{self.gateway}/health", timeout=WAIT).status_code

    def speak(self, family: str) -> None:
        """Hear a short speech. Raises what goes wrong."""
        with Client(self.url, model=family) as client:
            client.speak("Hello.", voice="Ada", max_frames=2).read()

    def works(self, families: Sequence[str]) -> bool:
        """Whether each family speaks and the gateway says so."""
        try:
            for family in families:
                self.speak(family)
            return self.health() == 200
        except VoiceCloneError:
            return False


@contextmanager
def serving(checkpoints: Sequence[Path], folder: Path, clip: bytes, text: str) -> Iterator[Served]:
    served = Served(checkpoints, folder, (clip, text))
    yield served
    served.process.send_signal(signal.SIGKILL)
    served.process.wait(WAIT)
    wait_until_gone(str(served.process.pid))


@pytest.fixture(scope="module")
def one_family(
    endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, reference_clip: bytes, reference_text: str
) -> Iterator[Served]:
    with serving([endless_checkpoint], tmp_path_factory.mktemp("one"), reference_clip, reference_text) as served:
        yield served


@pytest.fixture(scope="module")
def two_families(
    endless_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, reference_clip: bytes, reference_text: str
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("two")
    checkpoints = [endless_checkpoint, make_fish(folder / "fish", dtype="bf16")]
    with serving(checkpoints, folder, reference_clip, reference_text) as served:
        yield served


@dataclass
class Heard:
    """What the caller of a stream got, and when it ended."""

    samples: int = 0
    error: VoiceCloneError | None = None
    ended: float = 0.0


@dataclass
class Callers:
    """Those of a server: streams, and somebody who uploads one voice after the other until `enough`."""

    served: Served
    pool: ThreadPoolExecutor
    enough: threading.Event
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    acknowledged: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    spoken: int = 0  # speeches of `chat`

    def speak(self, frames: int, seed: int) -> Heard:
        """One stream of the first family."""
        heard = Heard()
        try:
            with Client(self.served.url, model="qwen3_tts") as client:
                for chunk in client.speak(TEXT, speaker_embedding=EMBEDDING, max_frames=frames, seed=seed):
                    if not heard.samples:
                        self.begun.release()
                    heard.samples += len(chunk.samples)
        except VoiceCloneError as error:
            heard.error = error
        heard.ended = time.monotonic()
        return heard

    def chat(self, seed: int) -> None:
        """Speech after speech of the second family, until `enough`. Raises what goes wrong."""
        with Client(self.served.url, model=OTHER) as client:
            while not self.enough.is_set():
                speech = client.speak("Good morning.", voice="Ada", max_frames=SHORT, seed=seed)
                assert sum(len(chunk.samples) for chunk in speech) > 0
                self.spoken += 1

    def upload(self, tag: str) -> None:
        """Voice after voice, until `enough`."""
        number = 0
        with Client(self.served.url) as client:
            while not self.enough.is_set():
                number += 1
                try:
                    client.upload(f"{tag} {number}", clip(number % 50))
                    self.acknowledged.append(f"{tag} {number}")
                except VoiceCloneError as error:
                    self.refusals[type(error).__name__] += 1
                    time.sleep(0.2)
                time.sleep(0.02)

    def all_have_begun(self, frames: int) -> list[Future[Heard]]:
        """The streams, each of which has been heard, beside an acknowledged upload."""
        streams = [self.pool.submit(self.speak, frames, seed) for seed in range(STREAMS)]
        for _ in streams:
            assert self.begun.acquire(timeout=WAIT)
        until(lambda: self.acknowledged, WAIT)
        return streams

    def lost(self) -> set[str]:
        """Voices that were acknowledged and are not there. They are deleted then."""
        with Client(self.served.url) as client:
            lost = set(self.acknowledged) - {voice.name for voice in client.list()}
            for name in set(self.acknowledged) - lost:
                client.delete(name)
        return lost


Meet = Callable[[Served], Callers]


@pytest.fixture
def meet() -> Iterator[Meet]:
    """Makes the callers of a server. They leave at the end, whatever the test finds."""
    enough = threading.Event()
    with ThreadPoolExecutor(3 * STREAMS) as pool:
        yield lambda served: Callers(served, pool, enough)
        enough.set()


def tell(row: str) -> None:
    print(f"\n| {row} |", end="")  # noqa: T201


def errors_of(heard: Sequence[Heard]) -> dict[str, int]:
    return dict(Counter(type(each.error).__name__ for each in heard))


def goes_on(
    callers: Callers, streams: Sequence[Future[Heard]], chats: Sequence[Future[None]], aborted: Callable[[], bool]
) -> None:
    """The second family takes new callers while those of the first one get errors; unless Triton aborts.

    It does so if a process dies while it holds a lock that it shares with the server.
    """
    for stream in streams:
        stream.result(WAIT)
    before = callers.spoken
    with pytest.raises((Overloaded, ConnectionFailed)):
        callers.served.speak("qwen3_tts")
    until(lambda: callers.spoken > before + len(chats) or aborted(), WAIT)
    callers.enough.set()
    failed = [error for chat in chats if (error := chat.exception(WAIT)) is not None]
    if failed:
        until(aborted, WAIT)
        assert all(isinstance(error, VoiceCloneError) for error in failed), failed
        tell(f"2 | (Triton aborted, and {len(failed)} callers of the other family failed)")


def dies(callers: Callers, model: str, families: Sequence[str]) -> None:
    served, pool = callers.served, callers.pool
    uploader = pool.submit(callers.upload, model)
    others = model.startswith("qwen3_tts_") and OTHER in families
    chats = [pool.submit(callers.chat, seed) for seed in range(4)] if others else []
    spared = model.startswith(OTHER)
    streams = callers.all_have_begun(WHOLE if spared else ENDLESS)
    until(lambda: callers.spoken >= len(chats), WAIT)
    restarts, said = served.text.count("ready again"), len(served.text)
    os.kill(served.process_of(model), signal.SIGKILL)
    died = time.monotonic()
    if others:
        goes_on(callers, streams, chats, lambda: ABORTED in served.text[said:])
    if spared:  # the streams are those of the family that goes on
        heard = [stream.result(WAIT) for stream in streams]
        callers.enough.set()
    ended = time.monotonic()
    until(lambda: served.text.count("ready again") > restarts, WAIT)
    until(lambda: served.works(families), WAIT)
    back = time.monotonic() - ended
    heard = [stream.result(WAIT) for stream in streams]
    callers.enough.set()
    uploader.result(WAIT)
    lost = callers.lost()
    last = max(each.ended for each in heard) - died
    tell(
        f"{len(families)} | kill {model} | {last:.1f} s | {errors_of(heard)} | {back:.1f} s | "
        f"{len(callers.acknowledged)}, lost {len(lost)} | {dict(callers.refusals)}"
    )
    if spared:
        assert [each.samples for each in heard] == [WHOLE * FRAME] * STREAMS, [each.error for each in heard]
    else:
        assert all(isinstance(each.error, Overloaded | ConnectionFailed) for each in heard), heard
    assert not lost
    assert served.process.poll() is None


def stands_still(callers: Callers, model: str, families: Sequence[str], seconds: float) -> None:
    served, pool = callers.served, callers.pool
    uploader = pool.submit(callers.upload, model)
    streams = callers.all_have_begun(WHOLE)
    ends = served.text.count("ended by itself")
    process, stopped = served.process_of(model), time.monotonic()
    os.kill(process, signal.SIGSTOP)
    try:
        new = [pool.submit(served.speak, family) for family in families]
        until(lambda: served.health() == 503)
        noticed = time.monotonic() - stopped
        time.sleep(max(0.0, stopped + seconds - time.monotonic()))
    finally:
        os.kill(process, signal.SIGCONT)
    goes_on = time.monotonic()
    until(lambda: served.health() == 200, WAIT)
    back = time.monotonic() - goes_on
    for each in new:
        each.result(WAIT)
    heard = [stream.result(WAIT) for stream in streams]
    callers.enough.set()
    uploader.result(WAIT)
    lost = callers.lost()
    whole = sum(each.samples == WHOLE * FRAME for each in heard)
    tell(
        f"{len(families)} | {seconds:g} s stop of {model} | 503 after {noticed:.1f} s | {whole} of {STREAMS} whole | "
        f"{back:.1f} s | {len(callers.acknowledged)}, lost {len(lost)} | {dict(callers.refusals)}"
    )
    assert whole == STREAMS, [each.error for each in heard]
    assert not lost and not callers.refusals
    assert served.text.count("ended by itself") == ends


@pytest.mark.parametrize("model", some(MODELS, USUAL))
def test_a_model_dies(one_family: Served, meet: Meet, model: str) -> None:
    dies(meet(one_family), model, ["qwen3_tts"])


@pytest.mark.parametrize("model", some(MODELS_OF_BOTH, ["qwen3_tts_talker"]))
def test_a_model_dies_beside_another_family(two_families: Served, meet: Meet, model: str) -> None:
    dies(meet(two_families), model, ["qwen3_tts", OTHER])


@pytest.mark.parametrize("model", some([*MODELS, SERVER], USUAL))
def test_a_model_stands_still(one_family: Served, meet: Meet, model: str) -> None:
    stands_still(meet(one_family), model, ["qwen3_tts"], 20.0 if model not in USUAL else 5.0)


@pytest.mark.parametrize("model", some(MODELS_OF_BOTH, []))
def test_a_model_stands_still_beside_another_family(two_families: Served, meet: Meet, model: str) -> None:
    stands_still(meet(two_families), model, ["qwen3_tts", OTHER], 20.0)
