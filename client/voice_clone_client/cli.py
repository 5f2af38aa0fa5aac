"""The command `voice-clone`: voices and speech of a Triton server in the shell.

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
from .errors import ConnectionFailed, Internal, Unsupported, VoiceCloneError
from .types import Knobs, Voice

Command = Callable[[Client, argparse.Namespace], None]

# Name, type and help of each numeric knob; its option is the name with dashes.
_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("seed", int, "the same seed gives the same audio"),
    ("max_frames", int, "maximum length of the speech, in frames of its model"),
    ("temperature", float, "temperature of the sampling"),
    ("top_k", int, "number of most likely values to sample from"),
    ("top_p", float, "share of the probability to sample from"),
    ("repetition_penalty", float, "above 1 makes repetitions less likely"),
)
_SWITCHES = (
    ("do_sample", "sample; --no-do-sample takes the most likely value in each step"),
    ("non_streaming_mode", "the model reads the whole text before it makes the first frame"),
)
_WAIT = "maximum time to wait for the voice (default: the server's setting)"


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it again at its exit
        return _fail("the reader of the output closed it")
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
    _print(_summary(voice))
    for artifacts in voice.artifacts:
        if artifacts.state == "failed":
            raise Internal(f"{voice.name} is registered, but not ready: {artifacts.reason}")


def _list(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    if parsed.json:
        _print_json([voice.record for voice in voices])
        return
    for voice in voices:
        _print(_summary(voice))


def _get(client: Client, parsed: argparse.Namespace) -> None:
    _print_json(client.get(parsed.name).record)


def _delete(client: Client, parsed: argparse.Namespace) -> None:
    client.delete(parsed.name)


def _prepare(client: Client, parsed: argparse.Namespace) -> None:
    voice = client.prepare(parsed.name, force=parsed.force, mode=parsed.mode, timeout=parsed.wait_seconds)
    _print(_summary(voice))


def _stats(client: Client, parsed: argparse.Namespace) -> None:
    _print_json(client.stats())


def _models(client: Client, parsed: argparse.Namespace) -> None:
    for model in client.models():
        _print(model)


def _doctor(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    models = [parsed.model] if parsed.model else client.models()
    if not models:
        raise Unsupported(f"a server answers at {parsed.url}, but it has no model family")
    for model in models:
        if not client.ready(model=model):
            raise ConnectionFailed(f"a server answers at {parsed.url}, but its model {model} is not ready")
        _print(f"model\t{model} is ready at {parsed.url}")
    _print(f"voices\t{len(voices)}")
    try:
        _print(f"player\t{find_player()}")
    except PlayerFailed as error:
        _print(f"player\t{error}")


def _export(client: Client, parsed: argparse.Namespace) -> None:
    bundle = client.export(parsed.name, include_audio=parsed.audio)
    Path(parsed.output).write_bytes(bundle)


def _import(client: Client, parsed: argparse.Namespace) -> None:
    for voice in client.import_(parsed.file, reextract=parsed.reextract):
        _print(_summary(voice))


def _speak(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.output is None and not parsed.play:
        parsed.parser.error("give -o FILE, --play or both")
    knobs: Any = {name: getattr(parsed, name) for name in Knobs.__annotations__}
    knobs["options"] = None if parsed.options is None else dict(parsed.options)
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
        _print(_summary(voice))


def _summary(voice: Voice) -> str:
    """One line of tab-separated columns: name, generation, seconds of its clip, states by model type and mode."""
    clip = "embedding" if voice.duration is None else f"{voice.duration:.1f} s"
    states = ", ".join(f"{entry.model_type} {entry.mode} {entry.state}" for entry in voice.artifacts)
    return f"{voice.name}\tgeneration {voice.generation}\t{clip}\t{states}"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _print_json(value: object) -> None:
    _print(json.dumps(value, indent=2, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voice-clone", description="Speak in cloned voices, on a Triton server.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server's gRPC endpoint (%(default)s)")
    parser.add_argument("--model", help="the model family that speaks (default: the server's)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="maximum seconds of any command but speak (%(default)s)"
    )
    parser.add_argument("--tls", action="store_true", help="connect by TLS, verified with the system's authorities")
    parser.add_argument("--ca", metavar="FILE", help="connect by TLS, verified with the authority in this PEM file")
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
        "--embedding", metavar="FILE", help="a speaker embedding instead of a clip (.npy, .safetensors)"
    )
    transcript = upload.add_mutually_exclusive_group()
    transcript.add_argument("--text", help="the words spoken in the clip; they make the voice more similar")
    transcript.add_argument("--text-file", metavar="FILE", help="a file with the words spoken in the clip")
    upload.add_argument("--consent", help="how the speaker consented")
    upload.add_argument("--description", help="free text")
    upload.add_argument("--immutable", action="store_true", help="fail if the name is taken")
    upload.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until the voice is ready (default)"
    )
    upload.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)

    listing = _command(commands, "list", _list, "all voices: name, generation, length of the clip, states")
    listing.add_argument("--json", action="store_true", help="all fields, as JSON")
    _command(commands, "get", _get, "all fields of a voice, as JSON").add_argument("name")
    _command(commands, "delete", _delete, "delete a voice").add_argument("name")
    prepare = _command(commands, "prepare", _prepare, "prepare a voice, so that its next speech starts at once")
    prepare.add_argument("name")
    prepare.add_argument("--mode", help="mode of cloning, icl or x_vector (default: the voice's own)")
    prepare.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)
    prepare.add_argument("--force", action="store_true", help="prepare it again even if it is ready")
    _command(commands, "stats", _stats, "counters of the voice cache, as JSON")
    _command(commands, "models", _models, "the model families of the server, its default first")
    _command(commands, "doctor", _doctor, "check the server, its models and voices, and the player of this machine")
    export = _command(commands, "export", _export, "save one voice, or all, as a bundle")
    export.add_argument("name", nargs="?")
    export.add_argument("-o", "--output", required=True, metavar="FILE")
    export.add_argument(
        "--audio", action=argparse.BooleanOptionalAction, default=True, help="include the clips (default)"
    )
    importing = _command(commands, "import", _import, "register the voices of a bundle")
    importing.add_argument("file")
    importing.add_argument("--reextract", action="store_true", help="compute artifacts of another checkpoint again")
    _add_speak(commands)
    _add_embedding(commands)
    return parser


def _add_speak(commands: Any) -> None:
    speak = _command(commands, "speak", _speak, "speak a text in a voice")
    speak.add_argument("text", help="the text; - reads it from stdin")
    voice = speak.add_mutually_exclusive_group(required=True)
    voice.add_argument("--voice", metavar="NAME", help="a registered voice")
    voice.add_argument("--reference", metavar="FILE", help="a clip of the voice, not registered")
    voice.add_argument("--embedding", metavar="FILE", help="a speaker embedding (.npy, .safetensors)")
    speak.add_argument("--reference-text", metavar="TEXT", help="the words spoken in the clip of --reference")
    speak.add_argument("-o", "--output", metavar="FILE", help="a WAV file; - for raw PCM16 on stdout")
    speak.add_argument("--play", action="store_true", help="play the speech while it arrives")
    speak.add_argument("--deadline", type=float, metavar="SECONDS", help="maximum time of the whole speech")
    speak.add_argument(
        "--x-vector-only",
        action=argparse.BooleanOptionalAction,
        help="clone by the speaker embedding alone; --no-x-vector-only requires in-context cloning",
    )
    speak.add_argument("--language", help="a language of the checkpoint, or Auto")
    for name, kind, text in _NUMBERS:
        speak.add_argument(_option(name), type=kind, metavar="N", help=text)
    for name, text in _SWITCHES:
        speak.add_argument(_option(name), action=argparse.BooleanOptionalAction, help=text)
    speak.add_argument(
        "--option",
        dest="options",
        action="append",
        type=_pair,
        metavar="NAME=VALUE",
        help="a parameter that only this model family has; VALUE is JSON, or else a text; may be repeated",
    )


def _add_embedding(commands: Any) -> None:
    group = commands.add_parser("embedding", help="speaker embeddings: save one, or blend two")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    extract = _command(actions, "extract", _extract, "save the speaker embedding of a voice")
    extract.add_argument("name")
    extract.add_argument("-o", "--output", required=True, metavar="FILE", help="ends with .npy or .safetensors")
    blend = _command(actions, "blend", _blend, "blend the speaker embeddings of two voices")
    blend.add_argument("first", help="a registered voice, or an embedding file (.npy, .safetensors)")
    blend.add_argument("second", help="a voice or file like the first")
    blend.add_argument("--weight", type=float, default=0.5, help="0 is the first, 1 the second (%(default)s)")
    blend.add_argument(
        "--method",
        choices=("linear", "spherical"),
        default="spherical",
        help="linear interpolation, or rotation, which preserves the length (%(default)s)",
    )
    blend.add_argument("--register", metavar="NAME", help="register the result under this name")
    blend.add_argument("--consent", help="how the speakers consented")
    blend.add_argument("-o", "--output", metavar="FILE", help="save the result; ends with .npy or .safetensors")


def _command(commands: Any, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run, parser=parser)
    return parser


def _pair(text: str) -> tuple[str, Any]:
    """Name and value of NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return name, value


def _no_json(constant: str) -> Any:
    """Refuse NaN and Infinity, which Python's parser accepts."""
    raise ValueError(f"{constant} is no JSON")


def _option(knob: str) -> str:
    return "--" + knob.replace("_", "-")


if __name__ == "__main__":
    sys.exit(main())
