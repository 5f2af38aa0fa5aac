"""The registered speakers: one cache for all families, which keeps their artifacts in memory and on a durable store.

    cache = SpeakerCache(FileStore(directory), encoder, model_types=lambda: ["family"])
    cache.call(parse("upload", {"name": "Ada", "audio": clip, "reference_text": "Hello."}, {}))
    reply = cache.call(parse("resolve", {"name": "Ada", "model_type": "family"}, {}))
    reply.result      # {"name": "Ada", "status": "hit", "generation": 1, "mode": "icl", ...}
    reply.artifacts   # safetensors bytes: what `family_voice_encoder` made of the clip

Nothing here knows a model family: a model type is a name, a mode is a word, artifacts are named arrays.
"""
