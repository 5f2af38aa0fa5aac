"""Speaker embeddings: embedding extract, embedding blend and direction make."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import embedding
from voice_clone_client.client import Client

from .common import command, given, report, saved, summary


def add(commands: Any) -> None:
    group = commands.add_parser("embedding", help="speaker embeddings: save one, or blend two")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    extract = command(actions, "extract", _extract, "save the speaker embedding of a voice")
    extract.add_argument("name")
    extract.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help=".npy or .safetensors; - for stdout",
    )
    blend = command(actions, "blend", _blend, "blend the speaker embeddings of two voices")
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
    blend.add_argument("--replace", action="store_true", help="replace the voice of that name (default: refuse)")
    blend.add_argument("--consent", help="how the speakers consented")
    blend.add_argument("-o", "--output", metavar="FILE", help="save the result; ends with .npy or .safetensors")
    group = commands.add_parser("direction", help="directions of speaker embeddings, for styles such as joy:0.6")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    make = command(actions, "make", _make, "make a direction of clips in a manner and of neutral clips")
    make.add_argument("name", help="of the direction, such as joy")
    make.add_argument("--neutral", nargs="+", required=True, metavar="CLIP", help="neutral clips of the same speakers")
    make.add_argument("--with", dest="other", nargs="+", required=True, metavar="CLIP", help="clips in this manner")
    make.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE.safetensors",
        help="for the folder `directions` of the server's checkpoint; - for stdout",
    )


def _make(client: Client, parsed: argparse.Namespace) -> None:
    vector, fingerprint = client.direction(parsed.neutral, parsed.other)
    saved(parsed.output, embedding.encoded_direction(parsed.name, vector, fingerprint))
    report(parsed, f"{parsed.output}\t{parsed.name}\tlength {float(np.linalg.norm(vector)):.3g}")


def _extract(client: Client, parsed: argparse.Namespace) -> None:
    _save(parsed, client.speaker_embedding(parsed.name), parsed.name)


def _save(parsed: argparse.Namespace, vector: NDArray[np.float32], what: str) -> None:
    if parsed.output != "-" and not embedding.is_file(parsed.output):
        parsed.parser.error(f"-o {parsed.output} must end with {' or '.join(embedding.SUFFIXES)}")
    saved(parsed.output, embedding.encoded(vector, parsed.output))
    report(parsed, f"{parsed.output}\t{what}\t{len(vector)} values")


def _is_file(voice: str) -> bool:
    return voice == "-" or "/" in voice or embedding.is_file(voice)


def _blend(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.output is None and parsed.register is None:
        parsed.parser.error("give --register NAME, -o FILE or both")
    first, second = (
        embedding.load(given(voice)) if _is_file(voice) else client.speaker_embedding(voice)
        for voice in (parsed.first, parsed.second)
    )
    blended = embedding.blend(first, second, parsed.weight, parsed.method)
    if parsed.output is not None:
        _save(parsed, blended, f"{parsed.first} and {parsed.second}, weight {parsed.weight:g}")
    if parsed.register is not None:
        described = f"{parsed.method} blend of {parsed.first} and {parsed.second}, weight {parsed.weight:g}"
        voice = client.upload(
            parsed.register,
            speaker_embedding=blended,
            description=described,
            consent=parsed.consent,
            wait=True,
            replace=parsed.replace,
        )
        report(parsed, summary(voice))
