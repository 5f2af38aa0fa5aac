"""Calls of a running server's code2wav, as its talker makes them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.servers.server_metrics import metric
from tests.support.servers.talker_calls import Call
from tests.support.waiting import until
from voice_clone_server.triton_server import TritonServer

CODEBOOKS = 16
NO_CODES = np.zeros((0, CODEBOOKS), np.int32)
Codes = NDArray[np.int32]
Ask = Callable[..., Any]


def chunk_inputs(
    stream_id: str, index: int, codes: Codes, context: Codes = NO_CODES, final: bool = False, info: str = ""
) -> dict[str, Any]:
    """The inputs of a chunk."""
    return {
        "stream_id": stream_id,
        "codes": codes,
        "context_codes": context,
        "chunk_index": np.array([index], np.int32),
        "final": np.array([final]),
        "info": info,
    }


def settle(server: TritonServer) -> None:
    """Wait until code2wav has published all that it did before: it does so some time later, and in turn.

    It looks for a stream of its own, which counts as one that failed, first among the open ones, then not.
    """
    ask, stream_id = asking(server), f"settle {secrets.token_hex(8)}"
    until(lambda: metric(server, "code2wav_streams") == 0)
    ask(stream_id, 0, np.ones((1, CODEBOOKS), np.int32))
    until(lambda: metric(server, "code2wav_streams") == 1)
    ask(stream_id, 1, NO_CODES, final=True, info='{"error": "internal: settled"}')
    until(lambda: metric(server, "code2wav_streams") == 0)


def asking(server: TritonServer) -> Ask:
    """A function that sends code2wav a chunk and returns its response, or its error as text; None: it sends neither."""

    def ask(*chunk: Any, **more: Any) -> Any:
        call = Call(server, chunk_inputs(*chunk, **more), model="qwen3_tts_code2wav", empty_final=True)
        answer = call.next()
        call.close()
        return answer if isinstance(answer, str) or answer.get_response().outputs else None

    return ask
