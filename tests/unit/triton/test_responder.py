"""The last resort: whatever is raised and whatever is sent, a request is answered to its end, and once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.backend_double import FINAL, Sender, backend_double
from voice_clone.errors import InvalidArgument, Overloaded, VoiceCloneError

HOSTILE_TEXTS = ["\ud800", "a\udfffb", "\0", "a\0b", "\ud83d", "é" * 5000, "\n\r", "\x7f", ""]


class _Mute(VoiceCloneError):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RecursionError


@pytest.fixture
def responder_module() -> Iterator[Any]:
    with backend_double("responder") as (module,):
        yield module


def responder(module: Any, sender: Sender) -> Any:
    return module.Responder(sender, "the-id", {"audio": np.float32, "info": np.object_})


def error_of(sender: Sender) -> str:
    [(response, flags)] = sender.sent
    assert flags == FINAL
    text: str = response.error.text
    return text


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("kind", [InvalidArgument, Overloaded, ValueError])
def test_any_text_of_an_error_is_sent(
    responder_module: Any, text: str, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)  # pytest cannot hand captured lone surrogates from process to process
    sender = Sender()
    answering = responder(responder_module, sender)
    answering.fail(kind(text))
    assert error_of(sender).startswith("internal: " if kind is ValueError else kind.slug)  # type: ignore[attr-defined]
    answering.fail(kind(text))
    answering.send({"audio": np.zeros(1)}, final=True)
    answering.end()
    assert len(sender.sent) == 1 and not answering.cancelled()


def test_a_response_is_known_to_be_on_its_way(responder_module: Any) -> None:
    """Until Triton has taken it, or refused it."""
    sender, seen = Sender(), list[float | None]()
    answering, taken = responder(responder_module, sender), sender.send

    def send(*args: Any, **named: Any) -> None:
        seen.append(responder_module.oldest_send())
        if len(seen) == 2:
            raise RuntimeError("not sent")
        taken(*args, **named)

    sender.send = send  # type: ignore[method-assign]
    assert responder_module.oldest_send() is None
    answering.send({"audio": np.zeros(1)})
    answering.fail(ValueError("a"))
    assert None not in seen and len(seen) == 3 and responder_module.oldest_send() is None


def test_an_error_that_cannot_say_what_it_is(responder_module: Any) -> None:
    sender = Sender()
    responder(responder_module, sender).fail(_Mute())
    assert error_of(sender).startswith("internal: the server failed to handle request")


def test_an_error_that_cannot_be_sent_gives_way_to_a_plain_one(responder_module: Any) -> None:
    sender = Sender((False, RuntimeError("no room")))
    responder(responder_module, sender).fail(InvalidArgument("what was wrong"))
    assert error_of(sender) == "internal: the server failed to handle request"


def test_where_no_error_can_be_sent_the_final_flag_still_ends_the_request(responder_module: Any) -> None:
    sender = Sender((False, RuntimeError("no room")), (False, RuntimeError("no room")))
    responder(responder_module, sender).fail(InvalidArgument("what was wrong"))
    assert sender.sent == [(None, FINAL)]


def test_nothing_escapes_a_server_that_takes_nothing(responder_module: Any) -> None:
    sender = Sender(*((after, RuntimeError("gone")) for after in (False, False, False)))
    answering = responder(responder_module, sender)
    answering.fail(InvalidArgument("what was wrong"))
    answering.end()
    closed = Sender((True, RuntimeError("no room")))
    answering = responder(responder_module, closed)
    answering.fail(InvalidArgument("what was wrong"))
    assert not answering.cancelled()  # or the server crashes


def test_a_last_response_that_cannot_be_sent_can_still_become_an_error(responder_module: Any) -> None:
    sender = Sender((False, RuntimeError("no room")))
    answering = responder(responder_module, sender)
    with pytest.raises(RuntimeError):
        answering.send({"audio": np.zeros(3)}, final=True)
    answering.fail(Overloaded("no room"))
    assert error_of(sender) == "overloaded: no room"


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_any_text_can_be_logged(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton takes it, which is UTF-8; the handler hides an error."""
    with backend_double("telemetry") as (telemetry,):
        handler, logged = telemetry._TritonHandler("model"), list[bytes]()
        levels = {"log_info": logging.INFO, "log_warn": logging.WARNING, "log_error": logging.ERROR}
        for name, level in levels.items():
            monkeypatch.setattr(telemetry.pb_utils.Logger, name, lambda line: logged.append(line.encode()))
            handler.emit(logging.LogRecord("x", level, "", 0, "quotes %s", (text,), None))
    assert len(logged) == len(levels) and all(line.startswith(b"model: quotes ") for line in logged)
