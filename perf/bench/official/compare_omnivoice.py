"""OmniVoice: ours as bare stages against the official code, with the same weights: omnivoice 0.2.1 for the talker, in
this process, and transformers 5.24.0 for the codec, in one of its own. Both compute in fp32 and eagerly.

An utterance is spoken behind a clip of noise of as many seconds. In fp32 its codes, the codes of the clip and the
waveform (within 1e-5 of its peak) must be equal before anything is timed.

    encode     a clip to its codes
    step       a step of unmasking, with guidance: the utterance's time over its steps
    whole      32 steps of the released 28 layers over the speech's seconds; of a checkpoint with fewer layers `step`
               times as many, which counts what is no layer too often
    decode     the codec's decoder, in chunks as a server has them; official: at once; over the speech's seconds
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench import report
from perf.bench.machine import best, give_threads
from perf.bench.official.comparison import Times, cpu_settings, parser
from perf.bench.reference import TEXT, TRANSCRIPT
from tests.support.oracles.omnivoice import OfficialTalker
from tests.support.oracles.omnivoice_codec import timed_codec
from tools.families.omnivoice.talker import TALKERS
from voice_clone.codec.chunk import Reference
from voice_clone.families.omnivoice.codec import load_decoder
from voice_clone.families.omnivoice.codec_config import FOLDER, FRAME_SAMPLES
from voice_clone.families.omnivoice.config import (
    CODEC_CODES,
    FRAME_RATE,
    ICL,
    REF_RMS,
    load_config,
)
from voice_clone.families.omnivoice.encoder import load_encoder, prepare_clip
from voice_clone.families.omnivoice.family import CARD
from voice_clone.families.omnivoice.finish import FinishPlan
from voice_clone.families.omnivoice.talker import OmniVoiceTalker, load_network
from voice_clone.families.omnivoice.text import load_prompt
from voice_clone.mask_predict.source import MaskPredictSource
from voice_clone.settings import DecoderSettings
from voice_clone.speech import ResolvedVoice, SpeechRequest

TOLERANCE = 1e-5  # of the waveform's peak
SEED, RMS = 5, 0.2
STEPS = 32  # of an utterance, by default


def some_clip(seconds: float) -> NDArray[np.float32]:
    """Noise of whole frames, of which nothing is silent."""
    noise = RMS * np.random.default_rng(0).standard_normal(int(seconds * FRAME_RATE) * FRAME_SAMPLES)
    return prepare_clip(noise.astype(np.float32))[0]


def codec(folder: Path, seconds: float, runs: int) -> tuple[dict[str, Times], NDArray[np.uint16]]:
    """Encode and decode of both, and the codes of the clip; ends the process if they differ."""
    clip = some_clip(seconds)
    encoder = load_encoder(cpu_settings("omnivoice", folder))
    ours: Times = {}
    ours["encode"], found = best(lambda: encoder.encode(clip, ICL), runs)
    codes = found[CODEC_CODES]
    with tempfile.TemporaryDirectory() as scratch:
        made = timed_codec(folder / FOLDER, Path(scratch), [clip] * runs, [codes.T.astype(np.int64)] * runs)
    if not np.array_equal(made[0][0], codes.T):
        raise SystemExit("the codes of the clip differ: nothing is timed")
    stage = load_decoder(cpu_settings("omnivoice", folder))
    waveform = stage.decoder(torch.from_numpy(codes.T.astype(np.int64))[None])[0].numpy()
    error = np.abs(waveform - made[runs][0]).max() / np.abs(waveform).max()
    if error > TOLERANCE:
        raise SystemExit(f"the waveforms differ by {error:.1e} of their peak: nothing is timed")
    streams = stage.streams(DecoderSettings.of(cpu_settings("omnivoice", folder)), CARD.chunk_frames)

    def decode() -> None:
        number, done = streams.open(Reference(codes[:0], plan_arrays(len(codes))))[0], 0
        while done < len(codes):
            size = CARD.chunk_frames[0 if done == 0 else 1]
            streams.decode([number], [codes[done : done + size]])
            done += size
        streams.flush(number)
        streams.close(number)

    ours["decode"] = best(decode, runs)[0] / seconds
    theirs = {
        "encode": min(spent for _, spent in made[:runs]),
        "decode": min(spent for _, spent in made[runs:]) / seconds,
    }
    return {"official": theirs, "ours": ours}, codes


def plan_arrays(frames: int) -> dict[str, NDArray[np.float32]]:
    """What the decoder gets of a text in one chunk."""
    return dict(FinishPlan(RMS, (frames,), remove_silence=True).arrays)


def official_speech(
    folder: Path, codes: NDArray[np.uint16], seconds: float, steps: int
) -> tuple[float, NDArray[np.uint16]]:
    """Seconds of a step of the official code, and its frames."""
    official = OfficialTalker(folder)
    voice = official.clone_prompt(torch.from_numpy(codes.T.astype(np.int64)), TRANSCRIPT, RMS)
    task = official.task(text=TEXT, voice_clone_prompt=voice, duration=seconds)
    official.spoken(task, [SEED], num_step=1)  # the first pass finds its weights on the disk
    began = time.perf_counter()
    [[frames]] = official.spoken(task, [SEED], num_step=steps)
    return (time.perf_counter() - began) / steps, frames.numpy().T.astype(np.uint16)


def our_speech(
    folder: Path, precision: str, codes: NDArray[np.uint16], seconds: float, steps: int
) -> tuple[float, NDArray[np.uint16]]:
    """The same of ours."""
    settings = cpu_settings("omnivoice", folder, precision)
    prompt = load_prompt(settings)
    source = MaskPredictSource(load_network(settings), 1, 4096, together=False)
    talker = OmniVoiceTalker(source, prompt.config, prompt.tokenizer)
    voice = ResolvedVoice({CODEC_CODES: codes, REF_RMS: np.array([RMS], np.float32)}, TRANSCRIPT, ICL)
    for count in (1, steps):  # the first pass finds its weights on the disk
        options = {"num_step": count, "duration": seconds}
        speech = SpeechRequest(TEXT, options=options, voiceless=True)
        tensors = prompt.prepare(speech, prompt.draft(speech), voice).tensors
        talker.source.start(0, talker.plan(tensors, {"seed": SEED}, options).request)
        began = time.perf_counter()
        for _ in range(count):
            [frame] = talker.source.step([0])
        spent = time.perf_counter() - began
        talker.source.free(0)
    if frame.finish is None or frame.payload is None:
        raise SystemExit("the utterance is not done after its steps")
    return spent / steps, frame.payload


def main() -> int:
    """The command line."""
    made = parser("perf/compare_omnivoice_official", __doc__, "its weights in one file")
    made.set_defaults(seconds=5.0)
    made.add_argument("--steps", type=int, default=4, help="of unmasking (default: %(default)s)")
    given = made.parse_args()
    layers = TALKERS["released"].num_hidden_layers / load_config(given.checkpoint).num_hidden_layers
    give_threads()
    found, codes = codec(given.checkpoint, given.seconds, given.runs)
    theirs, expected = official_speech(given.checkpoint, codes, given.seconds, given.steps)
    found["official"]["step"] = theirs
    for precision in given.precision:
        step, frames = our_speech(given.checkpoint, precision, codes, given.seconds, given.steps)
        if precision == "fp32" and not np.array_equal(frames, expected):
            raise SystemExit("the frames differ: nothing is timed")
        found[precision] = {"step": step}
    for times in found.values():
        if "step" in times:
            times["whole"] = STEPS * layers * times["step"] / given.seconds
    columns = ("encode", "step", "whole", "decode")
    rows = [[name, *(times.get(column) for column in columns)] for name, times in found.items()]
    print(report.table(("s", *columns), rows))
    report.write(given.output, {"figures": found, "seconds": given.seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
