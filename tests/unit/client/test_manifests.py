"""Signed manifests in files: what they say, what breaks them, and what cannot be signed."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile
from voice_clone_client import InvalidArgument, Unsupported
from voice_clone_client.wav import WavWriter
from voice_clone_command import cli
from voice_clone_provenance.manifests import TYPES, FileSigner, read
from voice_clone_provenance.statements import GENERATOR, Statement

from tests.support.doubles.command_line import Run, answer, in_process
from tests.support.doubles.triton_double import Failure, Server, chunk, speech
from tests.support.official.certificates import ORGANISATION, SigningFiles, signing_files

DIGEST = 32 * "c5"
UNMARKED = {"mark": None, "confidence": 0.01, "speed": 1.0, "start": 0.0, "seconds": 0.8}
SOUND = (0.3 * np.sin(np.arange(12_000) / 9)).astype(np.float32)


@pytest.fixture
def run(triton: Server) -> Run:
    return in_process(triton)


def sound_file(form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SOUND, 24_000, format=form)
    return file.getvalue()


@pytest.mark.parametrize(("form", "suffix"), [("WAV", ".wav"), ("MP3", ".mp3"), ("FLAC", ".flac")])
def test_a_signed_file(signer: FileSigner, form: str, suffix: str) -> None:
    plain = sound_file(form)
    signed = signer.sign(plain, TYPES[suffix], "some_family")
    assert read(plain) is None
    found = read(signed)
    assert found is not None and found.valid and not found.faults
    assert (found.signer, found.synthetic, found.family) == (ORGANISATION, True, "some_family")
    assert found.generator is not None and found.generator.startswith("voice-clone ")
    assert found.time is not None
    assert abs(datetime.fromisoformat(found.time) - datetime.now(timezone.utc)) < timedelta(minutes=5)
    heard, rate = soundfile.read(io.BytesIO(signed), dtype="float32")
    np.testing.assert_array_equal(heard, soundfile.read(io.BytesIO(plain), dtype="float32")[0])
    assert rate == 24_000
    changed = bytearray(signed)
    changed[len(changed) // 2 if suffix == ".wav" else -9] ^= 1
    broken = read(bytes(changed))
    assert broken is not None and not broken.valid and broken.faults


def test_what_is_not_known_is_not_there(signer: FileSigner) -> None:
    found = read(signer.sign(sound_file("WAV"), "audio/wav"))
    assert found is not None and found.valid and found.family is None
    assert found.voice_digest is None and found.consent is None


def test_the_voice_and_the_consent(signer: FileSigner) -> None:
    found = read(signer.sign(sound_file("WAV"), "audio/wav", voice_digest=DIGEST, consent="form 12"))
    assert found is not None and found.valid and (found.voice_digest, found.consent) == (DIGEST, "form 12")


def test_what_cannot_be_signed(signer: FileSigner) -> None:
    with pytest.raises(InvalidArgument, match=r"audio/ogg files carry no manifest; \.wav, \.mp3"):
        signer.sign(sound_file("OGG"), "audio/ogg")
    with pytest.raises(InvalidArgument, match="the audio/wav file cannot be signed"):
        signer.sign(b"no audio", "audio/wav")


def test_other_files_have_none() -> None:
    for data in (b"", b"no audio", sound_file("OGG"), sound_file("WAV")[:50]):
        assert read(data) is None


def test_files_that_do_not_fit(files: SigningFiles, tmp_path: Path) -> None:
    other = signing_files(tmp_path)
    with pytest.raises(InvalidArgument, match="cannot sign files: "):
        FileSigner(files.certificates, other.key)
    with pytest.raises(InvalidArgument, match="cannot sign files: "):
        FileSigner(files.key, files.certificates)
    with pytest.raises(FileNotFoundError):
        FileSigner(files.certificates, tmp_path / "absent.pem")
    with pytest.raises(InvalidArgument, match="es256"):
        FileSigner(files.certificates, files.key, "rsa")


def test_without_the_package(files: SigningFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "c2pa", None)
    with pytest.raises(Unsupported, match="pip install c2pa-python"):
        FileSigner(files.certificates, files.key)
    with pytest.raises(Unsupported, match="pip install c2pa-python"):
        read(b"RIFF")


def test_speak_and_detect(
    files: SigningFiles, triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.play = lambda context: iter(speech(10))
    out, plain = tmp_path / "out.wav", tmp_path / "plain.wav"
    signing = ("--sign-key", str(files.key), "--sign-certificates", str(files.certificates))
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, *signing) == 0
    assert run("speak", "Hi.", "--voice", "Ada", "-o", plain) == 0
    found = read(out.read_bytes())
    assert found is not None and found.valid and found.family == "qwen3_tts"
    np.testing.assert_array_equal(soundfile.read(out)[0], soundfile.read(plain)[0])
    answer(triton, UNMARKED)
    capsys.readouterr()
    assert run("detect", str(out)) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "no mark\tconfidence 0.01"
    assert shown[1].startswith(f"a valid manifest, signed by {ORGANISATION}\tvoice-clone ")
    assert shown[1].endswith("\tmade by a model")
    assert shown[2] == f"a tag says: made by a model\t{GENERATOR}\tqwen3_tts"
    assert run("detect", "--json", str(out)) == run("detect", "--json", str(plain)) == 0
    first, second = capsys.readouterr().out.replace("}\n{", "}\n\0{").split("\0")
    assert json.loads(first)["manifest"]["valid"] is True and json.loads(second)["manifest"] is None
    assert json.loads(first)["statement"] == asdict(Statement("qwen3_tts"))
    assert json.loads(second)["statement"] is None
    data = bytearray(out.read_bytes())
    data[1000] ^= 1  # a sample
    out.write_bytes(data)
    assert run("detect", str(out)) == 0
    assert "a manifest that does not verify\tassertion.dataHash.mismatch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "now", "consent"),
    [
        ([], DIGEST, None),
        (["--sign-consent"], DIGEST, "form 12"),
        (["--sign-consent"], 32 * "00", None),  # replaced meanwhile
        (["--sign-consent"], None, None),  # deleted meanwhile
    ],
)
def test_the_record_of_a_speech(
    option: list[str],
    now: str | None,
    consent: str | None,
    files: SigningFiles,
    triton: Server,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs.get("operation") != b"get":
            return {"result": json.dumps(UNMARKED).encode()}
        if now is None:
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice")
        return {"result": json.dumps({"name": "Ada", "digest": now, "consent": "form 12"}).encode()}

    triton.play = lambda context: iter([chunk(0, final=True, info={"voice": "Ada", "voice_digest": DIGEST})])
    triton.answer = told
    out = tmp_path / "out.wav"
    signing = ("--sign-key", str(files.key), "--sign-certificates", str(files.certificates))
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, *signing, *option) == 0
    found = read(out.read_bytes())
    assert found is not None and found.valid and (found.voice_digest, found.consent) == (DIGEST, consent)
    assert b"Ada" not in out.read_bytes()
    assert run("detect", str(out)) == 0
    shown = capsys.readouterr().out
    assert f"\tvoice {DIGEST}\t" in shown and ("\tconsent form 12\t" in shown) == (consent is not None)


def test_the_tag_of_a_file(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, UNMARKED)
    said = Statement("some_family", "marked", "voice-clone 1.2.3")
    path = tmp_path / "said.wav"
    with path.open("wb") as file, WavWriter(file, 24_000, str(said)) as wav:
        wav.write(SOUND)
    assert run("detect", path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "no manifest",
        "a tag says: made by a model\tvoice-clone 1.2.3\tsome_family\tmarked",
    ]
    assert run("detect", "--json", path) == 0
    assert json.loads(capsys.readouterr().out)["statement"] == asdict(said)


CAMERA = "http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture"
ODD: list[Any] = [[], "text", 7, None, {"family": {}, "time": True, "consent": 7, "voice_digest": None}]


@pytest.mark.parametrize("record", ODD)
def test_manifests_of_strangers(files: SigningFiles, record: Any) -> None:
    found = read(signed_by_a_stranger(files, record))
    assert found is not None and found.valid and not found.synthetic and found.generator == "a stranger"
    assert (found.family, found.time, found.consent, found.voice_digest) == (None, None, None, None)


def test_the_terminal_obeys_no_manifest(
    files: SigningFiles, triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(triton, UNMARKED)
    path = tmp_path / "odd.wav"
    path.write_bytes(signed_by_a_stranger(files, {"consent": "a\x1b[2Jb\nc", "family": "\x9b"}))
    assert run("detect", path) == 0
    assert "consent a?[2Jb?c" in capsys.readouterr().out
    assert run("detect", "--json", path) == 0
    assert "\x1b" not in capsys.readouterr().out


def signed_by_a_stranger(files: SigningFiles, record: Any) -> bytes:
    import c2pa

    pair = c2pa.C2paSignerInfo(b"es256", files.certificates.read_bytes(), files.key.read_bytes(), None)
    claim = {
        "claim_generator_info": [{"name": "a stranger"}],
        "assertions": [
            {
                "label": "c2pa.actions.v2",
                "data": {"actions": [{"action": "c2pa.created", "digitalSourceType": CAMERA}]},
            },
            {"label": "com.voice-clone.speech", "data": record},
        ],
    }
    signed = io.BytesIO()
    with c2pa.Builder(json.dumps(claim)) as builder:
        builder.sign(c2pa.Signer.from_info(pair), "audio/wav", io.BytesIO(sound_file("WAV")), signed)
    return signed.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "out.wav", "--sign-consent"], "--sign-consent belongs to --sign-key and --sign-certificates"),
        (["-o", "out.wav", "--sign-key", "key"], "--sign-key and --sign-certificates belong together"),
        (["-o", "out.opus", "--sign-key", "k", "--sign-certificates", "c"], "only files can be signed that end in"),
        (["--play", "--sign-key", "k", "--sign-certificates", "c"], "only files can be signed that end in"),
    ],
)
def test_wrong_usage(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["speak", "Hi.", "--voice", "Ada", *options])
    assert caught.value.code == 2 and message in capsys.readouterr().err
