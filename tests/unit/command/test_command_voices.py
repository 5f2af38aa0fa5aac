"""The commands that manage voices: what they send and print; against the protocol double."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import save
from voice_clone_client import embedding

from tests.support.doubles.command_line import LINE, VOICE, Run, answer
from tests.support.doubles.triton_double import Failure, Server


def test_upload(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    (tmp_path / "a.wav").write_bytes(b"clip")
    (tmp_path / "a.txt").write_text("Said in the clip.\n", encoding="utf-8")
    note = ["--consent", "signed", "--description", "calm"]
    assert run("upload", "Ada", tmp_path / "a.wav", "--text-file", tmp_path / "a.txt", *note) == 0
    inputs = triton.calls[-1][1]
    assert json.loads(inputs.pop("options")) == {"wait": True}
    assert inputs == {
        "operation": b"upload",
        "name": b"Ada",
        "audio": b"clip",
        "reference_text": b"Said in the clip.",
        "consent": b"signed",
        "description": b"calm",
    }
    assert capsys.readouterr() == (LINE, "")
    assert run("upload", "Ada", tmp_path / "a.wav", "--no-wait", "--replace", "--text", "Said.") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"replace": True}
    assert triton.calls[-1][1]["reference_text"] == b"Said."
    assert run("--model", "made_up", "upload", "Ada", tmp_path / "a.wav", "--no-wait") == 0
    assert triton.calls[-1][1]["model_type"] == b"made_up"


def hears(triton: Server, words: str) -> None:
    triton.answer = lambda inputs: (
        {"result": json.dumps(VOICE).encode()} if "operation" in inputs else {"text": words.encode()}
    )


def test_upload_with_the_words_that_the_server_hears(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hears(triton, "said in it")
    (tmp_path / "a.wav").write_bytes(b"clip")
    upload = ["upload", "Ada", tmp_path / "a.wav", "--transcribe"]
    assert run(*upload) == 0
    assert capsys.readouterr() == (LINE, "voice-clone: words: said in it\n")
    assert [model for model, _ in triton.calls] == ["transcriber", "speaker_cache"]
    assert triton.calls[-1][1]["reference_text"] == b"said in it" and triton.calls[-1][1]["audio"] == b"clip"
    hears(triton, "")
    assert run(*upload) == 1
    assert "give them with --text" in capsys.readouterr().err
    for wrong in (["--text", "mine"], ["--embedding", tmp_path / "a.npy"]):
        with pytest.raises(SystemExit):
            run("upload", "Ada", *([] if "--embedding" in wrong else [tmp_path / "a.wav"]), "--transcribe", *wrong)
    assert len(triton.calls) == 3


COMMAND = "import sys; from voice_clone_command import cli; sys.exit(cli.main(sys.argv[1:]))"
WITHOUT_READLINE = f"import sys; sys.modules['readline'] = None; {COMMAND}"


@pytest.mark.parametrize(
    ("code", "typed", "used"),
    [
        (COMMAND, b"\n", "said in it"),
        (COMMAND, b" too\n", "said in it too"),
        (COMMAND, b"\x15mine\n", "mine"),
        (COMMAND, b"\x15\n", None),
        (COMMAND, b"\x15\x04", None),
        (WITHOUT_READLINE, b"\n", "said in it"),
        (WITHOUT_READLINE, b"mine\n", "mine"),
        (WITHOUT_READLINE, b"\x04", None),
    ],
)
def test_the_words_are_corrected_on_a_terminal(
    code: str, typed: bytes, used: str | None, triton: Server, tmp_path: Path
) -> None:
    shown, texts = corrected(code, typed, "said in it", triton, tmp_path)
    assert (b"Words: said in it" if code == COMMAND else b"Words (said in it), or others: ") in shown
    assert b"Traceback" not in shown
    assert texts == ([] if used is None else [used]), shown


@pytest.mark.parametrize("code", [COMMAND, WITHOUT_READLINE])
def test_a_terminal_where_no_words_were_heard(code: str, triton: Server, tmp_path: Path) -> None:
    shown, texts = corrected(code, b"\n", "", triton, tmp_path)
    assert not texts and b"give them with --text" in shown


def corrected(code: str, typed: bytes, heard: str, triton: Server, tmp_path: Path) -> tuple[bytes, list[str]]:
    """What a terminal shows of an upload when this is typed, and the words of the voice if one is registered."""
    hears(triton, heard)
    (tmp_path / "a.wav").write_bytes(b"clip")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, "--url", triton.url, "upload", "Ada", str(tmp_path / "a.wav")]
    process = subprocess.Popen([*command, "--transcribe"], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"Words" not in shown or b":" not in shown or heard.encode() not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, typed)
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 1000):
            shown += piece
    os.close(ours)
    texts = [inputs["reference_text"].decode() for _, inputs in triton.calls if "operation" in inputs]
    assert process.wait() == (0 if texts else 1), shown
    return shown, texts


def test_upload_of_an_embedding(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    np.save(tmp_path / "a.npy", np.array([1.0, 2.0]))
    assert run("upload", "Ada", "--embedding", tmp_path / "a.npy") == 0
    assert triton.calls[-1][1]["speaker_embedding"].tolist() == [1.0, 2.0]
    capsys.readouterr()
    (tmp_path / "b.npy").write_text("no array")
    assert run("upload", "Ada", "--embedding", tmp_path / "b.npy") == 1
    assert "is no .npy file" in capsys.readouterr().err


def test_upload_that_cannot_be_prepared(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"model_type": "qwen3_tts", "mode": "icl", "state": "failed", "reason": "no encoder is loaded"}
    answer(triton, {**VOICE, "artifacts": [failed]})
    (tmp_path / "a.wav").write_bytes(b"clip")
    assert run("upload", "Ada", tmp_path / "a.wav") == 1
    out, err = capsys.readouterr()
    assert out.startswith("Ada\t") and "no encoder is loaded" in err


def test_upload_of_a_style_tells_of_its_clip(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [{"model_type": "qwen3_tts", "mode": "icl", "state": "failed", "reason": "no encoder is loaded"}]
    ready: list[dict[str, str]] = VOICE["artifacts"]  # type: ignore[assignment]
    noisy = {"duration": 4.0, "artifacts": ready, "warnings": [{"code": "noise", "message": "It is noisy."}]}
    (tmp_path / "a.wav").write_bytes(b"clip")
    upload = ["upload", "Ada", tmp_path / "a.wav", "--style"]
    answer(triton, {**VOICE, "artifacts": failed, "styles": {"happy": noisy}})
    assert run(*upload, "Happy") == 0, "neutral failed, and was not uploaded now"
    assert capsys.readouterr() == (
        "Ada\tgeneration 3\t4.0 s\tqwen3_tts icl ready\n",
        "voice-clone: warning: noise: It is noisy.\n",
    )
    answer(triton, {**VOICE, "styles": {"happy": {**noisy, "artifacts": failed}}})
    assert run(*upload, "happy") == 1
    assert "no encoder is loaded" in capsys.readouterr().err
    assert run(*upload, "neutral") == 0


def test_upload_that_a_family_does_not_support(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready = {"model_type": "qwen3_tts", "mode": "icl", "state": "ready"}
    refused = {"model_type": "made_up", "mode": "best", "state": "unsupported", "reason": "it needs `reference_text`"}
    other = {**refused, "model_type": "another", "reason": "it needs more"}
    upload = ["upload", "Ada", tmp_path / "a.wav"]
    (tmp_path / "a.wav").write_bytes(b"clip")
    answer(triton, {**VOICE, "artifacts": [ready, refused]})
    line = LINE.replace("\n", ", made_up best unsupported\n")
    said = "Ada is registered, but not for made_up: it needs --text"
    assert run(*upload) == 0
    assert capsys.readouterr() == (line, f"voice-clone: {said}\n")
    assert run("--model", "qwen3_tts", *upload) == 0
    assert capsys.readouterr() == (line, "")
    assert run("--model", "made_up", *upload) == 1
    assert capsys.readouterr() == (line, f"voice-clone: unsupported: {said}\n")
    answer(triton, {**VOICE, "artifacts": [refused, other]})
    assert run(*upload) == 1
    assert capsys.readouterr().err == f"voice-clone: unsupported: {said}; nor for another: it needs more\n"


def test_list_and_get(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [VOICE, {"name": "世界", "generation": 1}], "count": 2})
    assert run("list") == 0
    assert capsys.readouterr().out == LINE + "世界\tgeneration 1\tembedding\t\n"
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [VOICE, {"name": "世界", "generation": 1}]
    answer(triton, VOICE)
    assert run("get", "Ada") == 0
    assert json.loads(capsys.readouterr().out) == VOICE


def test_delete_prepare_stats(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, VOICE)
    assert run("delete", "Ada") == 0
    assert triton.calls[-1][1] == {"operation": b"delete", "name": b"Ada"}
    assert run("prepare", "Ada", "--force") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"force": True}
    assert run("prepare", "Ada", "--mode", "x_vector", "--wait-seconds", "2.5") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"mode": "x_vector", "timeout": 2.5}
    assert capsys.readouterr().out == "Ada\tdeleted\n" + LINE * 2
    answer(triton, {"hits": 1})
    assert run("stats") == 0
    assert json.loads(capsys.readouterr().out) == {
        "hits": 1,
        "model_types": ["qwen3_tts"],
        "instructions": {},
        "voiceless": [],
        "options": {},
        "languages": {},
        "max_characters": {},
        "synthesizers": {},
    }


def test_export_and_import(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1}, b"\0bundle\xff")
    bundle = tmp_path / "voices.bundle"
    assert run("export", "Ada", "-o", bundle) == 0
    assert bundle.read_bytes() == b"\0bundle\xff"
    assert json.loads(triton.calls[-1][1]["options"]).keys() == {"id"}
    assert capsys.readouterr().out == f"{bundle}\tAda\t8 bytes\n"
    assert run("export", "-o", bundle, "--no-audio", "--quiet") == 0
    given = json.loads(triton.calls[-1][1]["options"])
    assert given.keys() == {"id", "include_audio"} and given["include_audio"] is False
    assert run("import", bundle, "--reextract") == 0
    assert triton.calls[-1][1]["audio"] == b"\0bundle\xff"
    assert json.loads(triton.calls[-1][1]["options"]) == {"reextract": True}
    assert run("import", bundle, "--replace") == 0
    assert json.loads(triton.calls[-1][1]["options"]) == {"replace": True}
    assert capsys.readouterr().out == LINE * 2


def test_list_of_nothing(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [], "count": 0})
    assert run("list") == 0
    assert capsys.readouterr() == (
        "",
        "voice-clone: no voice is registered; voice-clone upload NAME FILE registers one\n",
    )
    assert run("list", "--json") == 0
    assert capsys.readouterr() == ("[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "said", "shown"),
    [
        (
            ["upload", "Ada", "a.wav"],
            "speaker_exists: the name 'Ada' is taken; the option `replace` replaces its voice",
            "the name 'Ada' is taken; --replace replaces its voice",
        ),
        (
            ["import", "a.wav"],
            "speaker_exists: the name 'Ada' is taken; the option `replace` replaces its voice",
            "the name 'Ada' is taken; --replace replaces its voice",
        ),
        (["upload", "Ada", "a.wav"], "invalid_argument: `reference_text` is blank", "--text is blank"),
        (["upload", "Ada", "a.wav"], "invalid_argument: the option `timeout` must be", "--wait-seconds must be"),
        (["import", "a.wav"], "invalid_argument: give the option `reextract`", "give --reextract"),
        (["prepare", "Ada"], "invalid_argument: the option `mode` is 'x'", "--mode is 'x'"),
    ],
)
def test_errors_speak_of_the_command_s_own_options(
    triton: Server,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
    shown: str,
) -> None:
    def fails(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"stats":
            return {"result": b"{}"}
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, said)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.wav").write_bytes(b"clip")
    triton.answer = fails
    assert run(*arguments) == 1
    assert capsys.readouterr().err == f"voice-clone: {said.partition(':')[0]}: {shown}\n"


def embeddings(triton: Server, **known: list[float]) -> None:
    """The double knows the speaker embeddings of these voices, and answers every upload."""

    def reply(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"resolve":
            values = np.array(known[inputs["name"].decode()], np.float32)
            return {"result": b"{}", "artifacts": save({"speaker_embedding": values})}
        return {"result": json.dumps(VOICE).encode(), "artifacts": b""}

    triton.answer = reply


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_embedding_extract(triton: Server, run: Run, tmp_path: Path, suffix: str) -> None:
    embeddings(triton, Ada=[1.0, 2.0])
    path = tmp_path / f"ada{suffix}"
    assert run("embedding", "extract", "Ada", "-o", path) == 0
    assert triton.calls[-1][1] == {"operation": b"resolve", "name": b"Ada", "model_type": b"qwen3_tts"}
    assert embedding.load(path).tolist() == [1.0, 2.0]
    assert run("upload", "Ben", "--embedding", path) == 0
    assert triton.calls[-1][1]["speaker_embedding"].tolist() == [1.0, 2.0]


def test_embedding_blend(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embeddings(triton, Ada=[1.0, 0.0])
    np.save(tmp_path / "b.npy", np.array([0.0, 1.0]))
    ends = ["Ada", tmp_path / "b.npy"]
    straight = ["--method", "linear", "--weight", "0.25", "-q", "-o", tmp_path / "out.safetensors"]
    assert run("embedding", "blend", *ends, *straight) == 0
    assert embedding.load(tmp_path / "out.safetensors").tolist() == [0.75, 0.25]
    assert run("embedding", "blend", *ends, "--register", "Between", "--consent", "signed") == 0
    inputs = triton.calls[-1][1]
    np.testing.assert_allclose(inputs["speaker_embedding"], np.sqrt([0.5, 0.5]), rtol=1e-6)
    assert (inputs["name"], inputs["consent"]) == (b"Between", b"signed")
    assert json.loads(inputs["options"]) == {"wait": True}
    assert inputs["description"].startswith(b"spherical blend of Ada and ")
    assert capsys.readouterr().out == LINE


def test_aliases(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": [{"name": "alloy", "voice": "Ada"}, {"name": "nova", "voice": "Ben"}]})
    assert run("aliases", "list") == 0
    assert capsys.readouterr() == ("alloy\tAda\nnova\tBen\n", "")
    assert run("aliases", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"alloy": "Ada", "nova": "Ben"}
    assert json.loads(triton.calls[-1][1]["options"]) == {"kind": "alias"}
    assert run("aliases", "set", "alloy=Ada", "my voice = Ben") == 0
    sent = [(inputs["operation"], inputs["name"], json.loads(inputs["options"])) for _, inputs in triton.calls[-2:]]
    assert sent == [(b"set_alias", b"alloy", {"voice": "Ada"}), (b"set_alias", b"my voice", {"voice": "Ben"})]
    assert capsys.readouterr().out == "alloy\tAda\nmy voice\tBen\n"
    assert run("aliases", "remove", "alloy") == 0
    inputs = triton.calls[-1][1]
    assert (inputs["operation"], inputs["name"], inputs["options"]) == (b"delete", b"alloy", b'{"kind": "alias"}')


@pytest.mark.parametrize("text", ["alloy", "=Ada", "alloy=", "a=b=c"])
def test_a_wrong_alias(triton: Server, run: Run, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        run("aliases", "set", "nova=Ben", text)
    assert "is not ALIAS=VOICE" in capsys.readouterr().err and not triton.calls


def test_no_alias(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answer(triton, {"speakers": []})
    assert run("aliases", "list") == 0
    out, err = capsys.readouterr()
    assert not out and "voice-clone aliases set" in err
