"""The registered speakers: one authority for all model types, with a shared cache and a durable store.

    cache = SpeakerCache(directory, encoder, default_model_types=["qwen3_tts"])
    reply = cache.call("upload", Request(name="Ada", audio=clip, reference_text="Hello."))
    reply = cache.call("resolve", Request(name="Ada", model_type="qwen3_tts"))
    reply.result      # {"status": "hit", "name": "Ada", "generation": 1, "mode": "icl", ...}
    reply.artifacts   # safetensors bytes: what `qwen3_tts_voice_encoder` made of the clip

    cache       SpeakerCache: the operations                                    cache.py, request.py
    extraction  memory, else the file, else the encoder; one flight a voice     extraction.py, encoding.py, flight.py
    registry    records in memory and files on disk, kept in step               registry.py, record.py, name.py
    store       one safetensors file a voice                                    store.py, voice_file.py, files.py
    lru         the artifacts in memory                                         lru.py

Nothing here knows a model family: a model type is a name, a mode is a word, artifacts are named arrays.
"""

from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.encoding import Encoder, Extraction
from voice_clone.speakers.request import CacheConfig, Reply, Request

__all__ = ["CacheConfig", "Encoder", "Extraction", "Reply", "Request", "SpeakerCache"]
