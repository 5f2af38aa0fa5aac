"""Text and voice to the talker's prompt."""

import functools
import json
import time
import uuid

from voice_clone.errors import InvalidArgument
from voice_clone.families.qwen3_tts.cloned_voice import ClonedVoice, from_cache, from_embedding
from voice_clone.families.qwen3_tts.config import load_config
from voice_clone.families.qwen3_tts.speech_request import SpeechRequest
from voice_clone.families.qwen3_tts.text import Tokenizer
from voice_clone.triton.model import Model, Request, call

MAX_TOKEN_LENGTH = 64  # characters; no text has tokens as long on average, and to count those of a huge one takes long


class TritonPythonModel(Model):
    threads = 16  # a cold voice keeps one busy while its clip is encoded

    def load(self, settings):
        self._config = load_config(settings.checkpoint_dir)
        self._tokenizer = Tokenizer(settings.checkpoint_dir)
        self._max_tokens = settings.integer("max_text_tokens", 1024)
        self._known_reference_ids = functools.lru_cache(maxsize=128)(self._reference_ids)

    def handle(self, request, responder):
        began = time.monotonic()
        speech = _parse(request)
        language_id = speech.language_id(self._config)
        text_ids = self._ids("text", speech.text, self._tokenizer.text_ids)
        voice = self._resolve(speech)
        transcript = voice.transcript
        of_reference = self._known_reference_ids if speech.voice else self._reference_ids
        reference_ids = of_reference(transcript) if transcript else text_ids[:0]
        stream_id = uuid.uuid4().hex
        info = {
            "stream_id": stream_id,
            "mode": voice.mode,
            **voice.info,
            "text_tokens": len(text_ids),
            "reference_tokens": len(reference_ids),
            "reference_frames": len(voice.codes),
            "prompt_ms": round(1e3 * (time.monotonic() - began), 3),
        }
        return {
            "role_ids": self._tokenizer.role_ids,
            "text_ids": text_ids,
            "reference_ids": reference_ids,
            "reference_codes": voice.codes,
            "prompt_speaker_embedding": voice.embedding,
            "language_id": -1 if language_id is None else language_id,
            "stream_id": stream_id,
            "prompt_info": json.dumps(info),
        }

    def _reference_ids(self, transcript):
        return self._ids("reference_text", transcript, self._tokenizer.reference_ids)

    def _ids(self, name, text, tokenize):
        if len(text) > MAX_TOKEN_LENGTH * self._max_tokens:
            raise InvalidArgument(f"{name} has {len(text)} characters; {self._max_tokens} tokens are allowed, split it")
        ids = tokenize(text)
        if len(ids) > self._max_tokens:
            raise InvalidArgument(f"{name} has {len(ids)} tokens; at most {self._max_tokens} are allowed, split it")
        return ids

    def _resolve(self, speech: SpeechRequest) -> ClonedVoice:
        if speech.speaker_embedding is not None:
            return from_embedding(speech.speaker_embedding, self._config)
        asked = {
            "operation": "resolve",
            "model_type": "qwen3_tts",
            "name": speech.voice,
            "audio": speech.reference_audio,
            "options": None if speech.voice else json.dumps({"mode": speech.clip_mode}),
        }
        reply = call("speaker_cache", asked)
        return from_cache(json.loads(reply["result"][0]), reply["artifacts"][0], speech, self._config)


def _parse(request: Request) -> SpeechRequest:
    return SpeechRequest(
        text=request.text("text") or "",
        voice=request.text("voice"),
        reference_audio=request.raw("reference_audio"),
        reference_text=request.text("reference_text"),
        speaker_embedding=request.array("speaker_embedding"),
        x_vector_only=request.number("x_vector_only"),
        language=request.text("language"),
    )
