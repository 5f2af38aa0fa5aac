"""Calls of a running server's code2wav, as its talker makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.servers.talker_calls import Call
from tools.triton_server import TritonServer

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


def asking(server: TritonServer) -> Ask:
    """A function that sends code2wav a chunk and returns its response, or its error as text; None: it sends neither."""

    def ask(*chunk: Any, **more: Any) -> Any:
        call = Call(server, chunk_inputs(*chunk, **more), model="qwen3_tts_code2wav", empty_final=True)
        answer = call.next()
        call.close()
        return answer if isinstance(answer, str) or answer.get_response().outputs else None

    return ask
