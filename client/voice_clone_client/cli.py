"""The command `voice-clone`: voices and speech of a Triton server from the shell.

    voice-clone upload ada ada.wav --text "What she says in the clip."
    voice-clone speak "Any other sentence." --voice ada --play
    voice-clone speak - --voice ada -o book.wav < book.txt
    voice-clone embedding blend ada ben --weight 0.3 --register between

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import embedding
from ._channel import tls_credentials
from ._output import AudioOutput, progress
from ._player import Player, PlayerFailed, find_player
from ._version import __version__
from .client import Client
from .errors import ConnectionFailed, Internal, VoiceCloneError
from .types import Knobs, Voice

Command = Callable[[Client, argparse.Namespace], None]

# Option, type and help of the knobs; the option's name is the knob's, with dashes.
_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("seed", int, "the same seed gives the same audio"),
    ("max_frames", int, "the longest speech, in frames of 80 ms"),
    ("temperature", float, "of the first code of each frame"),
    ("top_k", int, "codes to choose from"),
    ("top_p", float, "share of the probability to choose from"),
    ("repetition_penalty", float, "above 1 shuns codes said before"),
    ("subtalker_temperature", float, "of the other codes of each frame"),
    ("subtalker_top_k", int, "the same for those"),
    ("subtalker_top_p", float, "the same for those"),
)
_SWITCHES = (
    ("do_sample", "sample the first codes; --no-do-sample takes the likeliest"),
    ("subtalker_do_sample", "sample the other codes"),
    ("non_streaming_mode", "show the model all the text before the first frame"),
)


_WAIT = "give up waiting for the voice after so long (the server's setting)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        with Client(
            parsed.url,
            model=parsed.model,
            timeout=parsed.timeout,
            credentials=tls_credentials(parsed.ca) if parsed.tls or parsed.ca else None,
            token=parsed.token,
        ) as client:
            parsed.run(client, parsed)
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again when it exits
        return _fail("the reader of the output went away")
    except VoiceCloneError as error:
        return _fail(f"{error.slug}: {error}")
    except UnicodeDecodeError as error:
        return _fail(f"the text is not UTF-8: {error}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _fail(message: str) -> int:
    sys.stderr.write(f"voice-clone: {' '.join(message.split())}\n")
    return 1


def _upload(client: Client, parsed: argparse.Namespace) -> None:
    text = parsed.text
    if parsed.text_file is not None:
        text = Path(parsed.text_file).read_text(encoding="utf-8").strip()
    voice = client.upload(
        parsed.name,
        parsed.file,
        reference_text=text,
        consent=parsed.consent,
        description=parsed.description,
        speaker_embedding=None if parsed.embedding is None else embedding.load(parsed.embedding),
        wait=parsed.wait,
        timeout=parsed.wait_seconds,
        policy="immutable" if parsed.immutable else None,
    )
    _say(_summary(voice))
    for artifacts in voice.artifacts:
        if artifacts.state == "failed":
            raise Internal(f"{voice.name} is registered, but not ready: {artifacts.reason}")


def _list(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    if parsed.json:
        _say_json([voice.record for voice in voices])
        return
    for voice in voices:
        _say(_summary(voice))


def _get(client: Client, parsed: argparse.Namespace) -> None:
    _say_json(client.get(parsed.name).record)


def _delete(client: Client, parsed: argparse.Namespace) -> None:
    client.delete(parsed.name)


def _prepare(client: Client, parsed: argparse.Namespace) -> None:
    voice = client.prepare(parsed.name, force=parsed.force, mode=parsed.mode, timeout=parsed.wait_seconds)
    _say(_summary(voice))


def _stats(client: Client, parsed: argparse.Namespace) -> None:
    _say_json(client.stats())


def _doctor(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    if not client.ready():
        raise ConnectionFailed(f"a server answers at {parsed.url}, but its model {parsed.model} is not ready")
    _say(f"model\t{parsed.model} is ready at {parsed.url}")
    _say(f"voices\t{len(voices)}")
    try:
        _say(f"player\t{find_player()}")
    except PlayerFailed as error:
        _say(f"player\t{error}")


def _export(client: Client, parsed: argparse.Namespace) -> None:
    bundle = client.export(parsed.name, include_audio=parsed.audio)
    Path(parsed.output).write_bytes(bundle)


def _import(client: Client, parsed: argparse.Namespace) -> None:
    for voice in client.import_(parsed.file, reextract=parsed.reextract):
        _say(_summary(voice))


def _speak(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.output is None and not parsed.play:
        parsed.parser.error("give -o FILE, --play or both")
    knobs: Any = {name: getattr(parsed, name) for name in Knobs.__annotations__}
    text = sys.stdin.read() if parsed.text == "-" else parsed.text
    with ExitStack() as stack:
        shown = stack.enter_context(progress())
        outputs: list[AudioOutput | Player] = []
        if parsed.output is not None:
            outputs.append(stack.enter_context(AudioOutput(parsed.output)))
        if parsed.play:
            outputs.append(stack.enter_context(Player()))
        speech = stack.enter_context(
            client.speak(
                text,
                voice=parsed.voice,
                reference_audio=parsed.reference,
                reference_text=parsed.reference_text,
                speaker_embedding=None if parsed.embedding is None else embedding.load(parsed.embedding),
                x_vector_only=parsed.x_vector_only,
                deadline=parsed.deadline,
                **knobs,
            )
        )
        for chunk in speech:
            for output in outputs:
                output.write(chunk)
            shown.update(chunk)


def _extract(client: Client, parsed: argparse.Namespace) -> None:
    embedding.save(parsed.output, client.speaker_embedding(parsed.name))


def _blend(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.output is None and parsed.register is None:
        parsed.parser.error("give --register NAME, -o FILE or both")
    first, second = (
        embedding.load(voice) if embedding.is_file(voice) else client.speaker_embedding(voice)
        for voice in (parsed.first, parsed.second)
    )
    blended = embedding.blend(first, second, parsed.weight, parsed.method)
    if parsed.output is not None:
        embedding.save(parsed.output, blended)
    if parsed.register is not None:
        described = f"{parsed.method} blend of {parsed.first} and {parsed.second}, weight {parsed.weight:g}"
        voice = client.upload(
            parsed.register, speaker_embedding=blended, description=described, consent=parsed.consent, wait=True
        )
        _say(_summary(voice))


def _summary(voice: Voice) -> str:
    """One line of tab-separated columns: name, generation, seconds of its clip, states by model type and mode."""
    clip = "embedding" if voice.duration is None else f"{voice.duration:.1f} s"
    states = ", ".join(f"{entry.model_type} {entry.mode} {entry.state}" for entry in voice.artifacts)
    return f"{voice.name}\tgeneration {voice.generation}\t{clip}\t{states}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _say_json(value: object) -> None:
    _say(json.dumps(value, indent=2, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voice-clone", description="Speak in cloned voices, on a Triton server.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server's gRPC endpoint (%(default)s)")
    parser.add_argument("--model", default="qwen3_tts", help="the family that speaks (%(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for any command but speak (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="connect by TLS, checked against the system's authorities")
    parser.add_argument("--ca", metavar="FILE", help="connect by TLS, checked against the authority in this PEM file")
    parser.add_argument(
        "--token",
        default=os.environ.get("VOICE_CLONE_TOKEN"),
        help="the server's write token, if it has one (default: VOICE_CLONE_TOKEN, which other users cannot see)",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    upload = _command(commands, "upload", _upload, "register a voice, or replace the one of that name")
    upload.add_argument("name")
    source = upload.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", help="a clip of speech: WAV, FLAC, OGG or MP3, 1 to 30 s")
    source.add_argument(
        "--embedding", metavar="FILE", help="a ready speaker embedding instead of a clip (.npy, .safetensors)"
    )
    transcript = upload.add_mutually_exclusive_group()
    transcript.add_argument("--text", help="what is said in the clip; makes the voice more alike")
    transcript.add_argument("--text-file", metavar="FILE", help="the same from a file")
    upload.add_argument("--consent", help="how the speaker agreed")
    upload.add_argument("--description")
    upload.add_argument("--immutable", action="store_true", help="fail if the name is taken")
    upload.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until the voice is ready (default)"
    )
    upload.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)

    listing = _command(commands, "list", _list, "all voices: name, generation, length of the clip, states")
    listing.add_argument("--json", action="store_true", help="all that is known of them")
    _command(commands, "get", _get, "all that is known of a voice, as JSON").add_argument("name")
    _command(commands, "delete", _delete, "forget a voice").add_argument("name")
    prepare = _command(commands, "prepare", _prepare, "make a voice ready to speak at once")
    prepare.add_argument("name")
    prepare.add_argument("--mode", help="for cloning in another way than the voice's own: icl, x_vector")
    prepare.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)
    prepare.add_argument("--force", action="store_true", help="build it anew even if it is ready")
    _command(commands, "stats", _stats, "counters of the voice cache, as JSON")
    _command(commands, "doctor", _doctor, "see whether all that is needed is there: server, model, voices, player")
    export = _command(commands, "export", _export, "save one voice, or all, as a bundle")
    export.add_argument("name", nargs="?")
    export.add_argument("-o", "--output", required=True, metavar="FILE")
    export.add_argument(
        "--audio", action=argparse.BooleanOptionalAction, default=True, help="with the clips themselves (default)"
    )
    importing = _command(commands, "import", _import, "register the voices of a bundle")
    importing.add_argument("file")
    importing.add_argument("--reextract", action="store_true", help="make what another checkpoint made anew")
    _add_speak(commands)
    _add_embedding(commands)
    return parser


def _add_speak(commands: Any) -> None:
    speak = _command(commands, "speak", _speak, "say a text in a voice")
    speak.add_argument("text", help="the text; - reads it from stdin")
    voice = speak.add_mutually_exclusive_group(required=True)
    voice.add_argument("--voice", metavar="NAME", help="a registered voice")
    voice.add_argument("--reference", metavar="FILE", help="a clip of the voice, not registered")
    voice.add_argument("--embedding", metavar="FILE", help="a speaker embedding (.npy, .safetensors)")
    speak.add_argument("--reference-text", metavar="TEXT", help="what is said in the clip of --reference")
    speak.add_argument("-o", "--output", metavar="FILE", help="a WAV file; - for raw PCM16 on stdout")
    speak.add_argument("--play", action="store_true", help="play it while it comes")
    speak.add_argument("--deadline", type=float, metavar="SECONDS", help="give up if the speech is not whole by then")
    speak.add_argument(
        "--x-vector-only",
        action=argparse.BooleanOptionalAction,
        help="clone by the speaker embedding alone; --no-x-vector-only insists on the transcript",
    )
    speak.add_argument("--language", help="a language of the checkpoint, or Auto")
    for name, kind, text in _NUMBERS:
        speak.add_argument(_option(name), type=kind, metavar="N", help=text)
    for name, text in _SWITCHES:
        speak.add_argument(_option(name), action=argparse.BooleanOptionalAction, help=text)


def _add_embedding(commands: Any) -> None:
    group = commands.add_parser("embedding", help="speaker embeddings: save one, or make a voice between two")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    extract = _command(actions, "extract", _extract, "save the speaker embedding of a voice")
    extract.add_argument("name")
    extract.add_argument("-o", "--output", required=True, metavar="FILE", help="ends with .npy or .safetensors")
    blend = _command(actions, "blend", _blend, "make a voice between two")
    blend.add_argument("first", help="a registered voice, or an embedding's file (.npy, .safetensors)")
    blend.add_argument("second", help="another")
    blend.add_argument("--weight", type=float, default=0.5, help="0 is the first, 1 the second (%(default)s)")
    blend.add_argument(
        "--method",
        choices=("linear", "spherical"),
        default="spherical",
        help="the straight way, or the one that keeps the length (%(default)s)",
    )
    blend.add_argument("--register", metavar="NAME", help="register it under this name")
    blend.add_argument("--consent", help="how the speakers agreed")
    blend.add_argument("-o", "--output", metavar="FILE", help="save it; ends with .npy or .safetensors")


def _command(commands: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run, parser=parser)
    return parser


def _option(knob: str) -> str:
    return "--" + knob.replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
