"""Voices: upload, list, get, delete, prepare, export and import."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from voice_clone_client import embedding
from voice_clone_client.client import Client
from voice_clone_client.clips import readable
from voice_clone_client.errors import Internal, InvalidArgument, Unsupported
from voice_clone_client.sources import text as text_of
from voice_clone_client.types import Voice

from .clip_report import description, faults
from .common import (
    command,
    complain,
    given,
    in_words,
    print_json,
    print_line,
    print_table,
    report,
    saved,
    summary,
)

_WAIT = "maximum time to wait for the voice (default: the server's setting)"


def add(commands: Any) -> None:
    upload = command(commands, "upload", _upload, "register a voice")
    upload.add_argument("name")
    source = upload.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "file",
        nargs="*",
        default=(),
        help="a clip of speech, 1 to 30 s (WAV, FLAC, OGG, MP3, m4a, mp4, ...), or several of one speaker; - for stdin",
    )
    source.add_argument(
        "--embedding", metavar="FILE", help="a speaker embedding instead of a clip (.npy, .safetensors)"
    )
    transcript = upload.add_mutually_exclusive_group()
    transcript.add_argument(
        "--text",
        "--reference-text",
        help="the words spoken in the clip, of several the first; they make the voice more similar",
    )
    transcript.add_argument("--text-file", metavar="FILE", help="a file with the words spoken in the clip")
    transcript.add_argument(
        "--transcribe",
        action="store_true",
        help="let the server's model transcriber write down the words, of several clips those of the first; on a "
        "terminal you can correct them before they are used",
    )
    upload.add_argument("--consent", help="how the speaker consented")
    upload.add_argument("--description", help="free text")
    upload.add_argument("--shared", action="store_true", help="gateway keys that own voices may use it, too")
    upload.add_argument("--replace", action="store_true", help="replace the voice of that name (default: refuse)")
    upload.add_argument(
        "--style", metavar="NAME", help="add the clip as this style to a voice that there is, such as happy"
    )
    upload.add_argument("--strict", action="store_true", help="fail if the clip has a warning")
    upload.add_argument("--trim-silence", action="store_true", help="cut the silence off both ends of the clip")
    upload.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="wait until the voice is ready (default)"
    )
    upload.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)

    listing = command(commands, "list", _list, "all voices: name, generation, length of the clip, states")
    listing.add_argument("--json", action="store_true", help="all fields of the registered voices, as JSON")
    presets = command(commands, "presets", _presets, "the preset voices of models, which need no upload")
    presets.add_argument("--json", action="store_true", help="as JSON")
    command(commands, "show", _show, "a voice and the report on its clip").add_argument("name")
    command(commands, "get", _get, "all fields of a voice, as JSON").add_argument("name")
    deletion = command(commands, "delete", _delete, "delete a voice")
    deletion.add_argument("name")
    deletion.add_argument("--style", metavar="NAME", help="delete only the clip of this style")
    group = commands.add_parser("aliases", help="further names of voices: list, set, remove")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    command(actions, "list", _aliases, "all aliases, each with its voice").add_argument(
        "--json", action="store_true", help="as JSON"
    )
    setting = command(actions, "set", _set_aliases, "give voices further names, such as alloy=Ada nova=Ben")
    setting.add_argument("aliases", nargs="+", metavar="ALIAS=VOICE", type=_alias)
    removing = command(actions, "remove", _remove_aliases, "remove aliases; their voices stay")
    removing.add_argument("aliases", nargs="+", metavar="ALIAS")
    prepare = command(commands, "prepare", _prepare, "prepare a voice, so that its next speech starts at once")
    prepare.add_argument("name")
    prepare.add_argument("--mode", help="mode of cloning, icl or x_vector (default: the voice's own)")
    prepare.add_argument("--style", metavar="NAME", help="of the clip (default: the first one)")
    prepare.add_argument("--wait-seconds", type=float, metavar="SECONDS", help=_WAIT)
    prepare.add_argument("--force", action="store_true", help="prepare it again even if it is ready")
    export = command(commands, "export", _export, "save one voice, or all, as a bundle")
    export.add_argument("name", nargs="?")
    export.add_argument("-o", "--output", required=True, metavar="FILE", help="the bundle; - for stdout")
    export.add_argument(
        "--audio", action=argparse.BooleanOptionalAction, default=True, help="include the clips (default)"
    )
    importing = command(commands, "import", _import, "register the voices of a bundle")
    importing.add_argument("file", help="a bundle, made by export; - for stdin")
    importing.add_argument("--replace", action="store_true", help="replace voices of the same names (default: refuse)")
    importing.add_argument("--reextract", action="store_true", help="compute artifacts of another checkpoint again")


def _upload(client: Client, parsed: argparse.Namespace) -> None:
    text = parsed.text
    if parsed.text_file is not None:
        text = text_of(given(parsed.text_file)).strip()
    clips = [given(file) for file in parsed.file]
    if parsed.transcribe:
        if not clips:
            parsed.parser.error("--transcribe needs a FILE to listen to")
        clips = [readable(clip) for clip in clips]  # stdin can be read only once
        text = _corrected(client.transcribe(clips[0]))
    voice = client.upload(
        parsed.name,
        clips or None,
        reference_text=text,
        consent=parsed.consent,
        description=parsed.description,
        speaker_embedding=None if parsed.embedding is None else embedding.load(given(parsed.embedding)),
        wait=parsed.wait,
        timeout=parsed.wait_seconds,
        replace=parsed.replace,
        strict=parsed.strict,
        trim_silence=parsed.trim_silence,
        style=parsed.style,
        shared=parsed.shared,
    )
    registered(voice, parsed, parsed.style)


def _corrected(words: str) -> str:
    """Show the words that were heard. On a terminal the user can correct them.

    Raises:
        InvalidArgument: there are none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain(f"words: {words}")
    else:
        prompt, without = "Words: ", ""
        try:
            import readline
        except ImportError:  # Windows has none
            prompt, without = f"Words ({words}), or others: ", words
        else:
            readline.set_startup_hook(partial(readline.insert_text, words))
        try:
            words = input(prompt).strip() or without
        except EOFError:
            words = ""
    if not words:
        raise InvalidArgument("there are no words; give them with --text, or leave out --transcribe")
    return words


def registered(voice: Voice, parsed: argparse.Namespace, style: str | None = None) -> None:
    """Print an uploaded voice, the faults of its clip of this style, and why that is not ready for some families.

    Raises:
        Internal: the preparation failed for a family.
        Unsupported: the named family, or each one if none is named, does not support the voice.
    """
    clip = voice.clip(style) or voice
    of_clip = replace(clip, name=voice.name, generation=voice.generation)
    report(parsed, summary(of_clip))
    for line in faults(clip, parsed.parser):
        complain(line)
    for artifacts in clip.artifacts:
        if artifacts.state == "failed":
            raise Internal(f"{voice.name} is registered, but not ready: {artifacts.reason}")
    wanted = [artifacts for artifacts in clip.artifacts if parsed.model in (None, artifacts.model_type)]
    refused = [f"{each.model_type}: {each.reason}" for each in wanted if each.state == "unsupported"]
    if refused:
        message = f"{voice.name} is registered, but not for {'; nor for '.join(refused)}"
        if len(refused) == len(wanted):
            raise Unsupported(message)
        complain(in_words(message, parsed.parser))


def _list(client: Client, parsed: argparse.Namespace) -> None:
    voices = client.list()
    if parsed.json:
        print_json([voice.record for voice in voices])
        return
    print_table(("NAME", "GENERATION", "CLIP", "STATES"), [summary(voice).split("\t") for voice in voices])
    if parsed.quiet:
        return
    if not voices:
        complain("no voice is registered; voice-clone upload NAME FILE registers one")
    presets = client.presets()
    if presets:
        families = ", ".join(dict.fromkeys(preset.model_type for preset in presets))
        complain(f"{len(presets)} further voices come with {families}; voice-clone presets lists them")


def _presets(client: Client, parsed: argparse.Namespace) -> None:
    presets = client.presets()
    if parsed.json:
        print_json([vars(preset) for preset in presets])
        return
    for preset in presets:
        instead = "; a registered voice of this name speaks instead" if preset.registered else ""
        print_line(f"{preset.name}: {preset.model_type}{instead}")
    if not presets and not parsed.quiet:
        complain("no model of this server has preset voices")


def _show(client: Client, parsed: argparse.Namespace) -> None:
    for line in description(client.get(parsed.name), parsed.parser):
        print_line(line)


def _get(client: Client, parsed: argparse.Namespace) -> None:
    print_json(client.get(parsed.name).record)


def _delete(client: Client, parsed: argparse.Namespace) -> None:
    client.delete(parsed.name, style=parsed.style)
    report(parsed, f"{parsed.name}\t{f'{parsed.style} ' if parsed.style else ''}deleted")


def _alias(text: str) -> tuple[str, str]:
    alias, _, voice = (part.strip() for part in text.partition("="))
    if not alias or not voice or "=" in voice:
        raise argparse.ArgumentTypeError(f"{text!r} is not ALIAS=VOICE")
    return alias, voice


def _aliases(client: Client, parsed: argparse.Namespace) -> None:
    aliases = client.aliases()
    if parsed.json:
        print_json(aliases)
        return
    print_table(("ALIAS", "VOICE"), [[*pair] for pair in aliases.items()])
    if not aliases and not parsed.quiet:
        complain("there is no alias; voice-clone aliases set ALIAS=VOICE sets one")


def _set_aliases(client: Client, parsed: argparse.Namespace) -> None:
    for alias, voice in parsed.aliases:
        client.set_alias(alias, voice)
        report(parsed, f"{alias}\t{voice}")


def _remove_aliases(client: Client, parsed: argparse.Namespace) -> None:
    for alias in parsed.aliases:
        client.remove_alias(alias)
        report(parsed, f"{alias}\tremoved")


def _prepare(client: Client, parsed: argparse.Namespace) -> None:
    voice = client.prepare(
        parsed.name, force=parsed.force, mode=parsed.mode, timeout=parsed.wait_seconds, style=parsed.style
    )
    report(parsed, summary(voice))


def _export(client: Client, parsed: argparse.Namespace) -> None:
    size = saved(parsed.output, client.export_parts(parsed.name, include_audio=parsed.audio))
    report(parsed, f"{parsed.output}\t{parsed.name or 'all voices'}\t{size} bytes")


def _import(client: Client, parsed: argparse.Namespace) -> None:
    for voice in client.import_(given(parsed.file), reextract=parsed.reextract, replace=parsed.replace):
        report(parsed, summary(voice))
