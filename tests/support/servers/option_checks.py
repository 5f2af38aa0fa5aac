"""Checks that an option of `qwen3_tts` does on a server what it does to the bare networks, and does something."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voice_clone_client import Client

from tests.support.families.qwen3_bare import BareQwen3
from tests.support.same_audio import is_same_audio
from tests.support.servers.talker_calls import Call
from voice_clone.families.qwen3_tts.sampling import SamplingParameters
from voice_clone_server.triton_server import TritonServer

TEXT = "Every evening the boats came home."
BUDGET = 37
# Of generation_config.json: no value is that which is taken where the file has none.
DEFAULTS: dict[str, Any] = {
    "do_sample": False,
    "temperature": 1.3,
    "top_k": 30,
    "top_p": 0.8,
    "repetition_penalty": 1.3,
    "subtalker_dosample": False,
    "subtalker_temperature": 0.7,
    "subtalker_top_k": 20,
    "subtalker_top_p": 0.85,
    "max_new_tokens": BUDGET,
}
Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Voice:
    """A clip and its transcript."""

    name: str
    clip: bytes
    transcript: str


@dataclass(frozen=True)
class Wish:
    """A speech, of a registered voice unless it is said otherwise. `knobs` and `options` are those of a request."""

    text: str = TEXT
    voice: str = "Harbour"
    inline: bool = False  # the clip comes with the request
    in_context: bool = True
    embedding: int | None = None  # the seed of a ready one, in place of a voice
    language: str | None = "English"
    non_streaming: bool = False
    knobs: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


SAMPLED = Wish(knobs=(("do_sample", True), ("seed", 5), ("max_frames", 14)), options=(("subtalker_do_sample", True),))


def with_knob(name: str, value: Any) -> Wish:
    """As `SAMPLED`, with another value of this knob."""
    return replace(SAMPLED, knobs=tuple({**dict(SAMPLED.knobs), name: value}.items()))


def with_option(name: str, value: Any) -> Wish:
    """As `SAMPLED`, with another value of this option."""
    return replace(SAMPLED, options=tuple({**dict(SAMPLED.options), name: value}.items()))


WISHES: dict[str, Wish] = {
    "text": replace(SAMPLED, text="Nobody said a word."),
    "voice": replace(SAMPLED, voice="Second"),
    "reference_audio": replace(SAMPLED, voice="Second", inline=True, in_context=False),
    "reference_text": replace(SAMPLED, voice="Second", inline=True),
    "speaker_embedding": replace(SAMPLED, embedding=3),
    "x_vector_only": replace(SAMPLED, in_context=False),
    "language": replace(SAMPLED, language="German"),
    "no language": replace(SAMPLED, language=None),
    "non_streaming_mode": replace(SAMPLED, non_streaming=True),
    "temperature": with_knob("temperature", 0.45),
    "top_k": with_knob("top_k", 3),
    "top_p": with_knob("top_p", 0.35),
    "repetition_penalty": with_knob("repetition_penalty", 1.9),
    "seed": with_knob("seed", 2**63 + 5),
    "max_frames": with_knob("max_frames", 9),
    "do_sample": with_knob("do_sample", False),
    "subtalker_do_sample": with_option("subtalker_do_sample", False),
    "subtalker_temperature": with_option("subtalker_temperature", 1.9),
    "subtalker_top_k": with_option("subtalker_top_k", 2),
    "subtalker_top_p": with_option("subtalker_top_p", 0.3),
}


@dataclass(eq=False)
class Probe:
    """A server, and the bare networks of the same checkpoint."""

    server: TritonServer
    bare: BareQwen3
    voices: dict[str, Voice]
    _made: dict[Wish, Samples] = field(default_factory=dict)

    def register(self) -> None:
        """Upload the voices."""
        with Client(self.server.url, model="qwen3_tts") as client:
            for voice in self.voices.values():
                client.upload(voice.name, voice.clip, reference_text=voice.transcript, wait=True)

    def heard(self, wish: Wish) -> tuple[Samples, dict[str, Any]]:
        """From the server: samples, and the info of the last chunk."""
        voice, given = self.voices[wish.voice], dict[str, Any]()
        if wish.embedding is not None:
            given["speaker_embedding"] = embedding(wish.embedding)
        elif wish.inline:
            given["reference_audio"] = voice.clip
            given["reference_text"] = voice.transcript if wish.in_context else None
        else:
            given["voice"] = voice.name
            given["x_vector_only"] = None if wish.in_context else True
        given |= {"language": wish.language, "options": dict(wish.options) or None, **dict(wish.knobs)}
        given["non_streaming_mode"] = wish.non_streaming or None
        with Client(self.server.url) as client:
            speech = client.speak(wish.text, **{name: value for name, value in given.items() if value is not None})
            samples, _ = speech.read()
        return samples, dict(speech.info or {})

    def made(self, wish: Wish) -> Samples:
        """By the bare networks; `DEFAULTS` where the wish says nothing."""
        if wish not in self._made:
            voice: bytes | NDArray[np.float32] = self.voices[wish.voice].clip
            transcript = self.voices[wish.voice].transcript if wish.in_context else None
            if wish.embedding is not None:
                voice, transcript = embedding(wish.embedding), None
            prompt = self.bare.prompt(wish.text, voice, transcript, wish.language or "Auto", wish.non_streaming)
            given = {"seed": 0, **DEFAULTS, "subtalker_do_sample": DEFAULTS["subtalker_dosample"]}
            given |= {**dict(wish.knobs), **dict(wish.options)}
            frames = given.pop("max_frames", given["max_new_tokens"])
            fields = SamplingParameters.__dataclass_fields__
            sampling = SamplingParameters(**{name: value for name, value in given.items() if name in fields})
            self._made[wish] = self.bare.speak(prompt, frames, sampling)
        return self._made[wish]


def embedding(seed: int) -> NDArray[np.float32]:
    """A ready speaker embedding for the tiny checkpoint."""
    return np.random.default_rng(seed).normal(size=64).astype(np.float32)


def check_wish(name: str, probe: Probe) -> None:
    """The option does the same here and there, and not what happens without it."""
    expected = probe.made(WISHES[name])
    assert not is_same_audio(probe.made(SAMPLED), expected), "the option changes nothing, so this check proves nothing"
    assert is_same_audio(probe.heard(WISHES[name])[0], expected), f"{name} does not do on the server what it does alone"


def check_defaults(probe: Probe) -> None:
    """What a request does not say comes from generation_config.json."""
    samples, info = probe.heard(Wish())
    assert info["frames"] == BUDGET and info["finish_reason"] == "budget"
    assert is_same_audio(samples, probe.made(Wish()))


def check_sampled_defaults(probe: Probe) -> None:
    """The same where it is sampled."""
    assert is_same_audio(probe.heard(SAMPLED)[0], probe.made(SAMPLED))


def check_cache(probe: Probe) -> None:
    """`cache: false` passes the memory by."""
    probe.heard(SAMPLED)
    assert probe.heard(SAMPLED)[1]["cache"] == "hit"
    aside = probe.heard(replace(SAMPLED, knobs=(*SAMPLED.knobs, ("cache", False))))
    assert aside[1]["cache"] == "restored"


def check_text_stream(probe: Probe) -> None:
    """The speech waits for more text under the caller's id."""
    stream_id = secrets.token_hex(16)
    inputs = {"text": TEXT, "voice": "Harbour", "text_stream": stream_id, "x_vector_only": np.array([True])}
    call = Call(probe.server, inputs, "qwen3_tts")
    first = call.next()
    call.leave()
    assert not isinstance(first, str), first
    assert json.loads(first.as_numpy("info")[0])["stream_id"] == stream_id


def _of_wish(name: str) -> Callable[[Probe], None]:
    return lambda probe: check_wish(name, probe)


CHECKS: dict[str, Callable[[Probe], None]] = {
    **{name: _of_wish(name) for name in WISHES},
    "generation_config.json": check_defaults,
    "generation_config.json, sampled": check_sampled_defaults,
    "cache": check_cache,
    "text_stream": check_text_stream,
}
