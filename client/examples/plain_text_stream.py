"""Speak a text while it is written, without this package, with tritonclient alone: the lines of stdin as they come.

$ some-language-model | python plain_text_stream.py MODEL NAME out.wav
"""

import json
import os
import queue
import secrets
import sys
import threading
import wave
from typing import Any

import numpy as np
import tritonclient.grpc as triton

URL = os.environ.get("VOICE_CLONE_SERVER") or "localhost:8001"  # of the server's gRPC endpoint


def tensor(name: str, value: Any, kind: str = "BYTES") -> triton.InferInput:
    array = np.array([value.encode()], dtype=object) if kind == "BYTES" else np.array([value])
    return triton.InferInput(name, [1], kind).set_data_from_numpy(array)


def write(model: str, stream_id: str, url: str, failed: "queue.Queue[Any]") -> None:
    """Append what comes on stdin; each piece is answered before the next is sent."""
    answers: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(url)
    client.start_stream(lambda result, error: answers.put(error or result))  # a stream of its own

    def append(index: int, text: str, last: bool) -> None:
        inputs = [tensor("append", stream_id), tensor("text", text)]
        inputs += [tensor("index", np.int32(index), "INT32"), tensor("last", last, "BOOL")]
        client.async_stream_infer(f"{model}_talker", inputs)
        if isinstance(answer := answers.get(), Exception):
            raise answer

    try:
        pieces = 0
        for line in sys.stdin:
            append(pieces, line, last=False)
            pieces += 1
        append(pieces, "", last=True)
    except Exception as error:  # of the append, or of stdin
        failed.put(error)
    finally:
        client.stop_stream()
        client.close()


def main(model: str, voice: str, path: str, url: str = URL) -> None:
    stream_id = secrets.token_hex(16)
    responses: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(url)
    pieces, final = [], False
    try:
        client.start_stream(lambda result, error: responses.put(error or result))
        inputs = [tensor("text_stream", stream_id), tensor("voice", voice), tensor("x_vector_only", True, "BOOL")]
        try:
            client.async_stream_infer(model, inputs)
        except triton.InferenceServerException:  # there is no stream any more
            raise responses.get() from None
        threading.Thread(target=write, args=(model, stream_id, url, responses), daemon=True).start()
        while not final:
            result = responses.get()
            if isinstance(result, Exception):
                raise result
            if (audio := result.as_numpy("audio")) is None:
                continue  # an empty response, which only ends the request
            pieces.append(audio)  # float32 [n]; a player would play it now
            final = bool(result.as_numpy("final")[0])
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()
    with wave.open(path, "wb") as wav:
        wav.setparams((1, 2, int(result.as_numpy("sample_rate")[0]), 0, "NONE", ""))
        wav.writeframes((np.concatenate(pieces).clip(-1, 1) * 32767).astype("<i2").tobytes())
    info = json.loads(result.as_numpy("info")[0])
    if info["finish_reason"] not in ("stop", "length"):  # such as text_left: a long text needs several streams
        print(f"not whole: {info['finish_reason']}, at character {info['characters']} of the text", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (triton.InferenceServerException, OSError) as error:
        sys.exit(f"plain_text_stream.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
