"""The mode of a voice is its family's: what encoders declare, what a voice lacks, and how seldom encoders are asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.fakes import FAMILIES, MODES, FakeEncoder, Voices, clip
from tests.support.waiting import until
from voice_clone.errors import DeadlineExceeded, Internal, InvalidArgument, Overloaded, Unsupported
from voice_clone.speakers.encoders import Extraction
from voice_clone.speakers.modes import check_modes

Make = Callable[..., Voices]
TRANSCRIPT_ONLY = sorted(family for family, modes in MODES.items() if all(modes.values()))


def states(voices: Voices, name: str = "Ada") -> dict[str, tuple[str, str]]:
    """Mode and state by model type."""
    return {each["model_type"]: (each["mode"], each["state"]) for each in voices.get(name)["artifacts"]}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", [None, "Hello."])
def test_a_voice_is_used_in_the_first_mode_whose_needs_it_meets(make_voices: Make, family: str, text: Any) -> None:
    voices = make_voices(defaults=(family,))
    wanted = next((mode for mode, needs in MODES[family].items() if text or not needs), None)
    shown = voices.upload(reference_text=text)["artifacts"]
    assert [each["state"] for each in shown] == ["unsupported" if wanted is None else "ready"]
    if wanted is None:
        assert family in TRANSCRIPT_ONLY and voices.encoder.extractions == 0
        return
    assert shown[0]["mode"] == wanted == voices.resolve(model_type=family).result["mode"]
    inline = voices.call("resolve", audio=clip(5), reference_text=text, model_type=family)
    assert inline.result["mode"] == wanted
    assert voices.call("prepare", name="Ada", model_type=family).result["mode"] == wanted
    assert set(voices.encoder.calls) == {(family, wanted)}


def test_a_voice_that_meets_no_mode_is_unsupported_and_not_failed(make_voices: Make) -> None:
    voices = make_voices(defaults=("qwen3_tts", "fish_speech"))
    speaker = voices.upload()
    assert [(a["model_type"], a["mode"], a["state"]) for a in speaker["artifacts"]] == [
        ("fish_speech", "icl", "unsupported"),
        ("qwen3_tts", "x_vector", "ready"),
    ]
    reason = "fish_speech in mode icl needs reference_text, and the voice 'Ada' was uploaded without; upload it again"
    assert speaker["artifacts"][0]["reason"].replace("`", "").startswith(reason)
    for operation, options in (("resolve", {}), ("prepare", {}), ("prepare", {"force": True})):
        with pytest.raises(Unsupported, match=reason):
            voices.call(operation, options, name="Ada", model_type="fish_speech")
    assert set(voices.encoder.calls) == {("qwen3_tts", "x_vector")} and voices.stats()["extraction_failures"] == 0
    voices.restart()  # nothing of it is written down
    until(lambda: states(voices)["fish_speech"] == ("icl", "unsupported"))
    assert voices.call("list").result["speakers"][0]["artifacts"] == voices.get()["artifacts"]
    voices.upload(reference_text="Hello.", replace=True)
    assert states(voices) == {"fish_speech": ("icl", "ready"), "qwen3_tts": ("icl", "ready")}


def test_a_requested_mode_must_be_one_of_the_family(voices: Voices) -> None:
    voices.upload(reference_text="Hello.")
    for operation in ("resolve", "prepare"):
        with pytest.raises(Unsupported, match="qwen3_tts has no mode 'whisper'; it has icl, x_vector"):
            voices.call(operation, {"mode": "whisper"}, name="Ada")
    with pytest.raises(Unsupported, match="fish_speech has no mode 'x_vector'; it has icl"):
        voices.resolve(model_type="fish_speech", mode="x_vector")
    with pytest.raises(Unsupported, match="fish_speech has no mode 'x_vector'; it has icl"):
        voices.call("resolve", {"mode": "x_vector"}, audio=clip(1), model_type="fish_speech")


def test_a_requested_mode_must_get_what_it_needs(voices: Voices) -> None:
    voices.upload()
    words = (
        "qwen3_tts in mode icl needs reference_text, and the voice 'Ada' was uploaded without; "
        "upload it again with reference_text, or ask for the mode x_vector"
    )
    for operation in ("resolve", "prepare"):
        with pytest.raises(Unsupported, match=words):
            voices.call(operation, {"mode": "icl"}, name="Ada")
    words = "qwen3_tts in mode icl needs reference_text; send it with the audio, or ask for the mode x_vector"
    with pytest.raises(InvalidArgument, match=words):
        voices.call("resolve", {"mode": "icl"}, audio=clip(1))
    with pytest.raises(InvalidArgument, match=r"fish_speech in mode icl needs reference_text"):
        voices.call("resolve", audio=clip(1), model_type="fish_speech")
    assert voices.encoder.extractions == 1


def test_a_need_that_the_cache_does_not_know_is_met_by_no_voice(make_voices: Make) -> None:
    encoder = FakeEncoder()
    encoder.declares = {"qwen3_tts": {"icl": ["reference_text", "consent_clip"], "x_vector": []}}
    voices = make_voices(encoder=encoder)
    voices.upload(reference_text="Hello.")
    assert states(voices) == {"qwen3_tts": ("x_vector", "ready")}
    encoder.declares = {"qwen3_tts": {"icl": ["reference_text", "consent_clip"]}}
    with pytest.raises(Unsupported, match="needs consent_clip, and the voice 'Ada' was uploaded without"):
        voices.call("prepare", name="Ada")  # asks again
    assert states(voices)["qwen3_tts"] == ("icl", "unsupported") or len(voices.get()["artifacts"]) == 2


def test_an_encoder_that_declares_no_modes_has_the_natural_ones_and_may_have_others(make_voices: Make) -> None:
    encoder = FakeEncoder()
    encoder.declares = {}
    voices = make_voices(encoder=encoder)
    voices.upload("With", reference_text="Hello.")
    voices.upload("Without", 1)
    assert states(voices, "With") == {"qwen3_tts": ("icl", "ready")}
    assert states(voices, "Without") == {"qwen3_tts": ("x_vector", "ready")}
    assert voices.resolve("Without", mode="icl").result["mode"] == "icl"
    assert voices.call("resolve", {"mode": "icl"}, audio=clip(2)).result["mode"] == "icl"
    assert voices.resolve("With", "voxcpm2", mode="reference").result["mode"] == "reference"
    with pytest.raises(Unsupported, match="takes no speaker_embedding"):
        voices.call("resolve", {"mode": "icl"}, speaker_embedding=np.zeros(1024, np.float32))


def test_an_encoder_that_must_have_a_mode_has_the_natural_ones(make_voices: Make) -> None:
    class Strict(FakeEncoder):
        def encode(self, model_type: str, waveform: Any, sample_rate: int, mode: str | None) -> Extraction:
            if mode is None:
                raise InvalidArgument("mode is missing")
            made = super().encode(model_type, waveform, sample_rate, mode)
            return Extraction(made.artifacts, made.fingerprint)

    voices = make_voices(encoder=Strict())
    voices.upload()
    assert states(voices) == {"qwen3_tts": ("x_vector", "ready")}
    assert voices.resolve().result["status"] == "hit"


@pytest.mark.parametrize(
    "declared",
    [{}, [], "icl", 7, {"icl": "reference_text"}, {"icl": [7]}, {"a/b": []}, {"icl": ["a b"]}, {"icl": None}],
)
def test_modes_that_are_none(make_voices: Make, declared: Any) -> None:
    with pytest.raises(
        Internal, match=r"the voice encoder of qwen3_tts declared its modes as .* not as {mode: \[need\] or reason}"
    ):
        check_modes("qwen3_tts", declared)
    encoder = FakeEncoder()
    encoder.declares = {"qwen3_tts": declared}
    voices = make_voices(encoder=encoder)
    voices.upload()
    with pytest.raises(Internal, match="declared its modes as"):
        voices.resolve()
    assert encoder.extractions == 0


def test_modes_keep_their_order() -> None:
    needs = {"z": ["reference_text"], "a": [], "m": ()}
    assert list(check_modes("x", needs).needs.items()) == [("z", ("reference_text",)), ("a", ()), ("m", ())]


def test_an_embedding_stands_for_the_mode_without_needs(make_voices: Make) -> None:
    voices = make_voices()
    embedding = np.ones(1024, np.float32)
    assert voices.call("resolve", speaker_embedding=embedding).result["mode"] == "x_vector"
    for operation, name in (("upload", "Ada"), ("resolve", None)):
        with pytest.raises(Unsupported, match=r"fish_speech in mode icl.*send audio"):
            voices.call(operation, name=name, speaker_embedding=embedding, model_type="fish_speech")
        with pytest.raises(Unsupported, match=r"voxcpm2 in mode reference.*send audio"):
            voices.call(operation, name=name, speaker_embedding=embedding, model_type="voxcpm2")
    with pytest.raises(Unsupported, match="qwen3_tts in mode icl takes no speaker_embedding"):
        voices.call("resolve", {"mode": "icl"}, speaker_embedding=embedding)
    voices.upload(audio=None, speaker_embedding=embedding)
    with pytest.raises(Unsupported, match="registered without audio, and not for fish_speech in mode icl"):
        voices.resolve(model_type="fish_speech")


def test_encoders_are_asked_once(make_voices: Make) -> None:
    voices = make_voices(defaults=("qwen3_tts", "fish_speech"))
    for seed in range(3):
        voices.upload(f"v{seed}", seed, reference_text="Hello.")
    asked = dict(voices.encoder.describes)
    assert asked == {(family, mode): 1 for family in ("qwen3_tts", "fish_speech") for mode in (None, "icl")}
    for step in range(100):
        assert voices.resolve(f"v{step % 3}", ("qwen3_tts", "fish_speech")[step % 2]).result["status"] == "hit"
        voices.get("v0")
        voices.call("list")
    assert dict(voices.encoder.describes) == asked


def test_clips_that_nothing_is_kept_of_leave_the_modes_known(voices: Voices) -> None:
    """Else the next voice would ask the encoder again, behind all clips that wait for it."""
    for seed in range(3):
        voices.call("resolve", {"cache": False}, audio=clip(seed), model_type="qwen3_tts")
    assert voices.encoder.describes["qwen3_tts", None] == 1


def test_nothing_is_kept_of_families_that_there_are_not(voices: Voices) -> None:
    voices.upload("Ada")
    describer = voices.cache._describer
    kept = set(describer._asked)
    for number in range(20):
        with pytest.raises(Unsupported):
            voices.resolve("Ada", f"none-{number}")
    assert describer._asked == kept and set(describer._modes) == {"qwen3_tts"}


def test_prepare_notices_another_checkpoint_with_other_modes(voices: Voices) -> None:
    voices.upload()
    assert voices.resolve().result["mode"] == "x_vector"
    voices.encoder.checkpoint = "b"
    voices.encoder.declares["qwen3_tts"] = {"icl": []}
    assert voices.call("prepare", name="Ada").result["mode"] == "icl"
    assert voices.resolve().result["mode"] == "icl"


def test_an_extraction_of_another_checkpoint_drops_the_modes_that_are_kept(voices: Voices) -> None:
    voices.upload("Ada")
    voices.encoder.checkpoint = "b"
    voices.encoder.declares["qwen3_tts"] = {"icl": []}
    voices.upload("Bob", 1)
    assert voices.resolve("Ada").result["mode"] == "icl"


class Slow(FakeEncoder):
    """An encoder that does not describe itself before it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def encode(self, model_type: str, waveform: Any, sample_rate: int, mode: str | None) -> Extraction:
        if not waveform.size:
            assert self.go.wait(10)
        return super().encode(model_type, waveform, sample_rate, mode)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_registration_does_not_wait_for_a_slow_encoder(make_voices: Make, workers: int) -> None:
    encoder = Slow()
    voices = make_voices(encoder=encoder, defaults=("qwen3_tts", "fish_speech"), workers=workers)
    assert {a["state"] for a in voices.upload("Ada", wait=False)["artifacts"]} == {"pending"}
    assert voices.upload("Bob", 1, wait=False, reference_text="Hello.")["generation"] == 2
    assert voices.call("list").result["count"] == 2
    with pytest.raises(DeadlineExceeded):
        voices.resolve(timeout=0.05)
    shown = voices.call("upload", {"wait": True, "timeout": 0.05}, name="Cid", audio=clip(2)).result
    assert {a["state"] for a in shown["artifacts"]} == {"pending"}
    encoder.go.set()
    until(lambda: states(voices) == {"qwen3_tts": ("x_vector", "ready"), "fish_speech": ("icl", "unsupported")})
    until(lambda: states(voices, "Bob") == {"qwen3_tts": ("icl", "ready"), "fish_speech": ("icl", "ready")})
    until(lambda: voices.stats()["in_flight"] == 0)
    assert encoder.extractions == 4  # Ada, Bob twice, Cid


def test_a_deleted_voice_whose_encoder_is_still_asked_is_not_made(make_voices: Make) -> None:
    encoder = Slow()
    voices = make_voices(encoder=encoder)
    voices.upload(wait=False)
    voices.call("delete", name="Ada")
    encoder.go.set()
    until(lambda: voices.stats()["in_flight"] == 0)
    assert encoder.extractions == 0 and voices.on_disk() == []


def test_an_encoder_that_is_overloaded_is_not_mistaken_for_one_without_modes(make_voices: Make) -> None:
    class Busy(FakeEncoder):
        busy = True

        def encode(self, model_type: str, waveform: Any, sample_rate: int, mode: str | None) -> Extraction:
            if self.busy:
                raise Overloaded("the queue is full")
            return super().encode(model_type, waveform, sample_rate, mode)

    encoder = Busy()
    voices = make_voices(encoder=encoder, defaults=("fish_speech",))
    voices.upload()
    with pytest.raises(Overloaded, match="the queue is full"):
        voices.resolve(model_type="fish_speech")
    encoder.busy = False
    with pytest.raises(Unsupported, match="upload it again with reference_text"):
        voices.resolve(model_type="fish_speech")


def test_the_families_of_an_upload_and_the_default_one(make_voices: Make) -> None:
    voices = make_voices(defaults=("omnivoice", "qwen3_tts"))
    assert voices.stats()["model_types"] == ["omnivoice", "qwen3_tts"]
    voices.upload("Ada", reference_text="Hello.")
    assert states(voices) == {"omnivoice": ("icl", "ready"), "qwen3_tts": ("icl", "ready")}
    voices.upload("Bob", 1, reference_text="Hello.", model_type="qwen3_tts")
    assert states(voices, "Bob") == {"omnivoice": ("icl", "pending"), "qwen3_tts": ("icl", "ready")}
    assert voices.call("resolve", name="Ada").result["model_type"] == "omnivoice"
    assert voices.call("resolve", audio=clip(3), reference_text="Hello.").result["model_type"] == "omnivoice"
    assert voices.call("prepare", name="Bob").result["extraction_ms"] > 0
    voices.defaults = ()  # a server may unload them
    assert voices.stats()["model_types"] == []
    with pytest.raises(InvalidArgument, match="model_type is missing, and this server has no family"):
        voices.call("resolve", name="Ada")
    assert voices.resolve(model_type="qwen3_tts").result["status"] == "hit"
