"""Styles: further clips of a voice, which have one generation, and go with it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.doubles.fakes import Voices, clip, file_of
from voice_clone.audio import decode
from voice_clone.errors import InvalidArgument, SpeakerExists, SpeakerNotFound, VoiceCloneError
from voice_clone.speakers import voice_file
from voice_clone.speakers.encoders import pack_artifacts
from voice_clone.speakers.record import MAX_STYLES, SpeakerRecord

STORES = ("files", "postgresql")  # all tests of this file run on both
FAMILY = "qwen3_tts"

Make = Callable[..., Voices]


def upload(voices: Voices, seed: int, text: str | None = None, name: str = "Ada", **options: Any) -> dict[str, Any]:
    given = {} if text is None else {"reference_text": text}
    made = voices.call("upload", options, name=name, audio=clip(seed), consent=f"consent {seed}", **given)
    result: dict[str, Any] = made.result
    return result


def expected(voices: Voices, seed: int, text: str | None = None) -> bytes:
    """The artifacts of that clip."""
    sound = decode(clip(seed))
    mode = "x_vector" if text is None else "icl"
    return pack_artifacts(voices.encoder.encode(FAMILY, sound.waveform, sound.sample_rate, mode).artifacts)


def resolve(voices: Voices, style: str | None = None, name: str = "Ada") -> Any:
    options = {} if style is None else {"style": style}
    return voices.call("resolve", options, name=name, model_type=FAMILY)


def test_each_style_speaks_with_its_own_clip_and_transcript(make_voices: Make) -> None:
    voices = make_voices()
    first = upload(voices, 1, wait=True)
    happy = upload(voices, 2, "I am glad.", style="Happy", wait=True)
    assert happy["generation"] > first["generation"]
    for style, seed, text in (
        (None, 1, None),
        ("neutral", 1, None),
        ("happy", 2, "I am glad."),
        ("HAPPY ", 2, "I am glad."),
    ):
        found = resolve(voices, style)
        assert found.artifacts == expected(voices, seed, text), style
        assert found.result.get("reference_text") == text and found.result["generation"] == happy["generation"]
        assert found.result.get("style", "neutral") == (style or "neutral").strip().lower()
    shown = voices.call("get", {}, name="Ada").result
    assert shown["consent"] == "consent 1" and [*shown["styles"]] == ["happy"]
    assert shown["styles"]["happy"]["reference_text"] == "I am glad."
    assert shown["styles"]["happy"]["consent"] == "consent 2" and shown["styles"]["happy"]["report"] != shown["report"]
    assert {each["state"] for each in shown["styles"]["happy"]["artifacts"]} == {"ready"}
    before = voices.encoder.extractions
    voices.restart()
    assert voices.call("get", {}, name="Ada").result == shown
    assert resolve(voices, "happy").artifacts == expected(voices, 2, "I am glad.")
    assert voices.encoder.extractions - before <= 1, "the artifacts of a style are stored"


def test_a_style_that_is_not_there_names_those_that_are(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1)
    upload(voices, 2, style="happy")
    with pytest.raises(InvalidArgument, match="neutral, happy"):
        resolve(voices, "sad")
    assert resolve(voices, "sad,neutral").artifacts == expected(voices, 1)
    assert resolve(voices, "sad, happy, neutral").artifacts == expected(voices, 2)
    with pytest.raises(InvalidArgument, match="style must be 1 to 64"):
        resolve(voices, "../x")
    with pytest.raises(SpeakerNotFound):
        upload(voices, 3, name="Bob", style="happy")
    with pytest.raises(InvalidArgument, match="name or voice_prompt"):
        voices.call("resolve", {"style": "happy"}, audio=clip(1), model_type=FAMILY)


def test_a_style_is_replaced_only_if_it_is_asked_for_and_the_same_upload_changes_nothing(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1)
    made = upload(voices, 2, style="happy")
    assert upload(voices, 2, style="happy")["generation"] == made["generation"]
    with pytest.raises(SpeakerExists, match="happy; the option replace"):
        upload(voices, 3, style="happy")
    with pytest.raises(SpeakerExists, match="neutral; the option replace"):
        upload(voices, 3, style="neutral")
    upload(voices, 3, style="happy", replace=True)
    assert resolve(voices, "happy").artifacts == expected(voices, 3)
    upload(voices, 4, style="neutral", replace=True)
    assert (resolve(voices).artifacts, resolve(voices, "happy").artifacts) == (
        expected(voices, 4),
        expected(voices, 3),
    ), "the first clip alone was replaced"
    upload(voices, 5, replace=True)
    with pytest.raises(InvalidArgument, match="its styles are neutral"):
        resolve(voices, "happy")


def test_a_deleted_style_is_gone_and_so_are_all_with_their_voice(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1)
    upload(voices, 2, style="happy")
    upload(voices, 3, style="sad")
    resolve(voices, "happy")
    assert voices.call("delete", {"style": "happy"}, name="Ada").result["style"] == "happy"
    with pytest.raises(InvalidArgument, match="neutral, sad"):
        resolve(voices, "happy")
    with pytest.raises(InvalidArgument, match="has no style"):
        voices.call("delete", {"style": "happy"}, name="Ada")
    with pytest.raises(InvalidArgument, match="delete the voice"):
        voices.call("delete", {"style": "neutral"}, name="Ada")
    assert resolve(voices, "sad").artifacts == expected(voices, 3)
    assert clip(2)[1000:2000] not in (voices.call("export", {}, name="Ada").artifacts or b"")
    voices.call("delete", {}, name="Ada")
    assert voices.on_disk() == [] and voices.stats()["entries"] == 0


def test_loudness_sharing_and_aliases(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1, shared=True, owner="ann", wait=True)
    made = upload(voices, 2, owner="ann", style="happy", wait=True)
    with pytest.raises(SpeakerExists):
        upload(voices, 3, owner="bob", style="sad")
    given = {"generation": made["generation"], "mode": "x_vector", "loudness": -20, "style": "happy"}
    voices.call("keep_loudness", given, name="Ada", model_type=FAMILY)
    voices.call("set_alias", {"voice": "Ada", "owner": "ann"}, name="Countess")
    found = voices.call("resolve", {"style": "happy", "owner": "ann"}, name="Countess", model_type=FAMILY)
    assert found.artifacts == expected(voices, 2) and found.result["loudness"] == -20
    assert "loudness" not in resolve(voices).result
    with pytest.raises(SpeakerExists, match="alias"):
        upload(voices, 4, name="Countess", owner="ann", style="sad")
    with pytest.raises(InvalidArgument, match="alias of 'Ada'"):
        voices.call("delete", {"owner": "ann", "style": "happy"}, name="Countess")
    seen = voices.call("get", {"owner": "bob"}, name="Ada").result["styles"]["happy"]
    assert not {"consent", "reference_text", "report"} & seen.keys()


def test_a_bundle_has_all_styles_and_speaks_in_each(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1, wait=True)
    upload(voices, 2, "Glad.", style="happy", wait=True)
    shown = voices.call("get", {}, name="Ada").result
    bundle = voices.call("export", {}, name="Ada").artifacts
    other = make_voices("other")
    [imported] = other.call("import", {}, audio=bundle).result["speakers"]
    assert imported["styles"]["happy"]["digest"] != shown["styles"]["happy"]["digest"], "no bundle brings a digest"
    for each in (imported, shown):
        each["generation"] = each["digest"] = each["styles"]["happy"]["digest"] = None
    assert imported == shown
    assert resolve(other, "happy").artifacts == expected(voices, 2, "Glad.") and other.encoder.extractions == 0
    generation = other.get()["generation"]
    assert other.call("import", {}, audio=bundle).result["speakers"][0]["generation"] == generation
    for style, seed, text in (("happy", 2, "Glad."), ("sad,neutral", 1, None)):
        given = {"style": style}
        found = other.call("resolve", given, voice_prompt=bundle, model_type=FAMILY)
        assert found.artifacts == expected(voices, seed, text)
    without = voices.call("export", {"include_audio": False}, name="Ada").artifacts
    assert clip(1)[1000:2000] not in without and clip(2)[1000:2000] not in without


@pytest.mark.files
def test_a_voice_without_styles_is_stored_as_before_there_were_any(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 1, "Some words.", wait=True)
    found = voice_file.read_header(file_of(voices))
    assert not {"styles", "since"} & json.loads(found.record.to_json()).keys()
    assert {*found.digests} == {"audio", "qwen3_tts/icl/speaker_embedding", "qwen3_tts/icl/codec_codes"}
    upload(voices, 2, style="happy", wait=True)
    styled = voice_file.read_header(file_of(voices))
    assert styled.digests.keys() - found.digests.keys() == {
        "~happy/audio",
        "~happy/qwen3_tts/x_vector/speaker_embedding",
        "~happy/qwen3_tts/x_vector/codec_codes",
    }
    assert styled.record.digest == found.record.digest, "the first clip is the same"


def test_a_voice_has_a_bounded_number_of_styles(make_voices: Make) -> None:
    voices = make_voices()
    upload(voices, 0)
    for number in range(MAX_STYLES):
        upload(voices, 1 + number, style=f"style{number}")
    with pytest.raises(InvalidArgument, match=f"{MAX_STYLES} styles"):
        upload(voices, 99, style="another")
    upload(voices, 99, style="style3", replace=True)
    assert resolve(voices, "style3").artifacts == expected(voices, 99)


@pytest.mark.parametrize(
    "styles",
    [
        {"Happy": {}}, {"neutral": {}}, {"a b": {}}, {"": {}}, [1], {"a": 1}, {"a": {}},
        {f"s{number}": {} for number in range(MAX_STYLES + 1)},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_other_styles_is_none(styles: Any) -> None:
    values = {"name": "ada", "generation": 1, "created_at": 1.0, "embedding_source": "audio", "artifacts": []}
    found = SpeakerRecord.from_json(json.dumps({**values, "styles": {"happy": {**values, "generation": 0}}}))
    assert [*found.styles] == ["happy"]
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, VoiceCloneError)):
        SpeakerRecord.from_json(json.dumps({**values, "styles": styles}))
    nested = {**values, "styles": {"sad": values}}
    with pytest.raises(ValueError, match="too many"):
        SpeakerRecord.from_json(json.dumps({**values, "styles": {"happy": nested}}))


Clips = dict[str, tuple[int, str | None]]
"""The model of a voice: the seed and the transcript of each of its clips."""


@pytest.mark.thorough
def test_operations_at_random_never_give_a_wrong_clip(make_voices: Make, store: str) -> None:
    """1,000 of them on one server, or on the two servers of a fleet, against a model in this test."""
    servers = [make_voices() for _ in range(2 if store == "postgresql" else 1)]
    draw, model, bundles = random.Random(77), dict[str, Clips](), list[tuple[bytes, str, Clips]]()
    names, styles = ("Ada", "Bob", "Cyd"), ("neutral", "happy", "sad")
    spoken = 0
    for number in range(1000):
        server, name, style = draw.choice(servers), draw.choice(names), draw.choice(styles)
        what = draw.choice(
            ("voice", "style", "style", "replace", "unstyle", "speak", "speak", "speak", "move", "delete")
        )
        clips, seed, text = model.get(name), draw.randrange(12), draw.choice((None, "Some words.", "Others."))
        try:
            if what == "voice":
                upload(server, seed, text, name, replace=True, wait=draw.random() < 0.2)
                model[name] = {"neutral": (seed, text)}
            elif what in ("style", "replace"):
                upload(server, seed, text, name, style=style, replace=what == "replace", wait=draw.random() < 0.2)
                assert clips is not None and (what == "replace" or clips.get(style, (seed, text)) == (seed, text))
                clips[style] = seed, text
            elif what == "unstyle":
                server.call("delete", {"style": style}, name=name)
                assert clips is not None and style != "neutral"
                del clips[style]
            elif what == "speak":
                found = resolve(server, f"{style},neutral" if draw.random() < 0.5 else style, name)
                assert clips is not None
                spoken_style = found.result.get("style", "neutral")
                assert spoken_style == (style if style in clips else "neutral")
                assert found.artifacts == expected(server, *clips[spoken_style]), (number, name, style)
                spoken += 1
            elif what == "move" and (draw.random() < 0.5 or not bundles):
                bundle = server.call("export", {}, name=name).artifacts
                assert clips is not None
                bundles.append((bundle, name, dict(clips)))
            elif what == "move":
                bundle, name, taken = draw.choice(bundles[-5:])
                server.call("import", {"replace": True}, audio=bundle)
                model[name] = dict(taken)
            else:
                server.call("delete", {}, name=name)
                assert clips is not None
                del model[name]
        except SpeakerNotFound:
            assert clips is None, (number, what, name)
        except InvalidArgument:
            assert clips is not None and (style not in clips or what == "unstyle"), (number, what, name, style)
        except SpeakerExists:
            assert what == "style" and clips is not None and clips[style] != (seed, text)
        if number % 100 == 99 and store == "files":
            server.restart()
    assert spoken > 100
    for server in servers:
        listed = server.call("list").result["speakers"]
        assert {each["name"]: {"neutral", *each.get("styles", ())} for each in listed} == {
            name: set(clips) for name, clips in model.items()
        }
    for name in [*model]:
        servers[0].call("delete", {}, name=name)
    assert servers[-1].on_disk() == []
