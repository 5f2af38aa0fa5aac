"""`voice-clone mcp`, by the client of the official SDK: over stdin and stdout, against the double of Triton."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import wave
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.types import AudioContent, CallToolResult, TextContent
from voice_clone_client import pcm16
from voice_clone_command import cli, mcp_server
from voice_clone_provenance.statements import Statement, find

from tests.support.doubles.command_line import in_process
from tests.support.doubles.triton_double import RATE, Failure, Server, chunk, endless, listening, samples_of
from tests.support.waiting import WAIT, until

pytestmark = pytest.mark.thorough

VOICES = [
    {"name": "Ada", "description": "calm", "artifacts": [{"model_type": "qwen3_tts", "mode": "icl", "state": "ready"}]},
    {"name": "Ben", "artifacts": [{"model_type": "qwen3_tts", "mode": "icl", "state": "failed"}]},
]
PRESETS = [{"name": "vivian", "model_type": "qwen3_tts", "registered": False}]
PCM = b"".join(pcm16(samples_of(index, 1920)) for index in range(3))
Session = Callable[[Client], Awaitable[Any]]


@pytest.fixture(scope="module")
def double() -> Iterator[Server]:
    """One for all, for a server that connects to it takes seconds to start."""
    with listening() as server:
        yield server


@pytest.fixture
def triton(double: Server) -> Server:
    """The double as it is when it is new."""
    double.reset()
    return double


def command(triton: Server, *options: object) -> list[str]:
    return [sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, "mcp", *map(str, options)]


class Running:
    """A server in a process of its own, and a session with it."""

    def __init__(self, portal: BlockingPortal, client: Client, folder: Path) -> None:
        self._portal, self._client, self.folder = portal, client, folder

    def session(self, steps: Session) -> Any:
        """What these steps return."""
        return self._portal.call(steps, self._client)

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """The result of one call."""
        result: CallToolResult = self.session(lambda client: client.call_tool(tool, arguments))
        return result


@contextmanager
def running(triton: Server, folder: Path, *options: object) -> Iterator[Running]:
    program, *arguments = command(triton, *options)
    client = Client(StdioServerParameters(command=program, args=arguments, env=dict(os.environ)))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
        yield Running(portal, client, folder)


@pytest.fixture(scope="module")
def server(double: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that may make files."""
    folder = tmp_path_factory.mktemp("mcp") / "inner"
    folder.mkdir()
    with running(double, folder, "--folder", folder) as server:
        yield server


@pytest.fixture
def folder(server: Running) -> Iterator[Path]:
    """Its folder, empty."""
    for path in server.folder.iterdir():
        path.unlink()
    yield server.folder
    assert list(server.folder.parent.iterdir()) == [server.folder], "a file beside the folder"


def text_of(result: CallToolResult) -> str:
    [text] = [content.text for content in result.content if isinstance(content, TextContent)]
    return text


def pcm_of(wav: bytes) -> bytes:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return bytes(file.readframes(file.getnframes()))


def test_the_tools(triton: Server, server: Running, folder: Path) -> None:
    async def names(client: Client) -> dict[str, set[str]]:
        tools = (await client.list_tools()).tools
        assert all(tool.description for tool in tools)
        properties = {tool.name: tool.input_schema["properties"] for tool in tools}
        assert all(value["description"] for each in properties.values() for value in each.values())
        return {name: set(each) for name, each in properties.items()}

    spoken = {"text", "voice", "language", "seed"}
    without = {"list_voices": {"after"}, "speak": spoken}
    assert server.session(names) == {**without, "speak_to_file": spoken | {"file"}}
    with running(triton, folder) as other:
        assert other.session(names) == without


def test_the_voices(triton: Server, server: Running) -> None:
    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"presets":
            return {"result": json.dumps({"presets": PRESETS}).encode()}
        asked = json.loads(inputs["options"]) if "options" in inputs else {}
        return {"result": json.dumps({"speakers": [] if asked.get("after") else VOICES}).encode()}

    triton.answer = answer
    listed = server.call("list_voices").structured_content
    assert listed == {
        "result": [
            {"name": "vivian", "description": None, "models": ["qwen3_tts"], "preset": True},
            {"name": "Ada", "description": "calm", "models": ["qwen3_tts"], "preset": False},
            {"name": "Ben", "description": None, "models": [], "preset": False},
        ]
    }
    assert server.call("list_voices", after="Ben").structured_content == {"result": []}


def test_ssml_is_spoken_with_its_pauses_and_voices(triton: Server, server: Running) -> None:
    text = "<speak>One.<break time='500ms'/><voice name='Ben'>Two.</voice></speak>"
    result = server.call("speak", text=text, voice="Ada", seed=5)
    [audio] = [content for content in result.content if isinstance(content, AudioContent)]
    assert pcm_of(base64.b64decode(audio.data)) == PCM + bytes(2 * (RATE // 2)) + PCM
    said = [(inputs["voice"], inputs["text"]) for _, inputs in triton.speeches]
    assert said == [(b"Ada", b"One."), (b"Ben", b"Two.")]
    wrong = server.call("speak", text="<speak>One.", voice="Ada")
    assert wrong.is_error and "invalid_argument: " in text_of(wrong) and "line 1" in text_of(wrong)


def test_an_unknown_language_of_markup_is_spoken(triton: Server, server: Running) -> None:
    text = "<speak>One. <lang xml:lang='tlh'>Two.</lang></speak>"
    assert not server.call("speak", text=text, voice="Ada", language="en").is_error
    assert [inputs["language"] for _, inputs in triton.speeches] == [b"en", b"en"]


def test_a_speech_is_audio_in_the_answer(triton: Server, server: Running) -> None:
    result = server.call("speak", text="Hi.", voice="Ada", language="en", seed=5)
    assert not result.is_error
    [audio] = [content for content in result.content if isinstance(content, AudioContent)]
    assert audio.mime_type == "audio/wav" and pcm_of(base64.b64decode(audio.data)) == PCM
    assert text_of(result) == "0.2 s of speech in the voice Ada"
    [(model, inputs)] = triton.speeches
    assert model == "qwen3_tts"
    assert {name: value if isinstance(value, bytes) else value.item() for name, value in inputs.items()} == {
        "text": b"Hi.",
        "voice": b"Ada",
        "language": b"en",
        "seed": 5,
    }


@pytest.mark.parametrize("name", ["hello.wav", "hello.flac", "héllo wörld.wav"])
def test_a_speech_in_a_file(triton: Server, server: Running, folder: Path, name: str) -> None:
    result = server.call("speak_to_file", text="Hi.", file=name, voice="Ada")
    assert text_of(result) == f"{folder / name}: 0.2 s of speech in the voice Ada" and not result.is_error
    written = (folder / name).read_bytes()
    assert written[:4] == b"fLaC" if name.endswith("flac") else pcm_of(written) == PCM


def test_a_marked_speech_says_so_in_its_tag(triton: Server, server: Running, folder: Path) -> None:
    triton.play = lambda context: iter([chunk(0, final=True, info={"mark": "marked"})])
    said = Statement("qwen3_tts", "marked")
    server.call("speak_to_file", text="Hi.", file="hello.wav", voice="Ada")
    assert find((folder / "hello.wav").read_bytes()) == said
    result = server.call("speak", text="Hi.", voice="Ada")
    [audio] = [content for content in result.content if isinstance(content, AudioContent)]
    assert find(base64.b64decode(audio.data)) == said


@pytest.mark.parametrize(
    "name", ["../hello.wav", "/tmp/hello.wav", "a/hello.wav", "", ".", "..", ".hidden.wav", "a\0.wav", "a\n.wav"]
)
def test_a_file_is_in_the_folder_or_nowhere(triton: Server, server: Running, folder: Path, name: str) -> None:
    result = server.call("speak_to_file", text="Hi.", file=name)
    assert result.is_error and "is no plain name of a file" in text_of(result)
    assert not list(folder.iterdir()) and not triton.speeches


def test_no_file_is_replaced(triton: Server, server: Running, folder: Path) -> None:
    (folder / "kept.wav").write_bytes(b"kept")
    (folder / "link.wav").symlink_to(folder / "elsewhere.wav")
    for name in ("kept.wav", "link.wav"):
        result = server.call("speak_to_file", text="Hi.", file=name)
        assert result.is_error and "exists; choose another name" in text_of(result)
    assert (folder / "kept.wav").read_bytes() == b"kept" and not (folder / "elsewhere.wav").exists()


def test_a_format_that_cannot_be_written_is_refused(triton: Server, server: Running, folder: Path) -> None:
    result = server.call("speak_to_file", text="Hi.", file="hello.xyz")
    assert result.is_error and ".xyz" in text_of(result) and not list(folder.iterdir())


def test_a_speech_that_fails_leaves_no_file(triton: Server, server: Running, folder: Path) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        raise Failure(grpc.StatusCode.INTERNAL, "internal: it broke")

    triton.play = play
    result = server.call("speak_to_file", text="Hi.", file="hello.wav")
    assert result.is_error and "internal: it broke" in text_of(result) and not list(folder.iterdir())


def test_an_error_of_the_server_is_told_by_its_slug(triton: Server, server: Running) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice 'Nobody' is registered")

    triton.play = play
    result = server.call("speak", text="Hi.", voice="Nobody")
    assert result.is_error and "speaker_not_found: no voice 'Nobody' is registered" in text_of(result)


def test_names_that_the_server_guesses_are_said_once(triton: Server, server: Running) -> None:
    def unknown(inputs: dict[str, Any]) -> Any:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice 'Adda'; did you mean 'Ada'?")

    triton.play = unknown
    said = text_of(server.call("speak", text="Hi.", voice="Adda"))
    assert said.count("did you mean") == 1 and said.endswith("'Ada'? list_voices has all")


def test_an_empty_voice_and_language_are_none(triton: Server, server: Running) -> None:
    server.call("speak", text="Hi.", voice="", language="")
    assert {"voice", "language"}.isdisjoint(triton.speeches[-1][1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "text"),
        ({"text": 5}, "text"),
        ({"text": "Hi.", "seed": -1}, "seed"),
        ({"text": "Hi.", "seed": 2**64}, "seed"),
        ({"text": "Hi.", "seed": "five"}, "seed"),
        ({"text": "Hi.", "voice": ["Ada"]}, "voice"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    triton: Server, server: Running, arguments: dict[str, Any], said: str
) -> None:
    result = server.call("speak", **arguments)
    assert result.is_error and f"\n{said}\n" in text_of(result) and not triton.speeches


def test_the_server_goes_on_after_errors(triton: Server, server: Running) -> None:
    async def session(client: Client) -> list[bool]:
        calls: list[tuple[str, dict[str, Any]]]
        calls = [("speak", {"text": 5}), ("sing", {}), ("speak", {"text": "Hi.", "voice": "Ada"})]
        return [(await client.call_tool(*each)).is_error for each in calls]

    assert server.session(session) == [True, True, False]


def test_a_long_text_is_spoken_sentence_by_sentence(triton: Server, server: Running, folder: Path) -> None:
    sentences = [f"This is the sentence number {index}, and no other." for index in range(100)]
    result = server.call("speak_to_file", text=" ".join(sentences), voice="Ada", file="long.wav")
    assert not result.is_error and pcm_of((folder / "long.wav").read_bytes()) == 100 * PCM
    assert [inputs["text"].decode() for _, inputs in triton.speeches] == sentences


def test_a_missed_end_is_tried_again(triton: Server, server: Running) -> None:
    def play(context: Any) -> Iterator[Any]:
        reason = "runaway" if len(triton.speeches) < 3 else "stop"
        return iter([chunk(0), chunk(1, final=True, info={"finish_reason": reason})])

    triton.play = play
    assert "not whole" not in text_of(server.call("speak", text="Hi.", voice="Ada"))
    assert len(triton.speeches) == 3


def test_a_missed_end_is_said(triton: Server, server: Running) -> None:
    triton.play = lambda context: iter([chunk(0), chunk(1, final=True, info={"finish_reason": "runaway"})])
    result = server.call("speak", text="Hi.", voice="Ada")
    assert not result.is_error and "the speech is not whole" in text_of(result)


def test_a_speech_that_is_too_long_for_an_answer_is_stopped(triton: Server, server: Running) -> None:
    triton.play = endless(count=5 * RATE)
    result = server.call("speak", text="Hi.", voice="Ada")
    assert result.is_error and f"longer than {mcp_server.INLINE_SECONDS:g} s" in text_of(result)
    assert triton.left.acquire(timeout=WAIT), "the server's work was not stopped"


def test_a_cancelled_call_stops_the_speech(triton: Server, server: Running, folder: Path) -> None:
    triton.play = endless(0.05)

    async def session(client: Client) -> bool:
        async with anyio.create_task_group() as calling:
            calling.start_soon(client.call_tool, "speak_to_file", {"text": "Hi.", "file": "hello.wav"})
            await anyio.to_thread.run_sync(lambda: until(lambda: list(folder.iterdir()) and triton.speeches))
            calling.cancel_scope.cancel()
        return await anyio.to_thread.run_sync(lambda: triton.left.acquire(timeout=WAIT))

    assert server.session(session), "the server's work was not stopped"
    until(lambda: not list(folder.iterdir()))


def test_it_ends_with_its_input(triton: Server) -> None:
    done = subprocess.run(command(triton), input=b"", capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_no_message_does_not_end_it(triton: Server) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}).encode()
    given = b"no JSON\n[]\n\xff\n" + hello + b"\n"
    done = subprocess.run(command(triton), input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    [hello_back] = [answer["result"] for answer in answers if answer.get("id") == 1]
    assert hello_back["serverInfo"]["name"] == "voice-clone" and "tools" in hello_back["capabilities"]


def test_a_folder_that_is_not_there_is_wrong_usage(
    triton: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        in_process(triton)("mcp", "--folder", tmp_path / "none")
    assert ended.value.code == 2 and "is no folder" in capsys.readouterr().err


def test_without_the_sdk_it_says_what_to_install(
    triton: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "voice_clone_command.mcp_server", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--url", triton.url, "mcp"])
    assert ended.value.code == 2 and "./client[mcp]" in capsys.readouterr().err
