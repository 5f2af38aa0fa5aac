"""Input files of perf_analyzer for every model of a running server: each gets what its neighbours really send it.

A voice is registered (`Ada`, if nobody has) and spoken in through the stages, one model after the other; what went into
each is written as `<model>.json`. The command for each model is printed.

Two of them need a name for every request: chunks of code2wav and calls of the talker belong to streams. There are
`--streams` of them to choose from, so ask for fewer at once.
"""

from __future__ import annotations

import argparse
import json
import queue
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tritonclient.grpc as triton
from numpy.typing import NDArray
from voice_clone_client import Client
from voice_clone_client.errors import VoiceNotFound

from perf.reference import CLIP, TRANSCRIPT

VOICE, TEXT, FRAMES = "Ada", "The boats lay still on the silver water.", 12
TYPES = {"int32": "INT32", "float32": "FP32", "bool": "BOOL", "uint64": "UINT64", "object": "BYTES"}

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
            return [text.decode() for text in value]
        return {"content": value.reshape(-1).tolist(), "shape": list(value.shape)}

    return {name: content(value) for name, value in tensors.items()}


def requests(url: str, streams: int) -> dict[str, list[Tensors]]:
    """For each model some requests, of which any number may be sent at once."""
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
    prompt["speaker_embedding"] = prompt.pop("prompt_speaker_embedding")
    call = {**prompt, **limits}
    codes = np.concatenate([answer["codes"] for answer in ask(url, "qwen3_tts_talker", call)])
    names = [tensor(f"measured-{number}") for number in range(streams)]
    chunk = {
        "codes": codes,
        "context_codes": prompt["reference_codes"],
        "chunk_index": tensor(0),
        "final": tensor(True),
        "info": tensor(""),
    }
    return {
        "qwen3_tts": [{**speech, **limits}],
        "qwen3_tts_prompt": [speech],
        "qwen3_tts_talker": [{**call, "stream_id": name} for name in names],
        "qwen3_tts_code2wav": [{"stream_id": name, **chunk} for name in names],
        "qwen3_tts_speaker_encoder": [clip],
        "qwen3_tts_codec_encoder": [clip],
        "qwen3_tts_voice_encoder": [clip],
        "speaker_cache": [{"operation": tensor("resolve"), "name": tensor(VOICE), "model_type": tensor("qwen3_tts")}],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("-u", "--url", default="localhost:8001", help="gRPC address of the server")
    parser.add_argument("--streams", type=int, default=64, help="names of streams")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for model, found in requests(given.url, given.streams).items():
        file = given.folder / f"{model}.json"
        file.write_text(json.dumps({"data": [entry(each) for each in found]}), encoding="utf-8")
        print(f"perf/perf_analyzer -m {model} -u {given.url} --input-data {file} --concurrency-range 1")


if __name__ == "__main__":
    main()
