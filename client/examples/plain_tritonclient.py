"""Speak a text without this package, with tritonclient alone. MODEL is a model family of the server.

$ python plain_tritonclient.py MODEL "The text." NAME out.wav
"""

import queue
import sys
import wave
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def string(name: str, value: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], "BYTES")
    return tensor.set_data_from_numpy(np.array([value.encode()], dtype=object))


def main(model: str, text: str, voice: str, path: str, url: str = "localhost:8001") -> None:
    responses: queue.Queue[Any] = queue.Queue()
    client = triton.InferenceServerClient(url)
    pieces, final = [], False
    try:
        client.start_stream(lambda result, error: responses.put(error or result))  # one stream for each speech
        client.async_stream_infer(model, [string("text", text), string("voice", voice)])
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
    main(*sys.argv[1:])
