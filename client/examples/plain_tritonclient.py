"""Speak a text without this package, with tritonclient alone. MODEL is a model family of the server.

$ python plain_tritonclient.py MODEL "The text." NAME out.wav
"""

import os
import queue
import sys
import wave
from typing import Any

import numpy as np
import tritonclient.grpc as triton

URL = os.environ.get("VOICE_CLONE_SERVER") or "localhost:8001"  # of the server's gRPC endpoint


def string(name: str, value: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], "BYTES")
    return tensor.set_data_from_numpy(np.array([value.encode()], dtype=object))


def main(model: str, text: str, voice: str, path: str, url: str = URL) -> None:
    responses: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(url)
    pieces, final = [], False
    try:
        client.start_stream(lambda result, error: responses.put(error or result))  # one stream for each speech
        try:
            client.async_stream_infer(model, [string("text", text), string("voice", voice)])
        except triton.InferenceServerException:  # there is no stream any more
            raise responses.get() from None
        while not final:
            result = responses.get()
            if isinstance(result, Exception):
                raise result
            if (audio := result.as_numpy("audio")) is None:
                continue  # an empty response, which only ends the request
            pieces.append(audio)  # float32 [n]; a player would play it now
            final = bool(result.as_numpy("final")[0])
    finally:  # an open stream has a thread, which would keep Python from ending
        client.stop_stream(cancel_requests=True)
        client.close()
    with wave.open(path, "wb") as wav:
        wav.setparams((1, 2, int(result.as_numpy("sample_rate")[0]), 0, "NONE", ""))
        wav.writeframes((np.concatenate(pieces).clip(-1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (triton.InferenceServerException, OSError) as error:
        sys.exit(f"plain_tritonclient.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
