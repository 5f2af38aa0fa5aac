"""A client that acts for an owner says so with every call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import voice_clone_client as vc
from safetensors.numpy import save

from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.waiting import WAIT

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("upload", ("ada", b"clip"), {"shared": True}),
    ("upload", ("ada", b"clip"), {}),
    ("list", (), {}),
    ("get", ("ada",), {}),
    ("delete", ("ada",), {}),
    ("prepare", ("ada",), {"model": "qwen3_tts"}),
    ("export", ("ada",), {}),
    ("import_", (b"bundle",), {}),
]


def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
    record = {"name": "ada", "owner": "alice", "shared": True, "speakers": []}
    return {"result": json.dumps(record).encode(), "artifacts": save({})}


def limits(most: int | None) -> dict[str, Any]:
    return {} if most is None else {"max_owned": most, "max_owned_bytes": 10 * most}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("method", "args", "kwargs"), CALLS)
def test_each_operation_carries_the_owner(
    triton: Server, kind: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    triton.answer = answer

    async def run(owner: str | None, most: int | None) -> Any:
        async with vc.AsyncClient(triton.url, owner=owner, **limits(most)) as client:
            return await getattr(client, method)(*args, **kwargs)

    def ask(owner: str | None, most: int | None) -> dict[str, Any]:
        if kind == "async":
            reply = asyncio.run(run(owner, most))
        else:
            with vc.Client(triton.url, owner=owner, **limits(most)) as client:
                reply = getattr(client, method)(*args, **kwargs)
        if method in ("get", "upload"):
            assert (reply.owner, reply.shared) == ("alice", True)
        options: dict[str, Any] = json.loads(triton.calls[-1][1].get("options", b"{}"))
        if method == "export":
            assert options.pop("id"), "of the bundle, whose parts are asked for by it"
        return options

    limit = (
        {"max_owned": 3, "max_owned_bytes": 30}
        if method in ("upload", "import_")
        else {"limit": 1000}
        if method == "list"
        else {}
    )
    assert ask("alice", 3) == {"owner": "alice", **limit, **({"shared": True} if "shared" in kwargs else {})}
    assert "owner" not in ask(None, None)


@pytest.mark.parametrize("base", [vc.Client, vc.AsyncClient])
def test_a_client_for_another_owner_is_of_the_same_class(base: Any, triton: Server) -> None:
    class Named(base):  # type: ignore[misc]
        name = "none"

    client = Named(triton.url, owner="alice")
    client.name = "mine"
    other = client.acting_for("bob")
    assert type(other) is Named and other.name == "mine" and (client.owner, other.owner) == ("alice", "bob")


def test_a_speech_carries_the_owner(triton: Server) -> None:
    for owner in ("alice", None):
        with vc.Client(triton.url, model="qwen3_tts", owner=owner) as client:
            client.speak("Hello.", voice="ada").read()
        assert triton.owners[-1] == (owner or "")


@pytest.mark.parametrize("mark", [None, "off", "on", "required"])
def test_a_speech_carries_the_mark(mark: vc.Mark | None, triton: Server) -> None:
    triton.play = lambda context: iter([chunk(0, info={"mark": "marked"}), chunk(1, final=True)])
    with vc.Client(triton.url, model="qwen3_tts", mark=mark) as client:
        client.speak("Hello.", voice="ada").read()
        list(client.acting_for("eve").speak_stream(["Hello."], voice="ada"))
        client.acting_for("eve", mark="required").speak("Hello.", voice="ada").read()
    asked = [(speech.owner, speech.mark) for speech in triton.spoken]
    assert asked == [("", mark or ""), ("eve", mark or ""), ("eve", "required")]
    triton.spoken.clear()

    async def ask() -> None:
        async with vc.AsyncClient(triton.url, model="qwen3_tts", mark=mark) as client:
            await client.speak("Hello.", voice="ada").read()
            await client.acting_for(None, mark="off").speak("Hello.", voice="ada").read()

    asyncio.run(ask())
    assert [speech.mark for speech in triton.spoken] == [mark or "", "off"]


@pytest.mark.parametrize("mark", ["on", "required"])
def test_a_server_that_does_not_know_the_mark(mark: vc.Mark, triton: Server) -> None:
    """It speaks without. That is an error at the first chunk, and the stream is given up."""

    def endless(context: Any) -> Iterator[Any]:
        yield chunk(0, info={"cache": "hit"})
        for index in range(1, 1000):
            yield chunk(index)
            time.sleep(0.01)

    triton.play = endless
    with vc.Client(triton.url, mark=mark) as client:
        for speech in (client.speak("Hello.", voice="ada"), client.speak_stream(["Hello."], voice="ada")):
            with pytest.raises(vc.Unsupported, match=f"this server does not know mark {mark}"):
                next(speech)
            assert triton.left.acquire(timeout=WAIT) and speech.status.state == "failed"

    async def ask() -> None:
        async with vc.AsyncClient(triton.url, mark=mark) as client:
            for speech in (client.speak("Hello.", voice="ada"), client.speak_stream(["Hello."], voice="ada")):
                with pytest.raises(vc.Unsupported, match=f"this server does not know mark {mark}"):
                    await anext(speech)
                assert await asyncio.to_thread(triton.left.acquire, timeout=WAIT) and speech.status.state == "failed"

    asyncio.run(ask())


def test_the_limit_of_an_owner_is_an_error_of_its_own(triton: Server) -> None:
    def full(inputs: dict[str, Any]) -> dict[str, bytes]:
        raise Failure(grpc.StatusCode.UNAVAILABLE, "quota_exceeded: 3 voices are registered, and at most 3 are allowed")

    triton.answer = full
    with (
        vc.Client(triton.url, owner="alice", max_owned=3) as client,
        pytest.raises(vc.QuotaExceeded, match="at most 3"),
    ):
        client.upload("ada", b"clip")
