"""Clones a voice and speaks in it: starts the server, uploads a clip, speaks twice, saves a WAV.

It speaks with a small checkpoint that comes with it: simple English sentences, in about the voice of the clip. With
`--checkpoint DIR` it speaks with a released checkpoint, of any family; one that cannot clone speaks in a voice of its
own. With `--family`, in a checkout, it makes a tiny one of that family with random weights: everything runs as with a
released checkpoint, but the audio is noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from platformdirs import user_cache_path
from voice_clone_client import Client, Unsupported, VoiceCloneError
from voice_clone_client.wav import WavWriter
from voice_clone_program.arguments import Parser
from voice_clone_program.whole_file import whole_file

from voice_clone_server.families.recognition import FamilyError, add_repository_option
from voice_clone_server.preflight import occupied
from voice_clone_server.program import program
from voice_clone_server.steps import step
from voice_clone_server.triton_server import MODELS, ServerFailed, TritonServer

DATA = Path(__file__).with_name("data").resolve()  # as `MODELS`
SHIPPED = DATA / "demo_voice"  # the checkpoint that comes with it; tools/demo_voice/train has made it
CLIP = DATA / "demo_clips" / "slt.wav"  # a voice such as it has learned from
CACHE = user_cache_path("voice-clone")
RANDOM_FRAMES = 96  # random weights hardly ever end a speech
VOICE = "demo"

Maker = Callable[[Path], object]
NONE: Mapping[str, Maker] = MappingProxyType({})


@dataclass(frozen=True)
class Spoken:
    """One synthesis, measured at the client."""

    label: str
    samples: int
    sample_rate: int
    first_audio_ms: float
    total_s: float
    extractions: int
    info: dict[str, Any]
    finish_reason: str

    @property
    def audio_s(self) -> float:
        return self.samples / self.sample_rate

    @property
    def samples_a_frame(self) -> float:
        return self.samples / max(1, int(self.info["frames"]))


def main(makers: Mapping[str, Maker] = NONE, cache: Path = CACHE) -> int:
    """The command line.

    Args:
        makers: of tiny random checkpoints, by family, for `--family`.
        cache: folder of these, and of the demo's voices.
    """
    parser = Parser(prog=program("demo"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: the one that comes with it)")
    if makers:
        weights.add_argument("--family", choices=makers, help="make a tiny random checkpoint of this family: noise")
    parser.set_defaults(family=None)
    add_repository_option(parser)
    parser.add_argument("--reference", type=Path, help="a clip of 1 to 30 s of the voice to clone")
    parser.add_argument("--reference-text", help="the words spoken in --reference; enables in-context cloning")
    parser.add_argument("--text", default="In the morning my sister found a small key under the old table.")
    parser.add_argument("--language", help="of the text (default: the model finds out)")
    parser.add_argument(
        "--max-frames",
        type=int,
        help=f"longest speech in frames (default: what the text may take; {RANDOM_FRAMES} with --family)",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("demo.wav"), help="default: demo.wav")
    arguments = parser.parse_args()
    if arguments.max_frames is not None and arguments.max_frames < 1:
        parser.error("--max-frames must be at least 1")
    if arguments.family is not None and arguments.max_frames is None:
        arguments.max_frames = RANDOM_FRAMES
    if arguments.reference_text and not arguments.reference:
        parser.error("--reference-text belongs to --reference")
    if arguments.reference and not arguments.reference.is_file():
        parser.error(f"there is no file {arguments.reference}; give a clip of 1 to 30 s")
    shipped = arguments.checkpoint is None and arguments.family is None
    reference = arguments.reference or (CLIP if shipped else DATA / "reference.wav")
    transcript = arguments.reference_text
    if arguments.reference is None and not shipped:  # the shipped one speaks more clearly from the embedding alone
        transcript = (DATA / "reference.txt").read_text(encoding="utf-8").strip()
    try:
        return _run(arguments, reference, transcript, makers, cache)
    except BrokenPipeError:
        raise  # of the output: tools/run.py
    except (FamilyError, ServerFailed, VoiceCloneError, OSError) as error:
        print(f"{program('demo')}: {error}", file=sys.stderr)
        return 1


def _run(
    arguments: argparse.Namespace, reference: Path, transcript: str | None, makers: Mapping[str, Maker], cache: Path
) -> int:
    random = arguments.family is not None
    checkpoint = _tiny_checkpoint(makers, arguments.family, cache) if random else arguments.checkpoint or SHIPPED
    log = cache / "demo-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    repositories = [MODELS, *arguments.repository]
    server = TritonServer(checkpoint, cache / "demo-voices", log=log, models=repositories, gives_way=True)
    if reason := occupied(cache / "demo-voices", repositories):
        raise ServerFailed(reason)
    [family] = server.families
    print(f"Starting tritonserver with {checkpoint.name}, of {family} ...", flush=True)
    with step("loading the models; the first start on a machine also compiles, for about a minute"):
        server.start()
    with server, Client(server.url, model=family) as client:
        try:
            spoken = _cloned(client, arguments, reference, transcript)
        except Unsupported as error:
            presets = client.presets()
            if arguments.reference is not None or not presets:
                raise
            print(f"{error}.\nSo it speaks in its own voice {presets[0].name}.")
            own = {"voice": presets[0].name}
            spoken = [
                _speak(client, arguments, "first call", None, own),
                _speak(client, arguments, "second call", arguments.output, own),
            ]
    _table(spoken)
    last = spoken[-1]
    print(f"\nSaved {last.audio_s:.2f} s of audio to {arguments.output} ({last.info['frames']} frames).")
    if not random and (ending := ending_of(last, arguments.max_frames)):
        print(ending)
    print(
        f"To hear it: aplay {arguments.output} (or paplay, play, ffplay -nodisp -autoexit; on a Mac afplay).\n"
        "A machine without a sound device cannot play it: copy the file to one that has speakers."
    )
    if random:
        print(
            "The weights are random, so this is noise, not speech. To hear speech, leave out --family, or pass the\n"
            "folder of a released checkpoint: --checkpoint DIR"
        )
    lengths = {each.samples_a_frame for each in spoken}
    complete = len(lengths) == 1 and lengths != {0.0}
    if not complete or last.info["cache"] not in ("hit", "preset") or last.extractions:
        print(
            "A warm call should find the voice in the cache and speak as long as a cold one; please report this.",
            file=sys.stderr,
        )
        return 1
    return 0


def _cloned(client: Client, arguments: argparse.Namespace, reference: Path, transcript: str | None) -> list[Spoken]:
    """Register the clip, and speak in its voice."""
    name = VOICE if arguments.reference else f"{VOICE} {reference.stem}"  # each clip that comes along has its own
    restored = any(voice.name == name for voice in client.list())
    if arguments.reference is not None or not restored:
        began = time.monotonic()
        with step("registering the voice"):
            voice = client.upload(name, reference, reference_text=transcript, wait=True, replace=True)
        print(
            f"Registered the voice {name!r} from {voice.duration:.1f} s of speech"
            f" in {1e3 * (time.monotonic() - began):.0f} ms, extraction included."
        )
    else:
        print(f"The voice {name!r} was registered by an earlier run and is restored from disk.")
    inline = {"reference_audio": reference, "reference_text": transcript}
    return [
        _speak(client, arguments, "clip sent along, cold", None, inline),
        _speak(client, arguments, "first call", None, {"voice": name}),
        _speak(client, arguments, "second call", arguments.output, {"voice": name}),
    ]


def _tiny_checkpoint(makers: Mapping[str, Maker], family: str, cache: Path) -> Path:
    folder = cache / f"tiny-{family}"
    if not folder.exists():  # it appears when it is whole
        print("Making a tiny checkpoint with random weights ...", flush=True)
        makers[family](folder)
    return folder


def _speak(
    client: Client, arguments: argparse.Namespace, label: str, output: Path | None, source: dict[str, Any]
) -> Spoken:
    """Speak once and write the audio to `output`, if there is one."""
    before = client.stats()["extractions"]
    began = time.monotonic()
    first = 0.0
    chunks, sample_rate = [], 0
    speech = client.speak_long(
        arguments.text, language=arguments.language, seed=7, max_frames=arguments.max_frames, **source
    )
    with step(f"speaking: {label}"):
        for chunk in speech:
            first = first or time.monotonic() - began
            chunks.append(chunk.samples)
            sample_rate = chunk.sample_rate
    total = time.monotonic() - began
    samples = np.concatenate(chunks)
    if output is not None:
        with whole_file(output) as file, WavWriter(file, sample_rate) as wav:
            wav.write(samples)
    extractions = client.stats()["extractions"] - before
    info, reason = dict(speech.info or {}), speech.finish_reason or ""
    return Spoken(label, len(samples), sample_rate, 1e3 * first, total, extractions, info, reason)


def ending_of(spoken: Spoken, max_frames: int | None) -> str | None:
    """What to say of a speech that does not end with its text."""
    if spoken.finish_reason == "stop":
        return None
    if spoken.finish_reason == "length":
        return f"It is cut after {max_frames} frames, as --max-frames says: the text may go on."
    return f"The model has missed the end of the text ({spoken.finish_reason}): the speech was ended for it."


def _table(rows: list[Spoken]) -> None:
    print(f"\n{'':24}{'cache':>10}{'extractions':>13}{'first audio':>14}{'audio':>10}{'real-time factor':>18}")
    for row in rows:
        print(
            f"{row.label:24}{row.info['cache']:>10}{row.extractions:>13}{row.first_audio_ms:>11.0f} ms"
            f"{row.audio_s:>8.2f} s{row.total_s / row.audio_s:>18.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
