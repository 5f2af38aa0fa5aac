"""The options of all commands that speak: whose voice it is, and how it speaks."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from functools import partial
from typing import Any

from voice_clone_client import embedding
from voice_clone_client.fields import DTYPES, MEANINGS, Knobs
from voice_clone_sound import MAX_SPEED, MIN_SPEED
from voice_clone_text.sentences import MAX_CHARACTERS

from ..work import PARALLEL
from .common import given

_TYPES = {"INT32": int, "UINT64": int, "FP32": float}


def add_voice(speak: argparse.ArgumentParser) -> None:
    voice = speak.add_mutually_exclusive_group()
    voice.add_argument(
        "--voice",
        metavar="NAME",
        help="a registered voice; a model that needs no voice speaks without any of these four options, too",
    )
    voice.add_argument("--reference", metavar="FILE", help="a clip of the voice, not registered")
    voice.add_argument("--embedding", metavar="FILE", help="a speaker embedding (.npy, .safetensors)")
    voice.add_argument("--prompt", metavar="FILE", help="a ready prompt: a bundle of one voice, made by export")
    speak.add_argument("--reference-text", metavar="TEXT", help="the words spoken in the clip of --reference")


def add_shape(speak: argparse.ArgumentParser) -> None:
    """Add the options for the sound of sentences, and for their length."""
    speak.add_argument(
        "--allow-partial",
        action="store_true",
        help="a speech whose end the model missed is no failure; a line on stderr says so",
    )
    speak.add_argument(
        "--sentence-characters",
        type=int,
        default=MAX_CHARACTERS,
        metavar="N",
        help="speak a longer text sentence by sentence, and cut a longer sentence (default: %(default)s)",
    )
    speak.add_argument(
        "--speed",
        type=partial(within, MIN_SPEED, MAX_SPEED),
        default=1.0,
        metavar="X",
        help="above 1 is faster, at the same pitch (0.25 to 4)",
    )


def add_parallel(speak: argparse.ArgumentParser) -> None:
    """Add the option of the commands that make many speeches."""
    speak.add_argument(
        "--parallel",
        type=lambda text: int(within(1, 256, text)),
        default=PARALLEL,
        metavar="N",
        help="speeches at once; those that find no slot on the server wait there (1 to 256; default: %(default)s)",
    )


def add_knobs(speak: argparse.ArgumentParser) -> None:
    speak.add_argument(
        "--x-vector-only",
        action=argparse.BooleanOptionalAction,
        help="clone by the speaker embedding alone; --no-x-vector-only requires in-context cloning",
    )
    for name, meaning in MEANINGS.items():
        if name != "options":
            _add_knob(speak, name, meaning)
    speak.add_argument(
        "--option",
        dest="options",
        action="append",
        type=_pair,
        metavar="NAME=VALUE",
        help="a parameter that only this model family has, see models --details; VALUE is JSON, or else a text; may be "
        "repeated",
    )


def add_normalize(speak: argparse.ArgumentParser) -> None:
    """Add the options of the text front end."""
    speak.add_argument("--inline-pauses", action="store_true", help="[pause:500ms] in the text is a silence")
    speak.add_argument(
        "--normalize",
        choices=("on", "numbers"),
        help="speak numbers, dates, money and the like in words of the --language; numbers: only what has a digit",
    )


def how_of(parsed: argparse.Namespace) -> Any:
    """Return the arguments of a speech that the options of voice and model give, by name."""
    knobs: Any = {name: getattr(parsed, name) for name in Knobs.__annotations__}
    knobs["options"] = None if parsed.options is None else dict(parsed.options)
    return {
        "voice": parsed.voice,
        "reference_audio": parsed.reference and given(parsed.reference),
        "reference_text": parsed.reference_text,
        "speaker_embedding": None if parsed.embedding is None else embedding.load(given(parsed.embedding)),
        "voice_prompt": parsed.prompt and given(parsed.prompt),
        "x_vector_only": parsed.x_vector_only,
        **knobs,
    }


def within(least: float, most: float, text: str) -> float:
    """A number of this range."""
    with suppress(ValueError):
        if least <= (value := float(text)) <= most:  # NaN is not
            return value
    raise argparse.ArgumentTypeError(f"it must be {least:g} to {most:g}, not {text!r}")


def _add_knob(speak: argparse.ArgumentParser, name: str, meaning: str) -> None:
    option, dtype = name.replace("_", "-"), DTYPES.get(name)
    if dtype == "BOOL":
        value, _, effect = meaning.partition(": ")
        given = f"--{option}" if value == "true" else f"--no-{option}"
        speak.add_argument(f"--{option}", action=argparse.BooleanOptionalAction, help=f"{given}: {effect}")
    elif dtype is None:
        speak.add_argument(f"--{option}", help=meaning)
    else:
        speak.add_argument(f"--{option}", type=_TYPES[dtype], metavar="N", help=meaning)


def _pair(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE."""
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
