"""Pocket TTS: ours as bare stages against the official package pocket-tts 4.0.1, with the same weights, in one process.

That runs eagerly, in fp32. Frames from the same noise (within 1e-4 of their spread) and the waveform (within 1e-4 of
its RMS) must be equal before anything is timed. The package speaks for one caller at a time; ours speaks for several
together, frame by frame, talker and decoder in turn.

    first      from a warm voice to the first chunk of one frame, of all callers; the median
    frame      whole, over the frames of a caller
    rtf        whole, over the seconds of speech of all callers
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench import report
from perf.bench.machine import give_threads, keep_threads
from perf.bench.official.comparison import Times, cpu_settings, parser
from perf.bench.reference import TEXT
from tests.support.oracles.pocket_tts import official_model, official_speech
from voice_clone.codec.chunk import Reference
from voice_clone.families.pocket_tts.codec import load_decoder
from voice_clone.families.pocket_tts.encoder import load_encoder
from voice_clone.families.pocket_tts.family import CARD
from voice_clone.families.pocket_tts.talker import load_talker
from voice_clone.families.pocket_tts.text import MOST_TOKENS, load_prompt
from voice_clone.lru_cache import Origin
from voice_clone.settings import DecoderSettings
from voice_clone.speech import ResolvedVoice, SpeechRequest

SEED, TOLERANCE = 5, 1e-4
NO_END = 10.0  # a threshold that no logit reaches


class Ours:
    """The stages of a checkpoint in one precision of the talker."""

    def __init__(self, folder: Path, precision: str, callers: int) -> None:
        settings = cpu_settings(CARD.name, folder, precision, MAX_STREAMS=str(callers))
        self.prompt, self.talker = load_prompt(settings), load_talker(settings)
        decoder = load_decoder(cpu_settings(CARD.name, folder))
        self.streams = decoder.streams(DecoderSettings.of(settings), decoder.chunk_frames)

    def speak(
        self, latents: NDArray[np.float32], callers: int, frames: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], Times]:
        """Frames and samples of the first caller; times."""
        source, streams, began = self.talker.source, self.streams, time.perf_counter()
        speech = SpeechRequest(TEXT, voice="anybody")
        prepared = self.prompt.prepare(speech, self.prompt.draft(speech), ResolvedVoice({"latents": latents}, None, ""))
        reads, heard = {}, []
        for slot in range(callers):
            knobs, options = {"seed": SEED + slot, "max_frames": frames}, {"end_threshold": NO_END}
            plan = self.talker.plan(prepared.tensors, knobs, options)
            reads[slot] = source.start(slot, plan.request)
            heard.append(streams.open(Reference(plan.context, plan.voice, Origin.unknown()))[0])
        source.prefill(reads)
        made: list[NDArray[np.float32]] = []
        samples: list[NDArray[np.float32]] = []
        first = 0.0
        for _ in range(frames):
            payloads = [each.payload[None] for each in source.begin(range(callers))()]
            decoded = streams.decode(heard, payloads)
            first = first or time.perf_counter() - began
            made.append(payloads[0])
            samples.append(decoded[0])
        whole = time.perf_counter() - began
        for slot in range(callers):
            source.free(slot)
            streams.close(heard[slot])
        return np.concatenate(made), np.concatenate(samples), figures(first, whole, frames, callers)


def figures(first: float, whole: float, frames: int, callers: int) -> Times:
    """`first` in seconds; `whole` of all callers."""
    return {"first": first, "frame": whole / frames, "rtf": whole / (callers * frames * 0.08)}


def check(what: str, ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Ends the process if they differ."""
    error = float(np.abs(ours - theirs[: len(ours)]).max() / theirs.std())
    if error > TOLERANCE:
        raise SystemExit(f"the {what} differ by {error:.1e} of their spread: nothing is timed")


@torch.no_grad()
def theirs(model: Any, state: Any, frames: int) -> Times:
    """One caller."""
    began, first, seen, whole, stop = time.perf_counter(), 0.0, 0, 0.0, threading.Event()
    for chunk in model.generate_audio_stream(state, TEXT, max_tokens=MOST_TOKENS, stop=stop):
        seen += len(chunk)
        first = first or time.perf_counter() - began
        if seen >= frames * 1920 and not whole:
            whole = time.perf_counter() - began
            stop.set()
    return figures(first, whole, frames, 1)


def main() -> int:
    """The command line."""
    made = parser("perf/compare_pocket_official", __doc__, "its weights in one file, fp32")
    made.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="default: %(default)s")
    given = made.parse_args()
    clip = (0.1 * torch.randn(int(given.seconds * 24000), generator=torch.Generator().manual_seed(0))).numpy()
    model = official_model(given.checkpoint)
    model.eos_threshold = float("inf")
    latents = load_encoder(cpu_settings(CARD.name, given.checkpoint)).encode(clip, None)["latents"]
    ours = {precision: Ours(given.checkpoint, precision, max(given.callers)) for precision in given.precision}
    give_threads()
    frames, samples = official_speech(model, clip, TEXT, SEED, max_tokens=MOST_TOKENS)
    for precision, each in ours.items():
        keep_threads()
        own, heard, _ = each.speak(latents, 1, given.frames)
        if precision == "fp32":
            check("frames", own, frames)
            check("waveforms", heard, samples)
    found: dict[str, list[Times]] = {}
    state = model.get_state_for_audio_prompt(torch.from_numpy(clip)[None])
    for _ in range(given.runs):  # in turns: the machine is not alone
        give_threads()
        found.setdefault("official, 1", []).append(theirs(model, state, given.frames))
        keep_threads()
        for precision, each in ours.items():
            for callers in given.callers:
                found.setdefault(f"{precision}, {callers}", []).append(each.speak(latents, callers, given.frames)[2])
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    rows = [[name, 1e3 * times["first"], 1e3 * times["frame"], times["rtf"]] for name, times in medians.items()]
    print(report.table(("", "first, ms", "frame, ms", "rtf"), rows))
    report.write(given.output, {"figures": medians})
    return 0


if __name__ == "__main__":
    sys.exit(main())
