"""The operations on registered speakers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from voice_clone.audio import check_audible, decode
from voice_clone.errors import DeadlineExceeded, Internal, InvalidArgument, SpeakerNotFound, VoiceCloneError
from voice_clone.speakers.background import Background
from voice_clone.speakers.draft import check_consent, check_texts, of_clip, of_embedding
from voice_clone.speakers.encoding import Describer, Encoder, pack_artifacts
from voice_clone.speakers.exchange.preloaded import preload
from voice_clone.speakers.exchange.transfer import Transfer
from voice_clone.speakers.extraction import Extractor
from voice_clone.speakers.memory import Elsewhere, Memory, Nowhere, States
from voice_clone.speakers.metrics import Metrics
from voice_clone.speakers.name import check_word
from voice_clone.speakers.record import SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.report import of_file
from voice_clone.speakers.request import (
    CacheConfig,
    Reply,
    Request,
    asked_mode,
    check_absent,
    check_embedding,
    check_options,
    is_immutable,
    required_name,
)
from voice_clone.speakers.resolved import Resolved
from voice_clone.speakers.store.protocol import Store

log = logging.getLogger(__name__)
OPERATIONS = ("upload", "get", "list", "presets", "delete", "prepare", "resolve", "stats", "export", "import")
_PRESETS_SECONDS = 5.0  # for which a list waits for encoders that have not said yet what their checkpoints bring
_TOTALS = ("bytes", "entries", "evictions", "oversize_skips")  # of both pools together
_NOT_UPLOAD = ("audio", "reference_text", "consent", "description", "speaker_embedding", "voice_prompt")


class SpeakerCache:
    """Registered speakers, with their artifacts in memory and on disk. One instance serves all families. Thread-safe.

    Args:
        store: where speakers persist; used by this instance alone, until `close`.
        encoder: the encoders of all families.
        config: limits.
        model_types: answers the families whose artifacts are made at upload; called at each use. The first is the
            default of a request that names no family.
        on_extraction: called with the seconds of each extraction.
        elsewhere: the other processes that keep what they computed of voices.

    Raises:
        Overloaded, Internal: the store cannot be read; it is closed.
    """

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        config: CacheConfig | None = None,
        model_types: Callable[[], Iterable[str]] = tuple,
        on_extraction: Callable[[float], None] = lambda seconds: None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._elsewhere = elsewhere or Nowhere()
        self._config = config = config or CacheConfig()
        self._model_types = model_types
        self._metrics = Metrics(on_extraction)
        self._memory = Memory(config, self._elsewhere)
        self._store = store
        try:
            self._registry = Registry(store, config.max_speakers, config.policy == "immutable", self._memory.forget)
        except BaseException:
            self._store.close()
            raise
        self._describer = describer = Describer(encoder, self._metrics, self._memory.flights)
        self._states = States(self._memory, describer)
        self._extractor = Extractor(self._registry, self._store, self._memory, describer, config)
        self._transfer = Transfer(self._registry, self._store, describer, config)
        parts = self._registry, self._extractor, self._memory, describer
        self._background = Background(*parts, model_types, config.finish_seconds)
        log.info("restored %d voices", len(self._registry.records()))
        self._operations: dict[str, Callable[[Request], Reply]] = {n: getattr(self, f"_{n}") for n in OPERATIONS}

    def call(self, operation: str, request: Request) -> Reply:
        """Do one operation of those that `request` describes, and answer.

        Raises:
            VoiceCloneError: InvalidArgument for a wrong request; what each operation says; Internal for the rest.
        """
        handler = self._operations.get(operation)
        if handler is None:
            raise InvalidArgument(f"unknown operation {operation!r}; it must be one of {', '.join(self._operations)}")
        try:
            if operation != "stats" and not (operation == "resolve" and request.name is None):
                self._registry.refresh()
            return handler(request)
        except VoiceCloneError:
            raise
        except Exception:
            log.exception("%s failed", operation)
            raise Internal("the speaker cache failed to handle the request") from None

    def preload(self, folder: Path) -> None:
        """Register the voices that come with the server. Raises: as `preloaded.preload`."""
        preload(folder, self._transfer, self._config.max_bundle_bytes)

    def close(self) -> None:
        """End the work under way and release the directory. May be called twice."""
        self._background.close()
        self._memory.flights.close()
        self._store.close()

    def counters(self) -> dict[str, Any]:
        """What `stats` answers except the families; calls nothing outside this cache."""
        pools = self._memory.artifacts.stats()
        return {
            **self._metrics.stats(),
            **{name: sum(pool[name] for pool in pools.values()) for name in _TOTALS},
            "pools": pools,
            "speakers": self._registry.count,
            "in_flight": len(self._memory.flights),
            "store": self._store.counters(),
        }

    def _upload(self, request: Request) -> Reply:
        check_options(request.options, "wait", "policy", "timeout", "strict", "trim_silence", "shared", "max_owned")
        check_consent(request.consent, self._config)
        until = self._until(request)
        if (request.audio is None) == (request.speaker_embedding is None):
            raise InvalidArgument("give exactly one of audio and speaker_embedding")
        immutable, most = is_immutable(request), request.options.get("max_owned")
        self._registry.check_free(required_name(request), immutable=immutable, owner=request.owner, max_owned=most)
        if request.audio is not None:
            draft = of_clip(request, request.audio, self._config.clip)
        else:
            assert request.speaker_embedding is not None
            embedding = check_embedding(request.speaker_embedding)
            draft = of_embedding(
                request, *self._extractor.of_embedding(embedding, self._model_type(request), None, until)
            )
        defaults = tuple(self._model_types())
        wanted = defaults if request.model_type is None else (self._model_type(request),)
        if self._registry.speaks(draft.record):  # the old voice goes when the new one can speak
            draft = self._background.with_artifacts(draft, wanted, until)
        record = self._registry.add(draft, immutable, request.owner, most)
        self._metrics.count("uploads")
        log.info("registered the voice %r, generation %d", record.name, record.generation)
        self._background.begin(record, wanted, draft.clip, until if request.options.get("wait") else None)
        return Reply(self._show(self._registry.latest(record), defaults, request.owner))

    def _get(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "model_type", *_NOT_UPLOAD)
        record = self._registry.find(required_name(request), request.owner, shared=True)
        return Reply(self._show(record, self._model_types(), request.owner))

    def _list(self, request: Request) -> Reply:
        check_options(request.options, "limit", "after")
        check_absent(request, "name", "model_type", *_NOT_UPLOAD)
        return Reply(self._show_all(self._registry.page(**request.options), request.owner))

    def _presets(self, request: Request) -> Reply:
        check_options(request.options, "timeout")
        check_absent(request, "name", "model_type", *_NOT_UPLOAD)
        until = time.monotonic() + float(request.options.get("timeout", _PRESETS_SECONDS))
        model_types, found = tuple(self._model_types()), list[dict[str, Any]]()
        self._describer.ask_ahead(model_types)  # all at once
        for model_type in model_types:
            with contextlib.suppress(DeadlineExceeded):
                for name in self._describer.presets(model_type, until):
                    registered = self._registry.has(name, request.owner)
                    found.append({"name": name, "model_type": model_type, "registered": registered})
        return Reply({"presets": found})

    def _delete(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "model_type", *_NOT_UPLOAD)
        record = self._registry.remove(required_name(request), request.owner)
        self._metrics.count("deletes")
        log.info("deleted the voice %r, generation %d", record.name, record.generation)
        return Reply({"name": record.name, "generation": record.generation, "deleted": True})

    def _prepare(self, request: Request) -> Reply:
        check_options(request.options, "mode", "force", "timeout")
        check_absent(request, *_NOT_UPLOAD)
        name, model_type, mode = required_name(request), self._model_type(request), asked_mode(request)
        until = self._until(request)
        self._registry.find(name, request.owner)
        # After another checkpoint was loaded, `prepare` is how the operator announces it: ask the encoder again.
        self._extractor.refresh(name, model_type, mode, until)
        if request.options.get("force"):
            resolved = self._extractor.rebuild(name, model_type, mode, until)
        else:
            resolved = self._extractor.registered(name, model_type, mode, True, until, saved=True)
        assert resolved.record is not None
        self._check_owner(resolved.record, request, shared=False)
        if resolved.unsaved is not None:
            raise resolved.unsaved
        made = {"status": "ready", "mode": resolved.artifact.mode, "extraction_ms": resolved.extraction_ms}
        result = self._show(resolved.record, self._model_types(), request.owner) | made
        if resolved.status != "miss":
            result["message"] = "already prepared"
        return Reply(result)

    def _resolve(self, request: Request) -> Reply:
        check_options(request.options, "mode", "cache", "timeout")
        check_absent(request, "consent", "description")
        sources = (request.name, request.audio, request.speaker_embedding, request.voice_prompt)
        if sum(source is not None for source in sources) != 1:
            raise InvalidArgument("give exactly one of name, audio, speaker_embedding and voice_prompt")
        if request.name is None:
            return self._resolve_inline(request)
        if request.reference_text is not None:
            raise InvalidArgument("reference_text belongs to the upload of a voice; leave it out, or send audio")
        mode, model_type, use_cache = asked_mode(request), self._model_type(request), request.options.get("cache", True)
        self._registry.find(request.name, request.owner, shared=True)
        resolved = self._extractor.registered(request.name, model_type, mode, use_cache, self._until(request))
        record = resolved.record
        assert record is not None
        self._check_owner(record, request, shared=True)
        told = self._result(resolved, record.embedding_source, record)
        return Reply({"name": record.name, **told}, resolved.artifacts)

    def _resolve_inline(self, request: Request) -> Reply:
        check_texts(request)
        mode, model_type, until = asked_mode(request), self._model_type(request), self._until(request)
        if request.audio is not None:
            clip = decode(request.audio, self._config.clip)
            check_audible(clip)
            use_cache = request.options.get("cache", True)
            resolved = self._extractor.inline(clip, request.reference_text, model_type, mode, use_cache, until)
            told = {"warnings": [warning._asdict() for warning in of_file(clip.losses)]}
            return Reply(self._result(resolved, "audio") | told, resolved.artifacts)
        if request.reference_text is not None:
            raise InvalidArgument("a voice that is ready allows no reference_text; leave it out, or send audio")
        if request.voice_prompt is not None:
            resolved, record = self._transfer.resolve(request.voice_prompt, model_type, mode, until)
            return Reply(self._result(resolved, record.embedding_source, record), resolved.artifacts)
        assert request.speaker_embedding is not None
        embedding = check_embedding(request.speaker_embedding)
        artifact, tensors, info = self._extractor.of_embedding(embedding, model_type, mode, until)
        resolved = Resolved("hit", None, artifact, pack_artifacts(tensors), info.fingerprint)
        return Reply(self._result(resolved, "direct"), resolved.artifacts)

    def _result(self, resolved: Resolved, embedding_source: str, told: SpeakerRecord | None = None) -> dict[str, Any]:
        if resolved.status != "none":
            self._metrics.count({"hit": "hits", "restored": "restores", "miss": "misses"}[resolved.status])
        return {
            "embedding_source": embedding_source,
            "status": resolved.status,
            **resolved.artifact._asdict(),
            "generation": 0 if resolved.record is None else resolved.record.generation,
            "extraction_ms": resolved.extraction_ms,
            "fingerprint": resolved.fingerprint,
            "origin": resolved.origin if resolved.record is None else resolved.record.origin.voice,
            **({} if told is None or told.reference_text is None else {"reference_text": told.reference_text}),
        }

    def _stats(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "name", "model_type", *_NOT_UPLOAD)
        return Reply(self.counters() | {"model_types": list(self._model_types()), "kept": self._elsewhere.kept()})

    def _export(self, request: Request) -> Reply:
        check_options(request.options, "include_audio")
        check_absent(request, "model_type", *_NOT_UPLOAD)
        owner, name = request.owner, request.name
        records = self._registry.records(owner) if name is None else [self._registry.find(name, owner)]
        names, bundle = self._transfer.pack(records, request.options.get("include_audio", True))
        return Reply({"speakers": names}, bundle)

    def _import(self, request: Request) -> Reply:
        check_options(request.options, "reextract", "policy", "max_owned")
        check_absent(request, "name", "model_type", *(name for name in _NOT_UPLOAD if name != "audio"))
        if request.audio is None:
            raise InvalidArgument("audio is missing; give the bundle that an export answered")
        again, most = request.options.get("reextract", False), request.options.get("max_owned")
        records = self._transfer.unpack(request.audio, again, is_immutable(request), request.owner, most)
        model_types = tuple(self._model_types())
        for record in records:
            self._metrics.count("uploads")
            self._background.begin(record, model_types)
        return Reply(self._show_all(records, request.owner))

    def _show_all(self, records: Sequence[SpeakerRecord], owner: str | None) -> dict[str, Any]:
        model_types = tuple(self._model_types())
        return {"speakers": [self._show(record, model_types, owner) for record in records], "count": len(records)}

    def _show(self, record: SpeakerRecord, model_types: Iterable[str], owner: str | None) -> dict[str, Any]:
        """A speaker as this owner sees it, with the states of the artifacts that these families want."""
        return record.public(self._states.of(record, model_types), owner)

    def _check_owner(self, record: SpeakerRecord, request: Request, *, shared: bool) -> None:
        """Check whose speaker was taken in the end: it may have been replaced since it was found."""
        if not record.serves(request.owner, shared=shared):
            raise SpeakerNotFound(f"no voice is registered under the name {request.name!r}")

    def _model_type(self, request: Request) -> str:
        if request.model_type is not None:
            return check_word("model_type", request.model_type)
        for model_type in self._model_types():
            return model_type
        raise InvalidArgument("model_type is missing, and this server has no family to take by default; name one")

    def _until(self, request: Request) -> float:
        """When to stop waiting, on the monotonic clock."""
        return time.monotonic() + float(request.options.get("timeout", self._config.extraction_timeout))
