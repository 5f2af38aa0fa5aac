"""Input files of perf_analyzer for every model of a running server, with the tensors that its neighbours really send.

The voice `Ada` is registered, if it is not there, and speaks through the stages, one model after the other. The inputs
of each model are written to `<model>.json`, and the command for each model is printed.

The requests of two models, the talker and code2wav, belong to streams and need different stream ids. The files have
`--streams` of them, so keep the concurrency below that.
"""

from __future__ import annotations

import argparse
import base64
import json
import queue
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tritonclient.grpc as triton
from numpy.typing import NDArray
from safetensors.numpy import load
from voice_clone_client import Client
from voice_clone_client.errors import VoiceNotFound
from voice_clone_program.whole_file import whole_file

from perf.bench.reference import CLIP, TRANSCRIPT

VOICE, TEXT, FRAMES = "Ada", "The boats lay still on the silver water.", 12
TYPES = {"int32": "INT32", "float32": "FP32", "uint16": "UINT16", "bool": "BOOL", "uint64": "UINT64", "object": "BYTES"}

Tensors = dict[str, NDArray[Any]]


def tensor(value: Any) -> NDArray[Any]:
    """A tensor of one element, or an array as it is."""
    if isinstance(value, str):
        return np.array([value.encode()], np.object_)
    array: NDArray[Any] = np.atleast_1d(np.asarray(value, None if isinstance(value, (np.ndarray, bool)) else np.int32))
    return array


def ask(url: str, model: str, tensors: Tensors) -> list[Tensors]:
    """The responses of a model, decoupled or not."""
    inputs = []
    for name, value in tensors.items():
        given = triton.InferInput(name, list(value.shape), TYPES[value.dtype.name])
        inputs.append(given.set_data_from_numpy(value))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(partial(lambda result, error: answers.put(error or result)))
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        found: list[Tensors] = []
        while True:
            answer = answers.get(timeout=300)
            if isinstance(answer, Exception):
                raise answer
            message = answer.get_response()
            if message.outputs:
                found.append({output.name: answer.as_numpy(output.name) for output in message.outputs})
            if message.parameters["triton_final_response"].bool_param:
                return found


def entry(tensors: Tensors) -> dict[str, Any]:
    """A request as perf_analyzer reads it."""

    def content(value: NDArray[Any]) -> Any:
        if value.dtype == np.object_:
            try:
                return [text.decode() for text in value]
            except UnicodeDecodeError:
                lengths_and_bytes = b"".join(struct.pack("<I", len(each)) + each for each in value)
                return {"b64": base64.b64encode(lengths_and_bytes).decode()}
        return {"content": value.reshape(-1).tolist(), "shape": list(value.shape)}

    return {name: content(value) for name, value in tensors.items()}


def requests(url: str, streams: int) -> dict[str, list[Tensors]]:
    """Some requests for each model, of which any number may be sent at once."""
    with Client(url) as client:
        try:
            client.get(VOICE)
        except VoiceNotFound:
            client.upload(VOICE, CLIP.read_bytes(), reference_text=TRANSCRIPT, wait=True)
    samples, rate = soundfile.read(CLIP, dtype="float32")
    clip = {"waveform": samples, "sample_rate": tensor(rate)}
    speech = {"text": tensor(TEXT), "voice": tensor(VOICE)}
    limits = {"max_frames": tensor(FRAMES), "seed": np.array([1], np.uint64)}
    prompt = ask(url, "qwen3_tts_prompt", speech)[0]
    info = json.loads(prompt["prompt_info"][0])
    call = {**prompt, **limits}
    codes = np.concatenate([answer["codes"] for answer in ask(url, "qwen3_tts_talker", call)])
    names = [f"measured-{number}" for number in range(streams)]
    chunk = {
        "codes": codes,
        "context_codes": load(prompt["prompt"][0])["reference_codes"],
        "chunk_index": tensor(0),
        "final": tensor(True),
        "info": tensor(""),
    }
    return {
        "qwen3_tts": [{**speech, **limits}],
        "qwen3_tts_prompt": [speech],
        "speech_whole": [speech],
        "text_front_end": [{**speech, **limits}],
        "qwen3_tts_talker": [
            {**call, "prompt_info": tensor(json.dumps({**info, "stream_id": name}))} for name in names
        ],
        "qwen3_tts_code2wav": [{"stream_id": tensor(name), **chunk} for name in names],
        "qwen3_tts_voice_encoder": [clip],
        "speaker_cache": [{"operation": tensor("resolve"), "name": tensor(VOICE), "model_type": tensor("qwen3_tts")}],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the files")
    parser.add_argument("-u", "--url", default="localhost:8001", help="gRPC address of the server")
    parser.add_argument("--streams", type=int, default=64, help="number of stream ids")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for model, found in requests(given.url, given.streams).items():
        file = given.folder / f"{model}.json"
        with whole_file(file) as out:
            out.write(json.dumps({"data": [entry(each) for each in found]}).encode())
        print(f"perf/perf_analyzer -m {model} -u {given.url} --input-data {file} --concurrency-range 1")


if __name__ == "__main__":
    main()
