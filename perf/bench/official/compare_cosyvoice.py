"""CosyVoice3: ours as bare stages against the official code, streaming, with the same weights, in one process.

Both speak the likeliest tokens behind the same clip, of noise, in mode zero_shot. In fp32 the tokens must be equal, and
the first samples within 1e-3 of their RMS (the vocoder's phase makes that of rounding), before anything is timed. Ours
knows the voice, as a server knows a registered one. Runs are in turns; each figure is the best of them.

    first audio   from the request to the first samples; of several streams the mean
    total         to the last samples of all streams
    real-time     total over the length of one speech
    CPU           seconds of all threads, which other processes of the machine hardly change
    decoder       seconds of it in flow and vocoder; of official streams at once the sum, each waits for the others
    MB            that ours keeps of a stream when it ends: keys and values of the flow, and the vocoder's state

The official code is a checkout of https://github.com/FunAudioLLM/CosyVoice, see VOICE_CLONE_COSYVOICE in
`tests.support.oracles.cosyvoice3`. Its talker's hop, which grows from request to request, is set back before each run.
Several streams are calls in threads of their own there; here their tokens come in one batch and are decoded in turn.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench import report
from perf.bench.machine import give_threads, keep_threads
from perf.bench.official.comparison import cpu_settings, parser
from perf.bench.reference import TEXT, TRANSCRIPT
from perf.bench.spent import clock
from tests.support.oracles.cosyvoice3 import official_package, official_talker
from tests.support.oracles.cosyvoice3_decoder import official_flow, official_vocoder
from tests.support.oracles.packages import quiet
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.codec.chunk import Reference
from voice_clone.families.cosyvoice3.codec import load_decoder
from voice_clone.families.cosyvoice3.config import (
    CODES,
    FRAME_RATE,
    FRAME_SAMPLES,
    MEL,
    MEL_BANDS,
    MEL_FRAMES,
    MEL_STEPS,
    SPEAKER,
    SPEAKER_SIZE,
    load_config,
    stream_chunks,
)
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.talker import load_network
from voice_clone.families.cosyvoice3.text import Prompt, Tokenizer
from voice_clone.native.thread_pool import thread_pool
from voice_clone.settings import DecoderSettings

TOLERANCE = 1e-3  # of the first samples' RMS
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Spent:
    """Seconds of some speeches side by side, and what ours keeps of each at its end."""

    first_audio: float
    total: float
    cpu: float
    decoder: float
    megabytes: float | None = None


@dataclass(frozen=True)
class Voice:
    """A clip as the flow takes it, and the prompt."""

    reference: Reference
    prompt: Prompt


def a_voice(folder: Path, seconds: float) -> Voice:
    """Of noise, so many seconds long."""
    random, count = np.random.default_rng(0), round(FRAME_RATE * seconds)
    tokenizer = Tokenizer(folder, load_config(folder))
    tokens = random.integers(0, CODES, (count, 1)).astype(np.uint16)
    mel = (MEL_STEPS * random.standard_normal((MEL_FRAMES * count, MEL_BANDS))).astype(np.int16)
    given: dict[str, NDArray[Any]] = {MEL: mel, SPEAKER: random.standard_normal(SPEAKER_SIZE).astype(np.float32)}
    prompt = Prompt(tokenizer.reference_ids(TRANSCRIPT), tokenizer.text_ids(TEXT), tokens[:, 0])
    return Voice(Reference(tokens, given), prompt)


class Official:
    """The official model with its threads, as `CosyVoice3Model.tts` runs it."""

    def __init__(self, folder: Path, voice: Voice) -> None:
        checkpoint = DecoderCheckpoint(folder)
        networks = official_talker(folder), official_flow(checkpoint, True), official_vocoder(checkpoint, True)
        with quiet(), official_package():
            self._model = importlib.import_module("cosyvoice.cli.model").CosyVoice3Model(*networks)
        prompt, reference = voice.prompt, voice.reference

        def row(ids: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(ids.astype(np.int32))[None]

        tokens = row(prompt.heard_tokens)
        speaker = torch.from_numpy(reference.voice[SPEAKER])[None]
        self._given = {
            "text": row(prompt.text_ids),
            "prompt_text": row(prompt.prefix_ids),
            "llm_prompt_speech_token": tokens,
            "flow_prompt_speech_token": tokens,
            "prompt_speech_feat": torch.from_numpy(reference.voice[MEL])[None].float() / MEL_STEPS,
            "flow_embedding": speaker,
            "llm_embedding": speaker,
        }
        step, turn = self._model.llm.llm.forward_one_step, threading.Lock()

        def in_turn(*given: Any, **named: Any) -> Any:  # transformers collects its layers' outputs for one call alone
            with turn:
                return step(*given, **named)

        self._model.llm.llm.forward_one_step = in_turn
        self._model.silent_tokens = []  # all tokens are heard: those of random weights may be silent throughout
        self._heard: list[int] = []  # tokens of the last stream

    def speak(self, frames: int, streams: int = 1) -> tuple[list[int], Samples, Spent]:
        """Tokens and samples of a stream, and the times of all."""
        give_threads()
        model, spent = self._model, {"decoder": 0.0}
        model.token_hop_len, decode = 25, type(model).token2wav

        def likeliest(scores: torch.Tensor, before: list[int], *rest: Any) -> int:
            if len(before) == frames:
                self._heard = before
                return CODES
            return int(scores[:CODES].argmax())

        def timed(*given: Any, **named: Any) -> Any:
            with clock(spent, "decoder"):
                return decode(model, *given, **named)

        model.llm.sampling, model.token2wav = likeliest, timed
        firsts: list[float] = []
        made: list[Samples] = []

        def one() -> None:
            pieces: list[Samples] = []
            for piece in model.tts(**self._given, stream=True):
                if not pieces:
                    firsts.append(time.perf_counter() - began)
                pieces.append(piece["tts_speech"][0].numpy())
            made.append(np.concatenate(pieces))

        threads = [threading.Thread(target=one) for _ in range(streams)]
        began, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = time.perf_counter() - began
        times = Spent(float(np.mean(firsts)), total, time.process_time() - cpu, spent["decoder"])
        return self._heard, made[0], times


class Ours:
    """The talker and the decoder of a checkpoint."""

    def __init__(self, folder: Path, voice: Voice, precision: str) -> None:
        given = cpu_settings("cosyvoice3", folder, precision)
        give_threads()
        self._voice, self._talker = voice, load_network(given)
        stage = load_decoder(given)
        self._decoding = stage.streams(DecoderSettings.of(given), stage.chunk_frames)
        self._decoding.close(self._decoding.open(voice.reference)[0])

    def speak(self, frames: int, streams: int = 1) -> tuple[list[int], Samples, Spent]:
        """Tokens and samples of the first stream, and the times of all, which speak the same."""
        keep_threads()
        decoding, voice, everyone = self._decoding, self._voice, range(streams)
        how = OneSampling(seed=0, do_sample=False)
        generator: Generator[Prompt] = Generator(self._talker, streams, 256 + len(voice.prompt.text_ids) * 4 + frames)
        schedule = list(stream_chunks(len(voice.reference.context)))
        spent = {"decoder": 0.0}
        pieces: list[Samples] = []
        codes: list[int] = []
        firsts: list[float] = []  # those of the first chunks come first
        chunk: list[list[NDArray[Any]]] = [[] for _ in everyone]
        began, cpu = time.perf_counter(), time.process_time()
        for slot in everyone:
            request = TalkerRequest(voice.prompt, how, frames, endless=True)
            generator.prefill({slot: generator.start(slot, request)})
        numbers = [decoding.open(voice.reference)[0] for _ in everyone]
        for number in range(frames):
            for rows, frame in zip(chunk, generator.step(everyone), strict=True):
                rows += [] if frame.payload is None else [frame.payload]
            last = number == frames - 1
            if len(chunk[0]) < schedule[0] and not last:
                continue
            give_threads()
            with clock(spent, "decoder"):
                for each, rows in zip(numbers, chunk, strict=True):  # in turn, as the server's worker does on a CPU
                    heard = decoding.decode([each], [np.array(rows).reshape(-1, 1)])
                    heard += [decoding.flush(each)] if last else []
                    firsts.append(time.perf_counter() - began)
                    pieces += heard if each == numbers[0] else []
            keep_threads()
            codes += [int(row[0]) for row in chunk[0]]
            chunk = [[] for _ in everyone]
            del schedule[: len(schedule) > 1]
        times = (
            float(np.mean(firsts[:streams])),
            time.perf_counter() - began,
            time.process_time() - cpu,
            spent["decoder"],
        )
        megabytes = decoding.stream_bytes / 1e6
        for each in numbers:
            decoding.close(each)
        return codes, np.concatenate(pieces), Spent(*times, megabytes)


def check(official: Official, ours: Ours, first: int, frames: int) -> None:
    """End the process if the two do not say the same.

    Args:
        first: frames of our first chunk. The official one may have more, and the end of its stream is another way.
    """
    theirs, expected, _ = official.speak(frames)
    codes, samples, _ = ours.speak(frames)
    if codes != theirs:
        raise SystemExit("the tokens differ: nothing is timed")
    begin = expected[: FRAME_SAMPLES * (first - 6)]  # the flow holds three tokens back, the vocoder two
    error = float(np.abs(samples[: len(begin)] - begin).max() / begin.std())
    if len(samples) != len(expected) or error > TOLERANCE:
        raise SystemExit(f"the first samples differ by {error:.1e} of their RMS: nothing is timed")


def best(spent: list[Spent], length: float) -> dict[str, float]:
    """The least of each figure; `length`: seconds of a speech."""
    figures = [{name: value for name, value in vars(each).items() if value is not None} for each in spent]
    least = {name: min(each[name] for each in figures) for name in figures[0]}
    return {**least, "real_time": least["total"] / length}


def main() -> int:
    """The command line."""
    options = parser("perf/compare_cosyvoice_official", __doc__, "of released widths, converted")
    options.set_defaults(seconds=3.5, frames=100)
    options.add_argument("--long", type=int, default=500, help="frames of a long speech (default: %(default)s)")
    options.add_argument("--streams", type=int, default=4, help="side by side (default: %(default)s)")
    given = options.parse_args()
    voice = a_voice(given.checkpoint, given.seconds)
    official = Official(given.checkpoint, voice)
    speakers: dict[str, Official | Ours] = {"official": official}
    for precision in given.precision:
        speakers[precision] = ours = Ours(given.checkpoint, voice, precision)
        if precision == "fp32":
            check(official, ours, stream_chunks(len(voice.reference.context))[0], given.frames)
    found = {}
    for name, frames, streams in (
        ("a speech", given.frames, 1),
        (f"{given.streams} at once", given.frames, given.streams),
        ("a long speech", given.long, 1),
    ):
        spent: dict[str, list[Spent]] = {each: [] for each in speakers}
        for _ in range(given.runs):
            for each, speaker in speakers.items():
                spent[each].append(speaker.speak(frames, streams)[2])
        length = frames / FRAME_RATE
        found[name] = {each: best(times, length) for each, times in spent.items()}
        columns = ("first_audio", "total", "real_time", "cpu", "decoder", "megabytes")
        rows = [[each, *(times.get(column) for column in columns)] for each, times in found[name].items()]
        print(f"\n{name}: {length:.3g} s\n")
        print(report.table(("s", *(column.replace("_", " ") for column in columns)), rows), flush=True)
    used = {"frames": given.frames, "long": given.long, "streams": given.streams, "threads": thread_pool().threads}
    report.write(given.output, {**used, "figures": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
