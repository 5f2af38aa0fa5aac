"""Calls of a running server's models without our client."""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from tests.support.waiting import WAIT
from voice_clone.triton.tensors import pack
from voice_clone_server.triton_server import TritonServer


def tensors(**values: Any) -> list[triton.InferInput]:
    made = []
    for name, value in values.items():
        array = np.array([value], np.object_) if isinstance(value, (bytes, str)) else np.asarray(value)
        kind = {"O": "BYTES", "f": "FP32", "i": "INT32", "b": "BOOL", "u": "UINT64"}[array.dtype.kind]
        made.append(triton.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array)
    return made


def prompt_arrays(*, seed: int = 1, icl: bool = False, tokens: int = 90) -> dict[str, NDArray[Any]]:
    """What qwen3_tts_prompt packs for the talker, with so many tokens of text."""
    rng = np.random.default_rng(seed)
    reference = 70 if icl else 0
    return {
        "role_ids": np.array([1, 2, 3], np.int32),
        "text_ids": rng.integers(0, 200, tokens, dtype=np.int32),
        "reference_ids": rng.integers(0, 200, 20 if icl else 0, dtype=np.int32),
        "reference_codes": rng.integers(0, 2048, (reference, 16), dtype=np.int32),
        "speaker_embedding": rng.normal(size=64).astype(np.float32),
        "language_id": np.array([-1], np.int32),
        "speaker_id": np.array([-1], np.int32),
        "instruct_ids": np.zeros(0, np.int32),
    }


def prompt(
    stream_id: Any, *, seed: int = 1, frames: int = 20, icl: bool = False, **changed: NDArray[Any]
) -> dict[str, Any]:
    """Inputs of the talker, as qwen3_tts_prompt makes them; `changed` replaces arrays of the prompt.

    A text that is too short for so many frames would end the stream before.
    """
    tokens = max(90, frames // 12)
    return {
        "prompt": pack({**prompt_arrays(seed=seed, icl=icl, tokens=tokens), **changed}),
        "prompt_info": json.dumps({"stream_id": stream_id}),
        "seed": np.array([seed], np.uint64),
        "max_frames": np.array([frames], np.int32),
    }


class Call:
    """One stream of one client."""

    def __init__(
        self,
        server: TritonServer,
        inputs: Mapping[str, Any],
        model: str = "qwen3_tts_talker",
        *,
        timeout: float | None = None,
        empty_final: bool = False,
        **parameters: Any,
    ) -> None:
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = triton.InferenceServerClient(server.url, channel_args=[("grpc.use_local_subchannel_pool", 1)])
        # Without the header triton_grpc_error: with it, an error answer crashes Triton 2.51 now and then.
        self.client.start_stream(lambda result, error: self.answers.put((result, error)), stream_timeout=timeout)
        self._model, self._more = model, {"enable_empty_final_response": empty_final, "parameters": parameters or None}
        self.send(inputs)

    def send(self, inputs: Mapping[str, Any]) -> None:
        """Send a request on the stream."""
        self.client.async_stream_infer(self._model, tensors(**inputs), **self._more)

    def next(self) -> Any:
        """The next response, or the error as text."""
        result, error = self.answers.get(timeout=WAIT)
        return result if error is None else str(error)

    def end(self) -> tuple[np.ndarray[Any, Any], str | None]:
        """All codes that are still to come, int32 [frames, 16], and the error that ends the stream, if any."""
        chunks = [np.zeros((0, 16), np.int32)]
        while True:
            result = self.next()
            if isinstance(result, str):
                error: str | None = result
                break
            chunks.append(result.as_numpy("codes"))
            if result.as_numpy("final")[0]:
                info = json.loads(result.as_numpy("info")[0])
                error = info.get("error")
                assert (error is None) == (info["finish_reason"] in ("stop", "length"))
                break
        self.close()
        return np.concatenate(chunks), error

    def codes(self) -> np.ndarray[Any, Any]:
        """The codes of a stream that ends well."""
        codes, error = self.end()
        assert error is None, error
        return codes

    def error(self) -> str:
        """The error of a stream that does not."""
        error = self.end()[1]
        assert error is not None
        return error

    def close(self) -> None:
        """Close the stream and its connection, after the last answer."""
        self.client.stop_stream()
        self.client.close()

    def leave(self) -> None:
        """Cancel a running stream."""
        self.client.stop_stream(cancel_requests=True)
        self.client.close()
