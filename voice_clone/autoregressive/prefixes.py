"""What the talker has read of a voice, kept because the beginning of a prompt depends on the voice alone.

Role, language, speaker and the transcript of the reference stand before the text that is to be said: a third of the
prompt at 10 s of reference. Their keys and values are the same in every prompt of that voice, so they are copied
instead of computed. A key is the digest of all that they come from: a voice that is replaced has another one.

What stays in memory are keys and values of these positions (0.23 MB each at the released shape in fp32; no audio, no
name), until newer ones need the room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from voice_clone.autoregressive.decoder_layer import KVCache
from voice_clone.families.qwen3_tts.prefill import prefill_length, voice_length
from voice_clone.families.qwen3_tts.prompt import Prompt
from voice_clone.lru_cache import Kept, digest


@dataclass(frozen=True)
class Prefix:
    """The beginning of a prompt.

    Attributes:
        key: the digest of all that it comes from.
        length: positions; a prompt's last one is never among them, for it is read in any case.
    """

    key: bytes
    length: int

    @classmethod
    def of(cls, prompt: Prompt) -> Prefix:
        """What a prompt shares with all others in its voice."""
        language = -1 if prompt.language_id is None else prompt.language_id
        key = digest(
            prompt.role_ids,
            prompt.speaker_embedding,
            prompt.reference_ids,
            prompt.reference_codes,
            np.array([language, prompt.non_streaming_mode]),
        )
        return cls(key, min(voice_length(prompt), prefill_length(prompt) - 1))


class PromptPrefixes:
    """Keys and values of prefixes.

    Only for a talker whose values do not depend on how many positions are read at once, as native code's do not: for
    others a stream would change in its last bits with what was here.

    Args:
        cache: whose slots they are taken from and written to.
        max_bytes: as of `Kept`.
    """

    def __init__(self, cache: KVCache, max_bytes: int) -> None:
        self._cache = cache
        self._kept: Kept[tuple[Tensor, Tensor]] = Kept(max_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return self._kept.nbytes

    def read(self, prefix: Prefix, slot: int) -> int:
        """Write a prefix to a slot if it is here; returns how many positions are written, all or none."""
        entry = self._kept.get(prefix.key)
        if entry is None:
            return 0
        keys, values = self._positions(prefix, slot)
        keys[:], values[:] = entry
        return prefix.length

    def keep(self, prefix: Prefix, slot: int) -> None:
        """Take a prefix from a slot that has read it, if it can fit."""
        if self._bytes(prefix) <= self._kept.max_bytes:
            keys, values = self._positions(prefix, slot)
            self._kept.put(prefix.key, (keys.clone(), values.clone()), self._bytes(prefix))

    def has_room(self, prefix: Prefix) -> bool:
        """Whether it is here or fits without another's going."""
        return prefix.key in self._kept or self.nbytes + self._bytes(prefix) <= self._kept.max_bytes

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

    def _positions(self, prefix: Prefix, slot: int) -> tuple[Tensor, Tensor]:
        return self._cache.keys[:, slot, :, : prefix.length], self._cache.values[:, slot, :, : prefix.length]

    def _bytes(self, prefix: Prefix) -> int:
        return prefix.length * (self._cache.nbytes // (self._cache.keys.shape[1] * self._cache.keys.shape[3]))
