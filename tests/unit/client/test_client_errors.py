"""The client's error tree against the server's."""

from __future__ import annotations

import pytest
from voice_clone_client import errors as client

from voice_clone import errors as server

PREFIX = "in ensemble 'qwen3_tts', "  # of Triton; newer servers repeat it
SERVER = [
    error
    for error in vars(server).values()
    if isinstance(error, type) and issubclass(error, server.VoiceCloneError) and error is not server.VoiceCloneError
]


@pytest.mark.parametrize("error", SERVER)
@pytest.mark.parametrize("prefix", ["", PREFIX, 3 * PREFIX, "Failed to process the request(s), message: "])
def test_every_server_error_has_its_class(error: type[server.VoiceCloneError], prefix: str) -> None:
    caught = client.from_status("INTERNAL", prefix + error("the text: with a colon").message)
    assert caught.slug == error.slug
    assert str(caught) == "the text: with a colon"
    assert type(caught) is not client.VoiceCloneError


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("INVALID_ARGUMENT", client.InvalidArgument),
        ("NOT_FOUND", client.Unsupported),
        ("UNIMPLEMENTED", client.Unsupported),
        ("UNAVAILABLE", client.ConnectionFailed),
        ("CANCELLED", client.ConnectionFailed),
        ("DEADLINE_EXCEEDED", client.DeadlineExceeded),
        ("INTERNAL", client.Internal),
        ("UNKNOWN", client.Internal),
        ("DATA_LOSS", client.Internal),
    ],
)
def test_status_decides_without_a_slug(status: str, error: type[client.VoiceCloneError]) -> None:
    assert type(client.from_status(status, "no slug here")) is error
    assert str(client.from_status(status, ""))  # never an empty message


@pytest.mark.parametrize(
    ("details", "error"),
    [
        ("This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'", client.PermissionDenied),
        ("Request for unknown model: 'qwen3_tts' has no available versions", client.ConnectionFailed),
        ("Server is stopping, scheduler for model has stopped accepting new requests", client.ConnectionFailed),
    ],
)
def test_triton_s_errors_on_a_stream_without_a_code(details: str, error: type[client.VoiceCloneError]) -> None:
    caught = client.from_status("INVALID_ARGUMENT", details)
    assert type(caught) is error and details in str(caught)


@pytest.mark.parametrize(("status", "error"), [("NOT_FOUND", client.Unsupported), ("", client.InvalidArgument)])
def test_triton_s_word_for_an_unknown_model(status: str, error: type[client.VoiceCloneError]) -> None:
    caught = client.from_status(status or "INVALID_ARGUMENT", PREFIX + "Request for unknown model: 'foo' is not found")
    assert (type(caught), caught.field, str(caught)) == (error, "model", "this server has no model foo")


@pytest.mark.parametrize("times", [1, 2, 5])
def test_triton_s_own_errors_lose_its_prefixes(times: int) -> None:
    caught = client.from_status("INVALID_ARGUMENT", times * PREFIX + "[request id: 7] unexpected shape for 'text'")
    assert type(caught) is client.InvalidArgument
    assert str(caught) == "[request id: 7] unexpected shape for 'text'"
    stopping = client.from_status("UNAVAILABLE", times * PREFIX + "Server is stopping, scheduler has stopped")
    assert type(stopping) is client.ConnectionFailed and "ensemble" not in str(stopping)
    assert str(client.from_status("INTERNAL", times * PREFIX)), "never an empty message"


def test_a_model_that_has_died_is_no_fault_of_its_caller() -> None:
    caught = client.from_status("INVALID_ARGUMENT", 2 * PREFIX + "Stub process 'x_talker_0_0' is not healthy.")
    assert type(caught) is client.Overloaded and "talker" not in str(caught)


def test_a_call_is_cancelled_by_its_client_or_by_a_server_that_goes_away() -> None:
    assert type(client.from_status("CANCELLED", "CANCELLED")) is client.ConnectionFailed
    assert type(client.from_status("CANCELLED", "Stream removed (Channel closed!)")) is client.Cancelled


def test_slug_beats_status() -> None:
    assert type(client.from_status("UNAVAILABLE", "deadline_exceeded: late")) is client.DeadlineExceeded


def test_the_slugs_are_the_server_s_and_three_of_the_client_s_own() -> None:
    slugs = [error.slug for error in client.VoiceCloneError.__subclasses__()]
    own = {"connection_failed", "broken_stream", "incomplete"}
    assert len(set(slugs)) == len(slugs)
    assert set(slugs) == own | {error.slug for error in SERVER}
