"""The operations on registered speakers."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from voice_clone.audio import check_audible, decode
from voice_clone.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Overloaded,
    SpeakerNotFound,
    VoiceCloneError,
    quoted,
)
from voice_clone.lru_cache import scope_of
from voice_clone.speakers import clip_warnings
from voice_clone.speakers.background import Background
from voice_clone.speakers.config import CacheConfig
from voice_clone.speakers.dictionaries import Dictionaries
from voice_clone.speakers.draft import Draft, check_consent, of_alias, of_clip, of_consent, of_embedding
from voice_clone.speakers.encoders import Describer, Encoder, pack_artifacts
from voice_clone.speakers.extraction import Extractor, Resolved
from voice_clone.speakers.flight import Superseded
from voice_clone.speakers.metrics import Metrics
from voice_clone.speakers.name import SpeakerName, parse_name
from voice_clone.speakers.operations import (
    Delete,
    Export,
    Get,
    Import,
    KeepDictionary,
    KeepLoudness,
    List,
    Operation,
    Prepare,
    Presets,
    RecordConsent,
    Reply,
    Resolve,
    ResolveClip,
    ResolveEmbedding,
    ResolvePrompt,
    SetAlias,
    Stats,
    Upload,
    UploadClip,
    UploadEmbedding,
)
from voice_clone.speakers.parsing import CONSENT
from voice_clone.speakers.partial_bundles import PartialBundles
from voice_clone.speakers.record import ArtifactId, SpeakerRecord
from voice_clone.speakers.registry import Registry
from voice_clone.speakers.revisions import revise_newest
from voice_clone.speakers.store import Store
from voice_clone.speakers.styles import Styles
from voice_clone.speakers.tensor_file import Damaged
from voice_clone.speakers.transfer import Transfer
from voice_clone.speakers.voice_states import ArtifactStates, NoOtherProcesses, OtherProcesses, VoiceStates
from voice_clone.turn_pool import PoolClosed, TurnPool

log = logging.getLogger(__name__)
T = TypeVar("T")
_PRESETS_SECONDS = 5.0  # for which a list waits for encoders that have not said yet what their checkpoints bring
_TOTALS = ("bytes", "entries", "evictions", "oversize_skips")  # of both pools together
_WITHOUT_RECORDS = (ResolveClip, ResolveEmbedding, ResolvePrompt, Stats)  # operations that read no record


class SpeakerCache:
    """Registered speakers, with their artifacts in memory and on disk. One instance serves all families. Thread-safe.

    Args:
        store: where speakers persist; used by this instance alone, until `close`.
        encoder: the encoders of all families.
        config: limits.
        model_types: answers the families whose artifacts are made at upload; called at each use. The first is the
            default of a request that names no family.
        on_extraction: called with the seconds of each extraction.
        other_processes: the other processes that keep what they computed of voices.
        traits: answers what the operation `stats` says of the families, of what other processes keep: see `operations`.

    Attributes:
        registry, store: the speakers.
        voice_states: what is kept of them in memory.

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
        other_processes: OtherProcesses | None = None,
        traits: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda kept: {},
    ) -> None:
        self._other_processes = other_processes or NoOtherProcesses()
        self._config = config = config or CacheConfig()
        self._model_types = model_types
        self._traits = traits
        self._metrics = Metrics(on_extraction)
        self.voice_states = VoiceStates(config, self._other_processes)
        self.store = store
        try:
            self.registry = Registry(store, config.max_speakers, self.voice_states.forget)
        except BaseException:
            self.store.close()
            raise
        self._describer = describer = Describer(encoder, self._metrics, self.voice_states.flights, config.clip)
        self._artifact_states = ArtifactStates(self.voice_states, describer)
        self._extractor = Extractor(self.registry, self.store, self.voice_states, describer, config)
        self._dictionaries = Dictionaries(self.registry, store)
        self._styles = Styles(self.registry, store)
        self._transfer = Transfer(self.registry, self.store, describer, config)
        # Clips take a processor each; more at once would keep the requests that need none waiting.
        self._clips = TurnPool(len(os.sched_getaffinity(0)), "clips")
        self._partial_bundles = PartialBundles(config.max_bundle_bytes)
        self._background = Background(
            self.registry, self._extractor, self.voice_states, describer, model_types, config.finish_seconds
        )
        log.info("restored %d voices", len(self.registry.records()))
        self._handlers: dict[type[Operation], Callable[[Any], Reply]] = {
            UploadClip: self._upload_clip,
            UploadEmbedding: self._upload_embedding,
            Get: self._get,
            List: self._list,
            Presets: self._presets,
            Delete: self._delete,
            RecordConsent: self._record_consent,
            KeepDictionary: self._keep_dictionary,
            KeepLoudness: self._keep_loudness,
            SetAlias: self._set_alias,
            Prepare: self._prepare,
            Resolve: self._resolve,
            ResolveClip: self._resolve_clip,
            ResolveEmbedding: self._resolve_embedding,
            ResolvePrompt: self._resolve_prompt,
            Stats: self._stats,
            Export: self._export,
            Import: self._import,
        }

    def call(self, operation: Operation) -> Reply:
        """Do an operation, and answer.

        Raises:
            VoiceCloneError: InvalidArgument where the limits of this server refuse it; what each operation says;
                Internal for the rest.
        """
        try:
            if not isinstance(operation, _WITHOUT_RECORDS):
                self.registry.refresh()
            return self._handlers[type(operation)](operation)
        except VoiceCloneError:
            raise
        except Exception:
            log.exception("%s failed", type(operation).__name__)
            raise Internal("the speaker cache failed to handle the request") from None

    def preload(self, folder: Path) -> None:
        """Register the voices that come with the server. Raises: as `Transfer.preload`."""
        self._transfer.preload(folder)

    def close(self) -> None:
        """End the work under way and release the directory. May be called twice."""
        self._background.close()
        self._clips.shutdown()
        self._partial_bundles.close()
        self.voice_states.flights.close()
        self.store.close()

    def counters(self) -> dict[str, Any]:
        """What `stats` answers except the families; calls nothing outside this cache."""
        pools = self.voice_states.artifacts.stats()
        return {
            **self._metrics.stats(),
            **{name: sum(pool[name] for pool in pools.values()) for name in _TOTALS},
            "pools": pools,
            "speakers": self.registry.count(),
            "in_flight": len(self.voice_states.flights),
            "store": self.store.counters(),
        }

    def _read(self, work: Callable[[], T]) -> T:
        """What is read out of a clip, in the turn of its caller.

        Raises:
            Overloaded: this cache is closed. Also what `work` raises.
        """
        try:
            return self._clips.result(work)
        except PoolClosed:
            raise Overloaded("the speaker cache is closed; the server is stopping") from None

    def _upload_clip(self, upload: UploadClip) -> Reply:
        until = self._until(upload.timeout)
        self._check_upload(upload)
        draft = self._read(partial(of_clip, upload, self._config.clip))
        return self._register(upload, draft, until, upload.style)

    def _upload_embedding(self, upload: UploadEmbedding) -> Reply:
        until = self._until(upload.timeout)
        self._check_upload(upload)
        made = self._extractor.of_embedding(upload.embedding, self._family(upload.model_type), None, until)
        return self._register(upload, of_embedding(upload, *made), until)

    def _check_upload(self, upload: Upload) -> None:
        check_consent(upload.consent, self._config)
        self._check_recording(upload.consent, upload.owner)
        # Before the work begins. Whether a speaker of this name is the same shows only then.
        self.registry.check_free(upload.name, replace=True, allowance=upload.allowance)

    def _check_recording(self, consent: str | None, owner: str | None) -> None:
        """Check that there is the recording that a consent names.

        Raises:
            InvalidArgument: the owner has none of that id.
        """
        if consent is None or not consent.startswith(CONSENT) or " " in consent.strip():
            return
        try:
            self.registry.find(parse_name(consent), owner, kind="consent")
        except (InvalidArgument, SpeakerNotFound):
            raise InvalidArgument(
                f"`consent` is the id of a recording that there is not: {quoted(consent)}; send the id of one, or say "
                "how the speaker agreed"
            ) from None

    def _register(self, upload: Upload, draft: Draft, until: float, style: str | None = None) -> Reply:
        defaults = tuple(self._model_types())
        wanted = defaults if upload.model_type is None else (upload.model_type,)
        if upload.replace and self.registry.has_artifacts(draft.record):  # keep the old one until the new one is ready
            draft = self._background.with_artifacts(draft, wanted, until)
        if style is None:
            record = self.registry.add(draft, upload.replace, upload.allowance)
        else:
            record = self._styles.add(upload, style, draft)
        self._metrics.count("uploads")
        while True:
            self._background.begin(record, wanted, draft.clip, until if upload.wait else None, style or "")
            shown = self.registry.with_clip(record, style or "")
            if not upload.wait or shown.generation == record.generation or time.monotonic() >= until:
                return Reply(self._show(shown, defaults, upload.owner))
            record = shown  # with another style, which ended what this one waited for

    def _get(self, get: Get) -> Reply:
        if get.kind == "dictionary":
            kept, content = self._dictionaries.read(get)
            return Reply(self._show(kept, (), get.owner), content)
        record = self.registry.find(get.name, get.owner, shared=True, kind=get.kind)
        return Reply(self._show(record, self._model_types(), get.owner))

    def _keep_dictionary(self, given: KeepDictionary) -> Reply:
        return Reply(self._show(self._dictionaries.keep(given), (), given.owner))

    def _keep_loudness(self, given: KeepLoudness) -> Reply:
        record = self.registry.find(given.name, given.owner, shared=True)
        artifact = ArtifactId(given.model_type, given.mode, given.style)
        try:
            if record.generation != given.generation or given.style not in record.clips:
                raise Superseded
            with self.registry.holding(record):
                self.registry.note(record, lambda now: now.with_loudness(artifact, float(given.loudness)))
        except Superseded:
            raise SpeakerNotFound(
                f"the voice {given.name.text!r} has another generation now; measure it again"
            ) from None
        return Reply({"name": record.name, "generation": record.generation})

    def _list(self, given: List) -> Reply:
        page = self.registry.page(given.limit, given.after, given.owner, given.kind)
        return Reply(self._show_all(page, given.owner))

    def _presets(self, presets: Presets) -> Reply:
        found = [
            {"name": name, "model_type": family, "registered": self._replaces_preset(name, family, presets.owner)}
            for name, family in self._all_presets(presets.timeout)
        ]
        return Reply({"presets": found})

    def _all_presets(self, timeout: float | None) -> list[tuple[str, str]]:
        """The voices of the checkpoints, each with its family."""
        until = time.monotonic() + (_PRESETS_SECONDS if timeout is None else timeout)
        model_types, found = tuple(self._model_types()), list[tuple[str, str]]()
        self._describer.ask_ahead(model_types)  # all at once
        for model_type in model_types:
            with contextlib.suppress(DeadlineExceeded):
                found += [(name, model_type) for name in self._describer.presets(model_type, until)]
        return found

    def _replaces_preset(self, preset: str, model_type: str, owner: str | None) -> bool:
        """Whether a registered voice of a preset's name speaks in its place: only one that the family can use does."""
        record = self.registry.get(preset, owner)
        if record is None:
            return False
        states = self._artifact_states.of(record, (model_type,)).items()
        return any(key.model_type == model_type and each.state != "unsupported" for key, each in states)

    def _delete(self, delete: Delete) -> Reply:
        if delete.style is not None:
            left = self._styles.remove(delete.name, delete.owner, delete.style)
            self._background.begin(left, tuple(self._model_types()))
            named = {"name": left.name, "generation": left.generation, "style": delete.style}
            return Reply({**named, "deleted": True})
        record = self.registry.remove(delete.name, delete.owner, delete.kind)
        self._metrics.count("deletes")
        log.info("deleted the %s %r, generation %d", record.kind, record.name, record.generation)
        return Reply({"name": record.name, "generation": record.generation, "deleted": True})

    def _record_consent(self, given: RecordConsent) -> Reply:
        if given.audio is None:
            record = self._described_anew(given)
        else:
            self.registry.check_free(given.name, replace=True, allowance=given.allowance, kind="consent")
            draft = self._read(partial(of_consent, given, given.audio, self._config.clip))
            record = self.registry.add(draft, allowance=given.allowance)
        return Reply(self._show(record, (), given.owner))

    def _described_anew(self, given: RecordConsent) -> SpeakerRecord:
        """The recording of a consent, with another description."""

        def change(record: SpeakerRecord) -> Draft:
            clips = {"": self.store.read_audio(record) or b""}
            return Draft(replace(record, description=given.description), clips, {})

        try:
            return revise_newest(self.registry, given.name, given.allowance, "consent", change)
        except Damaged:
            message = f"the recording {given.name.text!r} is damaged; delete it, and record it again"
            raise Internal(message) from None

    def _set_alias(self, given: SetAlias) -> Reply:
        voice = self.registry.get(given.voice.text, given.owner)
        if voice is not None and (voice.key != given.voice.key or voice.owner != given.owner):
            raise InvalidArgument(
                f"the option `voice` names {given.voice.text!r}, which is "
                + ("an alias itself" if voice.key != given.voice.key else "another owner's voice")
                + "; name a voice of this owner"
            )
        if voice is None and given.voice.key not in (preset.casefold() for preset, _ in self._all_presets(None)):
            self.registry.find(given.voice, given.owner)  # fails
        record = self.registry.add(of_alias(given), replace=True, allowance=given.allowance)
        return Reply(self._show(record, (), given.owner))

    def _prepare(self, prepare: Prepare) -> Reply:
        name, model_type, mode = prepare.name, self._family(prepare.model_type), prepare.mode
        until = self._until(prepare.timeout)
        self.registry.find(name, prepare.owner)
        # After another checkpoint was loaded, `prepare` is how the operator announces it: ask the encoder again.
        self._extractor.refresh(name, model_type, mode, until, prepare.style)
        if prepare.force:
            resolved = self._extractor.rebuild(name, model_type, mode, until, prepare.style)
        else:
            resolved = self._extractor.registered(name, model_type, mode, True, until, True, prepare.style)
        self._check_owner(resolved.record, name, prepare.owner, shared=False)
        if resolved.unsaved is not None:
            raise resolved.unsaved
        made = {"status": "ready", "mode": resolved.artifact.mode, "extraction_ms": resolved.extraction_ms}
        result = self._show(resolved.record, self._model_types(), prepare.owner) | made
        if resolved.status != "miss":
            result["message"] = "already prepared"
        return Reply(result)

    def _resolve(self, resolve: Resolve) -> Reply:
        name, model_type = resolve.name, self._family(resolve.model_type)
        try:
            self.registry.find(name, resolve.owner, shared=True)
        except SpeakerNotFound as error:
            if (preset := self._preset_meant(resolve, model_type)) is not None:
                return Reply({"preset": preset})
            others = [other for other in self._model_types() if other != model_type and self._brings(other, name)]
            if not others:
                raise
            raise SpeakerNotFound(f"{error.text}; it is a voice of the `model` {' and '.join(others)}") from None
        until = self._until(resolve.timeout)
        resolved = self._extractor.registered(name, model_type, resolve.mode, resolve.cache, until, style=resolve.style)
        record, clip = resolved.record, resolved.record.clip(resolved.artifact.style)
        self._check_owner(record, name, resolve.owner, shared=True)
        result = self._result(resolved, clip.embedding_source, record.generation, clip.reference_text)
        loudness = self.registry.latest(record).loudness_with(resolved.artifact, resolved.fingerprint)
        known = {} if loudness is None else {"loudness": loudness}
        return Reply({"name": record.name, "digest": clip.digest, **result, **known}, resolved.artifacts)

    def _preset_meant(self, resolve: Resolve, model_type: str) -> str | None:
        """The voice of the family's checkpoint for which the name stands, if it is an alias of one."""
        alias = self.registry.alias(resolve.name)
        if alias is None or alias.voice is None or not alias.serves(resolve.owner, shared=True):
            return None
        presets = self._describer.presets(model_type, self._until(resolve.timeout))
        key = parse_name(alias.voice).key
        return next((preset for preset in presets if preset.casefold() == key), None)

    def _brings(self, model_type: str, name: SpeakerName) -> bool:
        """Whether a checkpoint is known to bring a voice of this name."""
        return any(preset.casefold() == name.key for preset in self._describer.known_presets(model_type))

    def _resolve_clip(self, resolve: ResolveClip) -> Reply:
        model_type, until = self._family(resolve.model_type), self._until(resolve.timeout)
        clip = self._read(partial(decode, resolve.audio, self._config.clip))
        check_audible(clip)
        resolved = self._extractor.inline(clip, resolve, model_type, until)
        warnings = {"warnings": [warning._asdict() for warning in clip_warnings.of_file(clip.losses)]}
        return Reply(self._result(resolved, "audio") | warnings, resolved.artifacts)

    def _resolve_embedding(self, resolve: ResolveEmbedding) -> Reply:
        model_type, until = self._family(resolve.model_type), self._until(resolve.timeout)
        artifact, tensors, info = self._extractor.of_embedding(resolve.embedding, model_type, resolve.mode, until)
        packed = pack_artifacts(tensors)
        scope = scope_of(resolve.owner)
        resolved = Resolved(
            status="hit", artifact=artifact, artifacts=packed, fingerprint=info.fingerprint, scope=scope
        )
        return Reply(self._result(resolved, "direct"), resolved.artifacts)

    def _resolve_prompt(self, resolve: ResolvePrompt) -> Reply:
        model_type, until = self._family(resolve.model_type), self._until(resolve.timeout)
        resolved, record = self._transfer.resolve(resolve.bundle, model_type, resolve.mode, until, resolve.style)
        clip = record.clip(resolved.artifact.style)
        result = self._result(resolved, clip.embedding_source, reference_text=clip.reference_text)
        return Reply(result, resolved.artifacts)

    def _result(
        self, resolved: Resolved, embedding_source: str, generation: int = 0, reference_text: str | None = None
    ) -> dict[str, Any]:
        if resolved.status != "none":
            self._metrics.count({"hit": "hits", "restored": "restores", "miss": "misses"}[resolved.status])
        return {
            "embedding_source": embedding_source,
            "status": resolved.status,
            **{name: value for name, value in resolved.artifact._asdict().items() if value},
            "generation": generation,
            "extraction_ms": resolved.extraction_ms,
            "fingerprint": resolved.fingerprint,
            "origin": resolved.origin,
            "scope": resolved.scope,
            **({} if reference_text is None else {"reference_text": reference_text}),
        }

    def _stats(self, stats: Stats) -> Reply:
        kept = self._other_processes.kept(stats.synthesizers)
        families = {"model_types": list(self._model_types()), **self._traits(kept)}
        return Reply(self.counters() | families | {"kept": kept})

    def _export(self, export: Export) -> Reply:
        return Reply(*self._partial_bundles.read(export, partial(self._transfer.pack, export)))

    def _import(self, given: Import) -> Reply:
        bundle = self._partial_bundles.add(given)
        if bundle is None:
            return Reply(self._show_all((), given.owner))
        records = self._transfer.unpack(replace(given, bundle=bundle))
        model_types = tuple(self._model_types())
        for record in records:
            self._metrics.count("uploads")
            self._background.begin(record, model_types)
        return Reply(self._show_all(records, given.owner))

    def _show_all(self, records: Sequence[SpeakerRecord], owner: str | None) -> dict[str, Any]:
        model_types = tuple(self._model_types())
        return {"speakers": [self._show(record, model_types, owner) for record in records], "count": len(records)}

    def _show(self, record: SpeakerRecord, model_types: Iterable[str], owner: str | None) -> dict[str, Any]:
        """A speaker as this owner sees it, with the states of the artifacts that these families want."""
        return record.public(self._artifact_states.of(record, model_types), owner)

    def _check_owner(self, record: SpeakerRecord, name: SpeakerName, owner: str | None, *, shared: bool) -> None:
        """Check whose speaker was taken in the end: it may have been replaced since it was found."""
        if not record.serves(owner, shared=shared):
            raise SpeakerNotFound(f"no voice is registered under the name {name.text!r}")

    def _family(self, model_type: str | None) -> str:
        """That family; None: the server's default.

        Raises:
            InvalidArgument: there is none.
        """
        if model_type is not None:
            return model_type
        for default in self._model_types():
            return default
        raise InvalidArgument("`model_type` is missing, and this server has no family to take by default; name one")

    def _until(self, timeout: float | None) -> float:
        """When to stop waiting, on the monotonic clock; a timeout of None is the configured one."""
        return time.monotonic() + float(self._config.extraction_timeout if timeout is None else timeout)
