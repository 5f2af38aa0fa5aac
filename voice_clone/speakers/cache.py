"""The operations on registered speakers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from voice_clone.audio import decode
from voice_clone.errors import Internal, InvalidArgument, VoiceCloneError
from voice_clone.speakers.draft import Draft, check_texts, of_clip, of_embedding
from voice_clone.speakers.encoding import Describer, Encoder, pack_artifacts
from voice_clone.speakers.extraction import Extractor, Memory, Resolved
from voice_clone.speakers.files import Files
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.metrics import Metrics
from voice_clone.speakers.name import check_word
from voice_clone.speakers.record import IN_CONTEXT, X_VECTOR, ArtifactId, SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.request import (
    CacheConfig,
    Reply,
    Request,
    check_absent,
    check_embedding,
    check_options,
)
from voice_clone.speakers.store import SpeakerStore
from voice_clone.speakers.transfer import Transfer

log = logging.getLogger(__name__)
_TOTALS = ("bytes", "entries", "evictions", "oversize_skips")  # of both pools together
_NOT_UPLOAD = ("audio", "reference_text", "consent", "description", "speaker_embedding")


class SpeakerCache:
    """Registered speakers, their artifacts in memory and on disk. One instance serves all model types. Thread-safe.

    Args:
        directory: where speakers persist; owned by this instance until `close`.
        encoder: the encoders of all families.
        config: limits.
        default_model_types: whose artifacts are extracted in the background at upload. With exactly one, it is also
            what a request means that names none.
        files: the operations on the file system.

    Raises:
        Overloaded: another process owns the directory.
        Internal: the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        encoder: Encoder,
        config: CacheConfig | None = None,
        default_model_types: Sequence[str] = (),
        files: Files | None = None,
    ) -> None:
        self._config = config = config or CacheConfig()
        self._defaults = tuple(check_word("model_type", model_type) for model_type in default_model_types)
        self._metrics = Metrics()
        self._memory = Memory(config)
        self._store = SpeakerStore(directory, files, config.directory_wait)
        try:
            immutable = config.policy == "immutable"
            self._registry = Registry(self._store, config.max_speakers, immutable, self._memory.forget)
        except BaseException:
            self._store.close()
            raise
        describer = Describer(encoder, self._metrics)
        self._extractor = Extractor(self._registry, self._store, self._memory, describer, config)
        self._transfer = Transfer(self._registry, self._store, describer, config)
        log.info("restored %d voices", len(self._registry.records()))
        self._operations: dict[str, Callable[[Request], Reply]] = {
            "upload": self._upload,
            "get": self._get,
            "list": self._list,
            "delete": self._delete,
            "prepare": self._prepare,
            "resolve": self._resolve,
            "stats": self._stats,
            "export": self._export,
            "import": self._import,
        }

    def call(self, operation: str, request: Request) -> Reply:
        """Do one operation and wait for it.

        A speaker is shown as a dictionary (`get`): name, generation, created_at, embedding_source; where they exist
        consent, description, reference_text, mime_type, file_size, duration, sample_rate; and `artifacts`, a list of
        {model_type, mode, state, reason?, extraction_ms?, fingerprint?}.

            upload   name, audio or speaker_embedding, reference_text?, consent?, description?, model_type?
                     options wait, timeout, policy (`immutable` refuses to replace). Answers the speaker, at once or
                     (wait) when its artifacts are made.
            get      name. The speaker.
            list     {"speakers": [speaker, ...], "count": n}, by name.
            delete   name. {"name", "generation", "deleted": true}
            prepare  name, model_type?; options mode, force, timeout. The speaker, with "status": "ready", "mode",
                     "extraction_ms", and "message": "already prepared" if there was nothing to do.
            resolve  one of name, audio, speaker_embedding; model_type?; reference_text? with audio; options mode,
                     cache, timeout. {"status": "hit" | "restored" | "miss", "model_type", "mode", "generation",
                     "embedding_source", "extraction_ms", "fingerprint"}, for a name also "name" and "reference_text";
                     and the artifacts.
            stats    counters, sizes of the pools, histogram of extraction seconds.
            export   name?; options include_audio. {"speakers": [name, ...]}, and the bundle as artifacts.
            import   audio: a bundle; options reextract. {"speakers": [speaker, ...], "count": n}

        Raises:
            VoiceCloneError: InvalidArgument for a wrong request; what each operation says; Internal for the rest.
        """
        handler = self._operations.get(operation)
        if handler is None:
            raise InvalidArgument(f"unknown operation {operation!r}; it must be one of {', '.join(self._operations)}")
        try:
            return handler(request)
        except VoiceCloneError:
            raise
        except Exception:
            log.exception("%s failed", operation)
            raise Internal("the speaker cache failed to handle the request") from None

    def close(self) -> None:
        """End the work under way and give the directory up. May be called twice."""
        self._memory.flights.close()
        self._store.close()

    def _upload(self, request: Request) -> Reply:
        check_options(request.options, "wait", "policy", "timeout")
        until = self._until(request)
        if (request.audio is None) == (request.speaker_embedding is None):
            raise InvalidArgument("give exactly one of audio and speaker_embedding")
        immutable = _immutable(request)
        self._registry.check_free(_required_name(request), immutable=immutable)
        if request.audio is not None:
            draft = of_clip(request, request.audio, self._config.clip)
        else:
            draft = self._draft_of_embedding(request, until)
        model_types = self._defaults if request.model_type is None else (self._model_type(request),)
        record = self._registry.add(draft.record, draft.audio, draft.artifacts, immutable)
        self._metrics.count("uploads")
        log.info("registered the voice %r, generation %d", record.name, record.generation)
        self._begin(record, model_types, until if request.options.get("wait") else None)
        return Reply(self._show(self._latest(record)))

    def _draft_of_embedding(self, request: Request, until: float) -> Draft:
        assert request.speaker_embedding is not None
        artifact = ArtifactId(self._model_type(request), X_VECTOR)
        embedding = check_embedding(request.speaker_embedding)
        return of_embedding(request, artifact, *self._extractor.of_embedding(embedding, artifact, until))

    def _get(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "model_type", *_NOT_UPLOAD)
        return Reply(self._show(self._registry.find(_required_name(request))))

    def _list(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "name", "model_type", *_NOT_UPLOAD)
        speakers = [self._show(record) for record in self._registry.records()]
        return Reply({"speakers": speakers, "count": len(speakers)})

    def _delete(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "model_type", *_NOT_UPLOAD)
        record = self._registry.remove(_required_name(request))
        self._metrics.count("deletes")
        log.info("deleted the voice %r, generation %d", record.name, record.generation)
        return Reply({"name": record.name, "generation": record.generation, "deleted": True})

    def _prepare(self, request: Request) -> Reply:
        check_options(request.options, "mode", "force", "timeout")
        check_absent(request, *_NOT_UPLOAD)
        name, model_type, mode = _required_name(request), self._model_type(request), _mode(request)
        until = self._until(request)
        record = self._registry.find(name)
        # An operator who has loaded another checkpoint says so by preparing: the encoder is asked again.
        self._extractor.fingerprint(ArtifactId(model_type, mode or record.natural_mode), until, anew=True)
        if request.options.get("force"):
            resolved = self._extractor.rebuild(name, model_type, mode, until)
        else:
            resolved = self._extractor.registered(name, model_type, mode, True, until)
        assert resolved.record is not None
        result = self._show(resolved.record) | {
            "status": "ready",
            "mode": mode or resolved.record.natural_mode,
            "extraction_ms": resolved.extraction_ms,
        }
        if resolved.status != "miss":
            result["message"] = "already prepared"
        return Reply(result)

    def _resolve(self, request: Request) -> Reply:
        check_options(request.options, "mode", "cache", "timeout")
        check_absent(request, "consent", "description")
        sources = (request.name, request.audio, request.speaker_embedding)
        if sum(source is not None for source in sources) != 1:
            raise InvalidArgument("give exactly one of name, audio and speaker_embedding")
        if request.name is None:
            return self._resolve_inline(request)
        if request.reference_text is not None:
            raise InvalidArgument("reference_text belongs to the upload of a voice; leave it out, or send audio")
        mode = _mode(request)
        use_cache = request.options.get("cache", True)
        resolved = self._extractor.registered(
            request.name, self._model_type(request), mode, use_cache, self._until(request)
        )
        record = resolved.record
        assert record is not None
        result = {
            "name": record.name,
            "embedding_source": record.embedding_source,
            **self._result(resolved, self._model_type(request), mode or record.natural_mode, record.generation),
        }
        if record.reference_text is not None:
            result["reference_text"] = record.reference_text
        return Reply(result, resolved.artifacts)

    def _resolve_inline(self, request: Request) -> Reply:
        check_texts(request)
        mode = _mode(request) or (X_VECTOR if request.reference_text is None else IN_CONTEXT)
        artifact = ArtifactId(self._model_type(request), mode)
        until = self._until(request)
        if request.audio is not None:
            clip = decode(request.audio, self._config.clip)
            resolved = self._extractor.inline(clip, artifact, request.options.get("cache", True), until)
            source = "audio"
        else:
            assert request.speaker_embedding is not None
            if request.reference_text is not None:
                raise InvalidArgument("a ready speaker_embedding allows no reference_text; leave it out, or send audio")
            embedding = check_embedding(request.speaker_embedding)
            tensors, info = self._extractor.of_embedding(embedding, artifact, until)
            resolved = Resolved("hit", None, pack_artifacts(tensors), info.fingerprint)
            source = "direct"
        return Reply(
            {"embedding_source": source, **self._result(resolved, artifact.model_type, mode, 0)}, resolved.artifacts
        )

    def _result(self, resolved: Resolved, model_type: str, mode: str, generation: int) -> dict[str, Any]:
        self._metrics.count({"hit": "hits", "restored": "restores", "miss": "misses"}[resolved.status])
        return {
            "status": resolved.status,
            "model_type": model_type,
            "mode": mode,
            "generation": generation,
            "extraction_ms": resolved.extraction_ms,
            "fingerprint": resolved.fingerprint,
        }

    def _stats(self, request: Request) -> Reply:
        check_options(request.options)
        check_absent(request, "name", "model_type", *_NOT_UPLOAD)
        pools = self._memory.artifacts.stats()
        totals = {name: sum(pool[name] for pool in pools.values()) for name in _TOTALS}
        return Reply(
            {
                **self._metrics.stats(),
                **totals,
                "pools": pools,
                "speakers": len(self._registry.records()),
                "in_flight": len(self._memory.flights),
            }
        )

    def _export(self, request: Request) -> Reply:
        check_options(request.options, "include_audio")
        check_absent(request, "model_type", *_NOT_UPLOAD)
        records = self._registry.records() if request.name is None else [self._registry.find(request.name)]
        names, bundle = self._transfer.pack(records, request.options.get("include_audio", True))
        return Reply({"speakers": names}, bundle)

    def _import(self, request: Request) -> Reply:
        check_options(request.options, "reextract")
        check_absent(request, "name", "model_type", *(name for name in _NOT_UPLOAD if name != "audio"))
        if request.audio is None:
            raise InvalidArgument("audio is missing; give the bundle that an export answered")
        records = self._transfer.unpack(request.audio, request.options.get("reextract", False))
        for record in records:
            self._metrics.count("uploads")
            self._begin(record, self._defaults, None)
        return Reply({"speakers": [self._show(record) for record in records], "count": len(records)})

    def _begin(self, record: SpeakerRecord, model_types: Sequence[str], until: float | None) -> None:
        """Extract what a new speaker lacks, in the background; with `until`, wait for it."""
        if record.embedding_source == "direct":
            return
        wanted = {ArtifactId(model_type, record.natural_mode) for model_type in model_types}
        missing = wanted - set(record.artifacts)
        flights = [self._extractor.start(record, artifact, background=until is None) for artifact in missing]
        if until is None:
            return
        for flight in flights:
            try:
                self._memory.flights.wait(flight, until - time.monotonic())
            except (VoiceCloneError, Superseded) as error:
                log.info("the voice %r is registered, but not ready: %s", record.name, error)

    def _show(self, record: SpeakerRecord) -> dict[str, Any]:
        """A speaker as callers see it."""
        direct = record.embedding_source == "direct"
        wanted = set() if direct else {ArtifactId(model_type, record.natural_mode) for model_type in self._defaults}
        return record.public(self._extractor.states(record, wanted))

    def _latest(self, record: SpeakerRecord) -> SpeakerRecord:
        try:
            return self._registry.current(record)
        except Superseded:  # replaced or deleted already; the caller's upload still happened
            return record

    def _model_type(self, request: Request) -> str:
        if request.model_type is not None:
            return check_word("model_type", request.model_type)
        if len(self._defaults) != 1:
            raise InvalidArgument("model_type is missing; this server serves several or none by default")
        return self._defaults[0]

    def _until(self, request: Request) -> float:
        """When to stop waiting, on the monotonic clock."""
        return time.monotonic() + float(request.options.get("timeout", self._config.extraction_timeout))


def _required_name(request: Request) -> str:
    if request.name is None:
        raise InvalidArgument("name is missing; give the name of a voice")
    return request.name


def _mode(request: Request) -> str | None:
    mode = request.options.get("mode")
    return None if mode is None else check_word("the option mode", mode)


def _immutable(request: Request) -> bool:
    policy = request.options.get("policy", "replace")
    if policy not in ("replace", "immutable"):
        raise InvalidArgument(f"the option policy is {policy!r}; it must be replace or immutable")
    return bool(policy == "immutable")
