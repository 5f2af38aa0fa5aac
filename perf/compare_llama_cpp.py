"""Ours as a bare engine against llama.cpp's llama-tts: same checkpoint, prompt, threads and frames, in turns.

Speech is in the voice of the shipped clip by its embedding alone, since llama-tts takes no transcript, and greedy, of a
fixed number of frames of 80 ms. Each speech is a process of its own, after one of each that is not timed; the two of a
pair, as F32 and fp32, are neighbours. In F32 the first frames of both must be the same speech, or nothing is timed.
They part at some frame, since each has its own arithmetic and embeds the voice a little differently.

    start     from the start of the process to ready; ours has then spoken two frames, to have all compiled code
    prompt    talker over the prompt, the embedding of its text included
    frame     a step of talker and code predictor; ours without the first one
    decoder   codec decoder, over the number of frames
    whole     prompt, frames and decoder
    MB        the most memory that the process has had, file pages that it maps included

llama-tts decodes at the end of a speech or of 72 frames, and always 72: fewer are filled up. So `of 72` is what a frame
would cost it if none were in vain. Ours decodes chunks of 1, 2, 4, 8, 12, 12, ... frames as they come.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch

from perf import llama_cpp, report
from perf.engines import Ours
from perf.families.qwen3_tts import Qwen3TTS
from perf.reference import CLIP, TEXT
from tools import guard
from voice_clone.audio import decode, resample
from voice_clone.codec.chunk import Chunk, Decoded
from voice_clone.families.qwen3_tts.encoder_stages import load_speaker_stage
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.settings import Settings

PAIRS = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
MEASURES = ("start", "prompt", "frame", "decoder", "whole")
VOICE_RATE = 24_000  # Hz, that of the speaker encoder
SAME = 0.05  # of a frame's RMS: the difference of samples that are the same speech
SURE = 3  # frames; not even one is the same by chance
PERIOD = 0.02  # seconds between two looks at a process


@dataclass(frozen=True)
class Spoken:
    """One speech in a process of its own: seconds as in the module's description, and megabytes."""

    start: float
    prompt: float
    frame: float
    decoder: float
    whole: float
    megabytes: float


@dataclass(frozen=True)
class Speeches:
    """How to start a process that speaks."""

    shape: str
    frames: int
    threads: int
    clip: Path

    def of(self, name: str, output: Path) -> Spoken:
        """A speech of ours (`fp32`) or of llama.cpp (`F32`), whose samples go to the WAV file `output`."""
        return self._ours(name, output) if name in PAIRS else self._theirs(name, output)

    def _ours(self, precision: str, output: Path) -> Spoken:
        command = [sys.executable, "-m", "perf.compare_llama_cpp", "--speak", precision, "--shape", self.shape]
        command += ["--frames", str(self.frames), "--threads", str(self.threads)]
        command += ["--clip", str(self.clip), "--output", str(output)]
        began, said, megabytes = watch(command)
        times = json.loads(said.splitlines()[-1])
        return Spoken(times.pop("ready") - began, **times, megabytes=megabytes)

    def _theirs(self, kind: str, output: Path) -> Spoken:
        command = llama_cpp.speech_command(self.shape, kind, TEXT, self.clip, self.frames, self.threads, output)
        began, said, megabytes = watch(command)
        times = llama_cpp.parse(said)
        whole = times.prompt + times.frames + times.decoder
        frame, decoder = times.frames / self.frames, times.decoder / self.frames
        return Spoken(times.ready - began, times.prompt, frame, decoder, whole, megabytes)


def watch(command: list[str]) -> tuple[float, str, float]:
    """Run a process: the time of its start, what it has said, and the most megabytes that it has had."""
    peak = 0.0
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, env=guard.marked(), stdout=said, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, _high_water(process.pid))
            time.sleep(PERIOD)
        said.seek(0)
        output = said.read()
    if process.returncode:
        raise SystemExit(f"{command[0]} failed:\n{output[-3000:]}")
    return began, output, peak


def _high_water(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return sum(1024 * float(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))  # none: it has ended


def speak(given: argparse.Namespace) -> None:
    """Our part, in a process of its own: prints its times."""
    torch.set_num_threads(given.threads[0])
    folder = llama_cpp.checkpoint(given.shape)
    ours = Ours(Qwen3TTS, folder, given.speak)
    prompt = Prompt(
        role_ids=ours.model.tokenizer.role_ids,
        text_ids=ours.model.tokenizer.text_ids(TEXT),
        speaker_embedding=np.zeros(ours.model.config.talker.hidden_size, np.float32),
        language_id=ours.model.config.talker.codec_language_id["english"],
        non_streaming_mode=True,
    )
    ours.speak(prompt, 2)
    ready = time.monotonic()
    stage = load_speaker_stage(Settings({}, environ={"VOICE_CLONE_CHECKPOINT_DIR": str(folder)}))
    voice = stage.encode(soundfile.read(given.clip, dtype="float32")[0], None)
    prompt = Prompt(**{**vars(prompt), **voice})
    codes, spent = ours.speak(prompt, given.frames)
    soundfile.write(given.output, samples(ours, codes), ours.model.form.sample_rate)
    times = {"ready": ready, "prompt": spent.prefill, "frame": spent.frame}
    print(json.dumps({**times, "decoder": spent.code2wav / given.frames, "whole": spent.total}))


def samples(ours: Ours[Qwen3TTS], codes: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The sound of a speech."""
    [decoded] = ours.code2wav.decode([Chunk("", 0, codes, codes[:0], final=True)])
    assert isinstance(decoded, Decoded)
    return decoded.waveform


def same_frames(ours: Path, theirs: Path, frames: int) -> int:
    """How many frames of two WAV files are the same speech, from the first one on."""
    a, b = (soundfile.read(file)[0].reshape(frames, -1) for file in (ours, theirs))
    error, loudness = (np.sqrt(np.square(each).mean(axis=1)) for each in (a - b, a))
    return int((error < SAME * loudness).cumprod().sum())


def measure(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All figures by number of threads and by name."""
    names = [name for precision in given.precision for name in (precision, PAIRS[precision])]
    wavs = {name: scratch / f"{name}.wav" for name in names}
    clip, voice = decode(CLIP.read_bytes()), scratch / "voice.wav"
    soundfile.write(voice, resample(clip.waveform, clip.sample_rate, VOICE_RATE), VOICE_RATE)  # each has its own way
    first = Speeches(given.shape, given.frames, max(given.threads), voice)
    for name in names:
        first.of(name, wavs[name])
    equal = {p: same_frames(wavs[p], wavs[PAIRS[p]], given.frames) for p in given.precision}
    print("frames that are the same speech:", ", ".join(f"{name} {count}" for name, count in equal.items()))
    if equal.get("fp32", SURE) < SURE:
        raise SystemExit("llama.cpp in F32 says something else: nothing was timed")
    found: dict[str, Any] = {"same_frames": equal}
    for threads in given.threads:
        speeches = Speeches(given.shape, given.frames, threads, voice)
        spoken: dict[str, list[Spoken]] = {name: [] for name in names}
        for _ in range(given.runs):
            for name in names:
                spoken[name].append(speeches.of(name, wavs[name]))
        found[f"{threads} threads"] = {
            name: {**summaries(spoken[name]), **({"ratios": ratios(spoken, name)} if name in PAIRS else {})}
            for name in names
        }
    return found


def summaries(spoken: list[Spoken]) -> dict[str, Any]:
    return {name: report.summary([asdict(each)[name] for each in spoken]) for name in (*MEASURES, "megabytes")}


def ratios(spoken: dict[str, list[Spoken]], precision: str) -> dict[str, Any]:
    """How many times as much llama.cpp takes, by what is measured, of neighbours."""
    pairs = [(asdict(a), asdict(b)) for a, b in zip(spoken[precision], spoken[PAIRS[precision]], strict=True)]
    found = {name: [theirs[name] / ours[name] for ours, theirs in pairs] for name in (*MEASURES, "megabytes")}
    return {name: report.summary(values) for name, values in found.items()}


def show(found: dict[str, Any], given: argparse.Namespace) -> None:
    def middle(values: dict[str, float], unit: float = 1.0) -> str:
        return f"{unit * values['p50']:.3g} ({unit * values['min']:.3g} to {unit * values['max']:.3g})"

    for threads in given.threads:
        rows = []
        for name, of in found[f"{threads} threads"].items():
            times = [middle(of[each], unit) for each, unit in zip(MEASURES, (1, 1e3, 1e3, 1e3, 1), strict=True)]
            whole = "" if name in PAIRS else f"{1e3 * of['decoder']['p50'] * given.frames / llama_cpp.WINDOW:.3g}"
            rows.append([name, *times[:4], whole, times[4], f"{of['megabytes']['p50']:.0f}"])
            if name in PAIRS:
                them = [middle(of["ratios"][each]) for each in (*MEASURES, "megabytes")]
                rows.append([f"{PAIRS[name]} over {name}", *them[:4], "", *them[4:]])
        print(f"\n{threads} threads, {given.frames} frames, median of {given.runs} (least to most):\n")
        columns = ["", "start s", "prompt ms", "frame ms", "decoder ms", "of 72", "whole s", "MB"]
        print(report.table(columns, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("0.6b", "1.7b"), default="0.6b", help="of a random checkpoint")
    parser.add_argument("--precision", nargs="+", choices=tuple(PAIRS), default=list(PAIRS), help="of ours")
    parser.add_argument("--frames", type=int, default=24, help="at most 72")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speak", help=argparse.SUPPRESS)
    parser.add_argument("--clip", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not 2 <= given.frames < llama_cpp.WINDOW:
        parser.error(f"--frames must be 2 to {llama_cpp.WINDOW - 1}")
    if given.speak:
        speak(given)
        return
    for precision in given.precision:
        llama_cpp.files(given.shape, PAIRS[precision])
    with guard.temporary_folder() as scratch:
        found = measure(given, scratch)
    show(found, given)
    report.write(given.json, {"llama_cpp": llama_cpp.VERSION, "frames": given.frames, "figures": found})


if __name__ == "__main__":
    main()
