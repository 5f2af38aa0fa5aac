"""The registered speakers: one authority for all model types, with a shared LRU cache and a durable store.

    cache = SpeakerCache(FileStore(directory), encoder, model_types=lambda: ["family"])
    reply = cache.call("upload", Request(name="Ada", audio=clip, reference_text="Hello."))
    reply = cache.call("resolve", Request(name="Ada", model_type="family"))
    reply.result      # {"status": "hit", "name": "Ada", "generation": 1, "mode": "icl", ...}
    reply.artifacts   # safetensors bytes: what `family_voice_encoder` made of the clip

    operations  SpeakerCache                                                   cache.py, request.py
    extraction  from memory, else the file, else the encoder; single flight    extraction.py, flight.py, memory.py
    background  artifacts of uploads that nobody waits for, and what was left  background.py
    encoders    what a family declares: modes, fingerprint, form of artifacts  encoding.py, modes.py
    registry    records in memory and in the store, kept in step               registry.py, record.py, draft.py, name.py
    store       what it must do                                                store/protocol.py
    ... files   one safetensors file for each voice                            disk/store.py, voice_file.py, together.py
    LRU cache   the artifacts in memory                                        lru.py
    transfer    bundles of voices; a look from another process                 transfer.py, disk/bundle.py, latest.py
    metrics     counters                                                       metrics.py

Nothing here knows a model family: a model type is a name, a mode is a word, artifacts are named arrays.
"""

from voice_clone.speakers.cache import SpeakerCache
from voice_clone.speakers.disk.store import FileStore
from voice_clone.speakers.encoding import Encoder, Extraction
from voice_clone.speakers.request import CacheConfig, Reply, Request

__all__ = ["CacheConfig", "Encoder", "Extraction", "FileStore", "Reply", "Request", "SpeakerCache"]
