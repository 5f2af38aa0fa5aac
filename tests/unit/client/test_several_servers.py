"""Clients of two servers, against doubles: homes, one more try before the first chunk, and what is never repeated."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import voice_clone_client as vc
from tritonclient.grpc import service_pb2
from voice_clone_client.callers import Urgency, on_behalf_of
from voice_clone_client.servers import addresses, servers

from tests.support.doubles.triton_double import Failure, Server, chunk, listening, speech
from tests.support.waiting import WAIT, until

STOPPING = "[StatusCode.UNAVAILABLE] Server is stopping, request for model 'qwen3_tts' could not be added"


@pytest.fixture
def pair() -> Iterator[list[Server]]:
    with listening() as one, listening() as other:
        for each in (one, other):
            each.answer = lambda inputs: {"result": b'{"name": "Ada", "speakers": []}'}
        yield [one, other]


class Both:
    """A client of either kind, with the calls of the synchronous one."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.client: Any = (vc.Client if self._loop is None else vc.AsyncClient)(url, **options)

    def run(self, work: Callable[[Any], Any]) -> Any:
        """The result of `work(client)`, whether it is a coroutine or not."""

        async def awaited() -> Any:
            result = work(self.client)
            return await asyncio.wait_for(result, WAIT) if inspect.isawaitable(result) else result

        return work(self.client) if self._loop is None else self._loop.run_until_complete(awaited())

    def read(self, voice: str = "Ada", **options: Any) -> Any:
        return self.run(lambda client: client.speak("Hi.", voice=voice, **options).read())

    def close(self) -> None:
        self.run(lambda client: client.close())
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Both]]:
    made: list[Both] = []

    def connect(*servers: Server | str, **options: Any) -> Both:
        url = ",".join(each if isinstance(each, str) else each.url for each in servers)
        made.append(Both(request.param, url, **{"model": "qwen3_tts", **options}))
        return made[-1]

    yield connect
    for client in made:
        client.close()


Connect = Callable[..., Both]


def spoken(pair: list[Server]) -> list[int]:
    """How many speeches each server was asked for."""
    return [len(server.speeches) for server in pair]


def home_first(pair: list[Server], client: Both) -> tuple[Server, Server]:
    """The server that speaks the voice, and the other one."""
    client.read()
    home, other = sorted(pair, key=lambda server: -len(server.speeches))
    assert (len(home.speeches), len(other.speeches)) == (1, 0)
    return home, other


def refusing(code: grpc.StatusCode, details: str) -> Callable[[Any], Iterator[Any]]:
    def play(context: Any) -> Iterator[Any]:
        raise Failure(code, details)
        yield

    return play


def answering(text: str) -> Callable[[Any], Iterator[Any]]:
    return lambda context: iter([service_pb2.ModelStreamInferResponse(error_message=text)])


def silent(context: grpc.ServicerContext) -> Iterator[Any]:
    while context.is_active():
        time.sleep(0.01)
    yield from ()


def test_a_voice_has_one_home_and_its_calls_have_one_header(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    for name in ("Ada", "ada", "ADA"):
        client.read(name)
        client.run(lambda client, name=name: client.get(name))
    assert sorted(len(server.calls) for server in pair) == [0, 6]
    [headers] = [server.metadata for server in pair if server.calls]
    assert len({each["x-voice-affinity"] for each in headers}) == 1
    for number in range(20):
        client.read(f"voice {number}")
    assert min(spoken(pair)) > 3
    client.run(lambda client: client.list())
    assert sum("x-voice-affinity" not in sent for server in pair for sent in server.metadata) == 1


@pytest.mark.parametrize(
    "play",
    [
        refusing(grpc.StatusCode.UNAVAILABLE, STOPPING),
        refusing(grpc.StatusCode.CANCELLED, ""),
        refusing(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        answering("overloaded: the talker has no room"),
        answering("Request for unknown model: 'qwen3_tts' has no available versions"),
    ],
)
def test_what_has_not_begun_is_spoken_by_another_server(
    pair: list[Server], connect: Connect, play: Callable[[Any], Iterator[Any]]
) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play = play
    samples, rate = client.read(deadline=20.0)
    assert (len(samples), rate) == (3 * 1920, 24000)
    assert spoken([home, other]) == [2, 1]


def test_a_server_that_failed_is_left_out_until_it_is_ready(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play, home.ready = refusing(grpc.StatusCode.UNAVAILABLE, STOPPING), False
    for _ in range(4):
        client.read()
    assert spoken([home, other]) == [2, 4], "it is tried once"
    home.play, home.ready = (lambda context: iter(speech(3))), True

    def back() -> bool:
        client.read()
        client.run(lambda client: asyncio.sleep(0.05) if isinstance(client, vc.AsyncClient) else None)
        return len(home.speeches) > 2

    until(back)


def test_if_the_other_one_fails_too_its_error_is_reported(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play = refusing(grpc.StatusCode.UNAVAILABLE, STOPPING)
    other.play = answering("overloaded: no room here, either")
    with pytest.raises(vc.Overloaded, match="either"):
        client.read()
    assert spoken([home, other]) == [2, 1]


@pytest.mark.parametrize("text", ["invalid_argument: no text", "speaker_not_found: nobody", "internal: sorry"])
def test_other_errors_are_final(pair: list[Server], connect: Connect, text: str) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play = answering(text)
    with pytest.raises(vc.VoiceCloneError):
        client.read()
    assert spoken([home, other]) == [2, 0]


def test_what_has_begun_is_not_spoken_again(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.ready = False  # asked half a second later, it would be the home again

    def breaks_off(context: Any) -> Iterator[Any]:
        yield chunk(0)
        raise Failure(grpc.StatusCode.UNAVAILABLE, STOPPING)

    home.play = breaks_off
    with pytest.raises(vc.ConnectionFailed):
        client.read()
    assert spoken([home, other]) == [2, 0]
    client.read()
    assert spoken([home, other]) == [2, 1], "the next speech leaves it out"


def test_one_server_alone_is_asked_once(pair: list[Server], connect: Connect) -> None:
    client = connect(pair[0])
    pair[0].play = refusing(grpc.StatusCode.UNAVAILABLE, STOPPING)
    with pytest.raises(vc.ConnectionFailed):
        client.read()
    assert len(pair[0].speeches) == 1


def test_a_server_that_is_not_there_costs_no_call(pair: list[Server], connect: Connect) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # so no other process listens there
        client = connect(f"127.0.0.1:{closed.getsockname()[1]}", pair[0], model=None)
        for number in range(8):
            client.read(f"voice {number}")
            client.run(lambda client: client.list())
    assert len(pair[0].speeches) == 8


@pytest.mark.parametrize("details", ["Socket closed", STOPPING])
def test_a_change_is_made_at_another_server_only_if_it_was_refused(
    pair: list[Server], connect: Connect, details: str
) -> None:
    client = connect(*pair)
    record = json.dumps({"name": "Ada"}).encode()
    asked: list[dict[str, Any]] = []

    def lost(inputs: dict[str, Any]) -> dict[str, bytes]:
        asked.append(inputs)
        if len(asked) == 1:
            raise Failure(grpc.StatusCode.UNAVAILABLE, details)
        return {"result": record}

    pair[0].answer = pair[1].answer = lost
    change = contextlib.nullcontext() if details == STOPPING else pytest.raises(vc.ConnectionFailed)
    with change:
        client.run(lambda client: client.upload("Ada", b"RIFF"))
    assert len(asked) == (2 if details == STOPPING else 1)
    del asked[:]
    assert client.run(lambda client: client.get("Ada")).name == "Ada"
    assert len(asked) == 2, "a question may be asked twice"


def test_the_pieces_of_a_text_go_to_the_server_that_speaks_it(pair: list[Server], connect: Connect) -> None:
    def after_the_text(server: Server) -> Callable[[Any], Iterator[Any]]:
        def play(context: Any) -> Iterator[Any]:
            until(lambda: ends() >= sum("text_stream" in inputs for _, inputs in server.calls))
            yield from speech(3)

        def ends() -> int:
            return sum(bool(inputs["last"][0]) for _, inputs in server.calls if "last" in inputs)

        return play

    for server in pair:
        server.play = after_the_text(server)
    client = connect(*pair)
    for name in ("Ada", "Ben", "Cy", "Dora", "Eve"):
        client.run(lambda client, name=name: client.speak_stream(iter(["One ", "two."]), voice=name).read())
    for server in pair:
        calls = [inputs for _, inputs in server.calls]
        streams = {inputs["text_stream"].decode() for inputs in calls if "text_stream" in inputs}
        assert streams == {inputs["append"].decode() for inputs in calls if "append" in inputs}
        assert streams == {sent["x-voice-stream"] for sent in server.metadata}
        assert len({sent["x-voice-affinity"] for sent in server.metadata}) == len(streams)
    assert sum("text_stream" in inputs for server in pair for _, inputs in server.calls) == 5


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that any name has from now on; none: the name is unknown."""
    found: list[str] = []

    def answer(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if not found:
            raise OSError("unknown name")
        return [(None, None, None, "", (ip, port)) for ip in found]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", answer)
    return found


def test_a_name_gives_servers_that_come_and_go(
    hosts: list[str], monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    with listening() as one, listening(f"127.0.0.2:{one.url.rpartition(':')[2]}") as other:
        port = int(one.url.rpartition(":")[2])
        hosts[:] = ["127.0.0.1"]
        monkeypatch.setattr(servers, "REFRESH_SECONDS", 0.05)
        client = connect(f"dns:///voices.example:{port}")

        def speak(server: Server) -> bool:
            before = len(server.speeches)
            for number in range(12):
                client.read(f"voice {number}")
            client.run(lambda client: asyncio.sleep(0.06) if isinstance(client, vc.AsyncClient) else None)
            return len(server.speeches) - before == 12

        assert speak(one)
        hosts[:] = ["127.0.0.2"]
        until(lambda: speak(other))
        hosts[:] = []
        assert speak(other), "the last answer counts while the name cannot be looked up"
        nowhere = connect(f"dns:///voices.example:{port}")
        with pytest.raises(vc.ConnectionFailed, match=r"voices\.example"):
            nowhere.read()


def test_a_name_without_an_address_is_looked_up_with_each_call(hosts: list[str], connect: Connect) -> None:
    with listening() as server:
        client = connect(f"dns:///voices.example:{server.url.rpartition(':')[2]}")
        for _ in range(2):
            with pytest.raises(vc.ConnectionFailed, match=r"voices\.example"):
                client.read()
            assert client.run(lambda client: client.ready()) is False
        hosts.append("127.0.0.1")
        client.read()


def test_what_can_be_no_name_has_no_address(connect: Connect) -> None:
    with pytest.raises(vc.ConnectionFailed, match=r"a\.\.example"):
        connect("dns:///a..example:8001").read()


def test_a_client_that_acts_for_an_owner_shares_the_connections(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    client.run(lambda client: client.acting_for("eve", 3).list())
    client.run(lambda client: client.acting_for("eve").close())
    client.run(lambda client: client.list())
    owners = [owner for server in pair for owner in server.owners]
    options = [json.loads(inputs["options"]) for server in pair for _, inputs in server.calls if "options" in inputs]
    assert len(owners) == 2 and options == [{"owner": "eve", "limit": 1000}, {"limit": 1000}]


def test_batch_work_has_a_connection_of_its_own(pair: list[Server], connect: Connect) -> None:
    """On the same one a listener's first chunk would wait behind the messages of such work."""
    client, peers = connect(pair[0]), list[str]()

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        peers.append(context.peer())
        return iter(speech(3))

    pair[0].play = play
    urgencies: list[Urgency | None] = ["batch", "interactive", "next", "batch", None]
    for urgency in urgencies:
        with on_behalf_of("me", urgency):
            client.read()
    assert peers[0] == peers[3] != peers[1] == peers[2] == peers[4]


def test_a_speech_can_be_closed_while_another_server_takes_over(pair: list[Server], connect: Connect) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play, other.play = refusing(grpc.StatusCode.UNAVAILABLE, STOPPING), silent
    deadline = 0.5
    while not other.speeches:  # a busy machine may need longer to ask it
        with pytest.raises(vc.DeadlineExceeded):
            client.read(deadline=deadline)
        deadline *= 2
    assert other.left.acquire(timeout=WAIT), "the second server still speaks"


def test_a_speech_that_is_closed_while_a_chunk_is_due_leaves_its_server_the_home(
    pair: list[Server], connect: Connect
) -> None:
    client = connect(*pair)
    home, other = home_first(pair, client)
    home.play = silent

    def close_soon(speaking: Any) -> Any:
        loop = None if isinstance(speaking, vc.Speech) else asyncio.get_running_loop()

        def close() -> None:
            until(lambda: len(home.speeches) == 2)
            speaking.close() if loop is None else loop.call_soon_threadsafe(speaking.close)

        closing.append(threading.Thread(target=close))
        closing[0].start()
        return speaking.read()

    closing: list[threading.Thread] = []
    with pytest.raises(vc.Cancelled):
        client.run(lambda client: close_soon(client.speak("Hi.", voice="Ada")))
    closing[0].join()
    home.play = lambda context: iter(speech(3))
    client.read()
    assert spoken([home, other]) == [3, 0]
