"""Wrong names of voices, models, commands, options and servers: what may have been meant."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
import pytest
import voice_clone_client as vc
from voice_clone_command import cli
from voice_clone_program.names import nearest

from tests.support.doubles.command_line import LINE, VOICE, Run, answer
from tests.support.doubles.triton_double import Failure, Server


def test_the_nearest_names() -> None:
    assert nearest("ADDA", ["Ben", "Ada", "Adam"]) == ["Ada", "Adam"]
    assert nearest("Łodź", ["Łódź", "Ben"]) == ["Łódź"] and nearest("Zoë", ["Ada"]) == []


@pytest.mark.parametrize("words", [["speak", "Hi.", "-o", "/dev/null", "--voice"], ["delete"], ["show"]])
def test_an_unknown_voice(triton: Server, run: Run, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    def unknown(*_: Any) -> Any:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no such voice")

    answer(triton, {"speakers": [VOICE], "count": 1, "presets": []})
    listed = triton.answer
    triton.answer = lambda inputs: listed(inputs) if inputs["operation"] in (b"list", b"presets") else unknown()
    triton.play = unknown
    assert run(*words, "Adda") == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "did you mean Ada?" in said and "voice-clone list" in said


def test_an_unknown_model(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def unknown(*_: Any) -> Any:
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "Request for unknown model: 'foo' is not found")

    triton.play, triton.model_types = unknown, ["made_up", "qwen3_tts"]
    assert run("speak", "Hi.", "--voice", "Ada", "--model", "foo", "-o", "/dev/null") == 1
    said = capsys.readouterr().err
    assert "no model foo" in said and "made_up, qwen3_tts" in said


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lst"], "list"),
        (["embedding", "extrct"], "extract"),
        (["speak", "Hi.", "--voise", "Ada"], "--voice"),
        (["list", "--jsn"], "--json"),
        (["speak"], "text"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and meant in err and "--help" in err


def test_a_list_has_titles_on_a_terminal(
    triton: Server, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1})
    assert run("list") == 0 and capsys.readouterr().out == LINE
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run("list") == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[0] == "NAME" and titles.index("GENERATION") == row.index("generation 3")


def test_the_client_takes_the_server_of_the_environment(triton: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICE_CLONE_SERVER", triton.url)
    monkeypatch.setenv("VOICE_CLONE_TOKEN", "of-the-environment")
    for token in (None, "given", ""):
        with vc.Client(token=token) as client:
            client.models()
    assert [sent.get("x-voice-token") for sent in triton.metadata] == ["of-the-environment", "given", None]
    monkeypatch.setenv("VOICE_CLONE_PROXY", "no proxy")
    with pytest.raises(vc.InvalidArgument, match="proxy"):
        vc.AsyncClient()
    vc.Client(proxy="").close()


def test_a_port_that_speaks_http(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert cli.main(["--url", f"127.0.0.1:{server.server_port}", "--timeout", "5", "models"]) == 1
        server.shutdown()
    assert "speaks HTTP and not gRPC" in capsys.readouterr().err
