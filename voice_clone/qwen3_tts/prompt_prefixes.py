"""What the talker has read of a voice, kept because the beginning of a prompt depends on the voice alone.

Role, language, speaker and the transcript of the reference stand before the text that is to be said: a third of the
prompt at 10 s of reference. Their keys and values are the same in every prompt of that voice, so they are copied
instead of computed. A key is the digest of all that they come from: a voice that is replaced has another one.

What stays in memory are keys and values of these positions (0.23 MB each at the released shape in fp32; no audio, no
name), until newer ones need the room.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from torch import Tensor

from voice_clone.qwen3_tts.decoder_layer import KVCache
from voice_clone.qwen3_tts.prefill import prefill_length, voice_length
from voice_clone.qwen3_tts.prompt import Prompt


class PromptPrefixes:
    """A map from the voice of a prompt to the keys and values of its positions, bounded in bytes, least recently used
    going first.

    Only for a talker whose values do not depend on how many positions are read at once, as native code's do not: for
    others a stream would change in its last bits with what was here.

    Args:
        max_bytes: of all together; what is larger alone is not kept.

    For one thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Tensor, Tensor]] = OrderedDict()  # least recently used first
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def length(self, prompt: Prompt) -> int:
        """How many positions of a prompt are shared with all others in its voice; its last one is read in any case."""
        return min(voice_length(prompt), prefill_length(prompt) - 1) if self._max_bytes else 0

    def read(self, prompt: Prompt, cache: KVCache, slot: int) -> int:
        """Write the positions that are here to a slot; returns how many that are, all or none."""
        entry = self._entries.get(key := _key(prompt))
        if entry is None:
            return 0
        self._entries.move_to_end(key)
        length = entry[0].shape[2]
        cache.keys[:, slot, :, :length], cache.values[:, slot, :, :length] = entry
        return length

    def keep(self, prompt: Prompt, cache: KVCache, slot: int) -> None:
        """Take the shared positions of a prompt from a slot that has read them, if they can fit."""
        length, key = self.length(prompt), _key(prompt)
        entry = cache.keys[:, slot, :, :length], cache.values[:, slot, :, :length]
        size = sum(part.numel() * part.element_size() for part in entry)
        if key in self._entries or size > self._max_bytes:
            return
        while self.nbytes + size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = entry[0].clone(), entry[1].clone()
        self.nbytes += size

    def has_room(self, prompt: Prompt, cache: KVCache) -> bool:
        """Whether its shared positions, of which there are some, are here or fit without another's going."""
        length = self.length(prompt)
        size = length * (cache.nbytes // (cache.keys.shape[1] * cache.keys.shape[3]))
        return length > 0 and (_key(prompt) in self._entries or self.nbytes + size <= self._max_bytes)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self.nbytes = 0

    def _drop(self, key: bytes) -> None:
        self.nbytes -= sum(part.nbytes for part in self._entries.pop(key))


def _key(prompt: Prompt) -> bytes:
    """The digest of all that the shared positions come from; how many there are follows from the same."""
    digest = hashlib.sha256(repr((prompt.language_id, prompt.non_streaming_mode)).encode())
    for part in (prompt.role_ids, prompt.speaker_embedding, prompt.reference_ids, prompt.reference_codes):
        digest.update(repr(part.shape).encode() + np.ascontiguousarray(part).tobytes())
    return digest.digest()
