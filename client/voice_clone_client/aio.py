"""The client for asyncio, which is also all that the blocking `client.Client` does; see `backends`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import designs, requests, responses
from .backends import each
from .bundles import ExportedBundle, imported_part
from .clips import Source
from .errors import InvalidArgument, Unsupported, VoiceCloneError
from .fields import Knobs
from .sources import LARGEST_BUNDLE, parts
from .speaking import AsyncSpeaking
from .types import (
    Candidate,
    Candidates,
    Consent,
    Consents,
    Detection,
    Family,
    KeepOptions,
    KeptDictionaries,
    KeptDictionary,
    Names,
    Presets,
    UploadOptions,
    Voice,
    Voices,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(AsyncSpeaking):
    """Voices and speech of one server, or of several that have the same voices. For one event loop.

    `speak` and its like are no coroutines, but need a running event loop: `async for chunk in client.speak(...)`, or
    `await client.speak(...).read()`.

    With several servers, each voice has a home among them, which speaks unless it fails or is much busier than the
    others. A server that fails is left out until it is ready again. A call that it refused, and a speech that it ended
    before the first chunk, are made once more at another server; a speech whose audio has begun ends with
    `ConnectionFailed`. `stats` are those of one of the servers.

    Args:
        url: host:port of the server's gRPC endpoint; several, separated by commas; or `dns:///name:port` for all
            servers that the name has. None takes the variable `VOICE_CLONE_SERVER`, or else localhost:8001.
        model: the model family that speaks: the name of its public model. None takes the server's default, for which
            the client asks once, with the first call that needs it. Most methods take another family for one call.
        timeout: maximum seconds of any call but `speak`; None sets no limit.
        credentials: `tls_credentials(...)` for TLS; None disables encryption.
        headers: sent with every call, e.g. the key of a restricted protocol.
        token: the write token of a server that has one; it is needed to upload, delete, export, import and rebuild
            voices. None takes the variable `VOICE_CLONE_TOKEN`, if it is set; an empty one is none.
        owner: acts for this owner: the voices of others are not there, except those that are shared. None is the
            operator, who sees all.
        max_owned, max_owned_bytes: how many voices the owner may have, and how many bytes of their clips.
        reserved: names that the owner may not give to voices, unless it has them; `x*` are all that begin with x.
        mark: whether its speech is to be marked as synthetic, where the server's setting `mark` is `requested`. With
            `required`, a speech that could not be marked is an error. A server that marks nothing refuses `on` and
            `required`. A server that is older than this parameter ignores it; the speech then ends with
            `Unsupported` at its first chunk. What the server's own setting asks for is done in any case.
        proxy: `http://host:port` of an HTTP proxy to the server. None takes the variable `VOICE_CLONE_PROXY`, if it is
            set, and else connects directly, even if `http_proxy` or the like is set; an empty one connects directly.

    Raises:
        InvalidArgument: `url` or `proxy` is none of these, or `token` is not printable ASCII. The client connects with
            its first call. Each call raises `ConnectionFailed` if the server cannot be reached, `PermissionDenied` if
            it requires a token, and the other `VoiceCloneError`s as its docstring says.
    """

    async def upload(
        self, name: str, audio: Source | Sequence[Source] | None = None, **options: Unpack[UploadOptions]
    ) -> Voice:
        """Register a voice: exactly one of `audio`, `speaker_embedding`.

        If a voice of that name was uploaded just like this one, it stays as it is, and is the answer. So an upload
        whose answer was lost can be repeated.

        Args:
            name: 1-64 letters, digits, spaces, `. _ -`; case does not matter.
            audio: path or bytes of a clip of 1 to 30 s, in the formats of `clips`. A list of at most 25 has recordings
                of one speaker: the speaker embedding is their average, and all else is made of the best one
                (`Voice.takes` has the others).
            **options: see `UploadOptions`.

        Raises:
            InvalidArgument, VoiceExists, QuotaExceeded, Overloaded. An older voice of that name is then unchanged.
        """
        if options.pop("transcribe", False):
            if not audio or options.get("reference_text") is not None:
                raise InvalidArgument("`transcribe` makes the `reference_text` of the `audio`; give that, and no text")
            audio = requests.files_of(audio)
            options["reference_text"] = await self.transcribe(audio[0], required=True)
        return responses.voice(await self._cache("upload", **requests.upload(name, audio, options, self._model)))

    async def design(
        self,
        description: str,
        text: str,
        *,
        seeds: int | Sequence[int] = 3,
        model: str | None = None,
        **knobs: Unpack[Knobs],
    ) -> Candidates:
        """Let a model make voices of a description, and speak a text in each: candidates to hear, then to `keep`.

        Args:
            description: of a voice, in words.
            text: what the candidates say, a sentence or two: the voice is cloned from this speech.
            seeds: how many candidates, or their seeds.
            model: the family; None takes one that was made for it, else the first one that can.
            **knobs: see `Knobs`; a seed among them is ignored.

        Raises:
            InvalidArgument: something is blank, or a seed is given twice.
            Unsupported: no family can, or the named one cannot.
            Incomplete: the model missed the end of a candidate; and as `speak`.
        """
        orders = designs.orders(description, seeds, model or self._model, await self.families(), knobs)
        async with AsyncExitStack() as stack:
            speeches = [await stack.enter_async_context(self.speak(text, **order)) for order in orders]
            heard = [await speech.read() for speech in speeches]  # they are made side by side
        return [designs.candidate(sound, text, description, o) for sound, o in zip(heard, orders, strict=True)]

    async def keep(self, name: str, candidate: Candidate, **options: Unpack[KeepOptions]) -> Voice:
        """Register a candidate of `design` as a voice, which families that clone then speak in. Its record says how it
        was made (`Voice.design`). Args and errors: as `upload`.
        """
        return await self.upload(name, **designs.upload_of(candidate, options))

    async def list(self, *, limit: int | None = None, after: str | None = None) -> Voices:
        """Return the registered voices, by name.

        Args:
            limit: return so many at most; None returns all, page by page.
            after: return only the voices after this name.
        """
        if limit is not None:
            return responses.voices(await self._cache("list", limit=limit, after=after))
        found: Voices = []
        while (
            len(page := await self.list(limit=requests.PAGE, after=found[-1].name if found else after)) == requests.PAGE
        ):
            found += page
        return found + page

    async def presets(self) -> Presets:
        """The voices that the checkpoints of the server's families bring, by family in the checkpoint's order."""
        return responses.presets(await self._cache("presets"))

    async def get(self, name: str) -> Voice:
        """Return one voice; raises VoiceNotFound."""
        return responses.voice(await self._cache("get", name=name))

    async def delete(self, name: str, *, style: str | None = None) -> None:
        """Delete a voice and everything computed from it, or the clip of a style alone; raises VoiceNotFound,
        InvalidArgument."""
        await self._cache("delete", name=name, style=style)

    async def record_consent(
        self, id: str, audio: Source | None = None, *, description: str, language: str | None = None
    ) -> Consent:
        """Keep the recording of a speaker's consent; without `audio`, change its description.

        It is never spoken with. An upload whose `consent` is an id is refused if there is no recording of this id.

        Args:
            id: `cons_` and letters and digits.
            audio: path or bytes of a clip of 1 to 30 s, in the formats of `clips`; with it goes `language`.
            description: free text.
            language: as a BCP 47 tag, such as `en-US`.

        Raises:
            InvalidArgument, VoiceExists, QuotaExceeded, Overloaded. VoiceNotFound: there is no such recording.
        """
        answer = await self._cache("record_consent", name=id, audio=audio, description=description, language=language)
        return responses.consent(answer)

    async def consents(self, *, limit: int = requests.PAGE, after: str | None = None) -> Consents:
        """Return the recordings of consents, sorted by id: at most `limit`, and only those after the id `after`."""
        return responses.consents(await self._cache("list", kind="consent", limit=limit, after=after))

    async def consent(self, id: str) -> Consent:
        """Return the recording of a consent; raises VoiceNotFound."""
        return responses.consent(await self._cache("get", kind="consent", name=id))

    async def delete_consent(self, id: str) -> None:
        """Erase the recording of a consent; voices that name it stay. Raises VoiceNotFound."""
        await self._cache("delete", kind="consent", name=id)

    async def keep_dictionary(
        self, id: str, content: bytes | None = None, *, about: str, generation: int | None = None
    ) -> KeptDictionary:
        """Keep a dictionary of pronunciations, or change it. The server reads neither `content` nor `about`.

        Args:
            id: `dict_` and letters and digits.
            content: 4 MiB at most; without it a dictionary keeps the one that it has.
            about: up to 8192 characters, which lists have, too.
            generation: of the dictionary that changes; None for a new one.

        Raises:
            VoiceExists: there is one of this id, or it has another generation.
            VoiceNotFound: there is no such dictionary.
            InvalidArgument, QuotaExceeded, Overloaded.
        """
        answer = await self._cache("keep_dictionary", name=id, bundle=content, about=about, generation=generation)
        return responses.dictionary(answer)

    async def dictionaries(self, *, limit: int = requests.PAGE, after: str | None = None) -> KeptDictionaries:
        """Return the dictionaries without their content, sorted by id: at most `limit`, those after the id `after`."""
        return responses.dictionaries(await self._cache("list", kind="dictionary", limit=limit, after=after))

    async def dictionary(self, id: str) -> KeptDictionary:
        """Return a dictionary with its content; raises VoiceNotFound."""
        return responses.dictionary(await self._cache("get", kind="dictionary", name=id))

    async def delete_dictionary(self, id: str) -> None:
        """Erase a dictionary with all that it was; raises VoiceNotFound."""
        await self._cache("delete", kind="dictionary", name=id)

    async def keep_loudness(
        self, name: str, loudness: float, *, generation: int, model: str, mode: str, style: str | None = None
    ) -> None:
        """Keep how loud a model speaks in a voice, in LUFS: the `info` of its speech says it from then on.

        Args:
            generation, model, mode, style: of the speech that was measured, as its `info` has them.

        Raises:
            VoiceNotFound: the voice has another generation.
            InvalidArgument: an older server.
        """
        of = {"generation": generation, "mode": mode, "style": style, "loudness": loudness}
        await self._cache("keep_loudness", name=name, model_type=model, **of)

    async def aliases(self) -> dict[str, str]:
        """Return the aliases, which are further names of voices, each with its voice."""
        return responses.aliases(await self._cache("list", kind="alias"))

    async def set_alias(self, alias: str, voice: str) -> None:
        """Give a voice a further name, or an alias another voice; raises VoiceNotFound, VoiceExists.

        Args:
            alias: as the name of a voice, which no voice has.
            voice: a registered voice of the same owner, or a preset.
        """
        await self._cache("set_alias", name=alias, voice=voice)

    async def remove_alias(self, alias: str) -> None:
        """Remove an alias; its voice stays. Raises VoiceNotFound."""
        await self._cache("delete", kind="alias", name=alias)

    async def prepare(
        self,
        name: str,
        force: bool = False,
        *,
        mode: str | None = None,
        timeout: float | None = None,
        model: str | None = None,
        style: str | None = None,
    ) -> Voice:
        """Prepare a voice and wait until it is ready; does nothing if it is ready and `force` is False.

        Args:
            name: of a registered voice.
            force: compute the artifacts again.
            mode: of cloning, `icl` or `x_vector`; None takes the voice's own.
            timeout: seconds to wait, instead of the server's default.
            model: the family for which the voice is prepared; None takes the client's.
            style: of the clip; None takes the first.

        Raises:
            VoiceNotFound, Unsupported, Overloaded, DeadlineExceeded.
        """
        family = await self.family(model)
        answer = await self._cache(
            "prepare", name=name, model_type=family, force=force or None, mode=mode, timeout=timeout, style=style
        )
        return responses.voice(answer)

    async def speaker_embedding(self, name: str, *, model: str | None = None) -> NDArray[np.float32]:
        """The speaker embedding [dimension of the model] of a voice; the server computes it if it is not ready.

        Args:
            name: of a registered voice.
            model: the family whose embedding it is; None takes the client's.

        Raises:
            VoiceNotFound, Overloaded. Unsupported: the family has no speaker embeddings.
        """
        answer = await self._cache("resolve", name=name, model_type=await self.family(model))
        return responses.speaker_embedding(answer)

    async def direction(
        self, neutral: Sequence[Source], other: Sequence[Source], *, model: str | None = None
    ) -> tuple[NDArray[np.float32], str]:
        """The mean speaker embedding of some clips less that of neutral clips of the same speakers, [dimension], and
        the fingerprint of the encoder that made them. `embedding.encoded_direction` makes a file of both.

        Args:
            neutral, other: paths or bytes of clips; the server keeps none of them.
            model: the family whose embeddings they are; None takes the client's.

        Raises:
            InvalidArgument: there is no clip, or one is wrong. Unsupported: the family has no speaker embeddings.
        """
        if not neutral or not other:
            raise InvalidArgument("a direction needs a clip or more of each side, neutral ones and others")
        family, means = await self.family(model), []
        for clips in (neutral, other):
            answers = [await self._cache("resolve", audio=clip, model_type=family, cache=False) for clip in clips]
            means.append(np.mean([responses.speaker_embedding(answer) for answer in answers], axis=0, dtype=np.float64))
        return (means[1] - means[0]).astype(np.float32), str(responses.result(answers[0])["fingerprint"])

    async def models(self) -> Names:
        """The model families of the server; the first is its default.

        Raises:
            Unsupported: the server is too old to list them.
        """
        return responses.models(await self._cache("stats"))

    async def families(self, *, synthesizers: bool = False) -> dict[str, Family]:
        """The model families of the server by name, the default first.

        Args:
            synthesizers: whether each has its `synthesizer`, too; the server then reads its checkpoints, once.

        Raises:
            Unsupported: the server is too old to list them, or to say that.
        """
        try:
            return responses.families(await self._cache("stats", synthesizers=synthesizers or None))
        except InvalidArgument as error:  # it does not know the option
            raise Unsupported(f"the server does not say what makes its sound: {error}") from None

    async def ready(self, *, model: str | None = None) -> bool:
        """Whether a server can be reached where a model family, by default the client's, is ready to speak.

        Raises:
            Unsupported: no family is named, and the server lists none.
        """
        try:
            return await self._servers.ready(await self.family(model), self._timeout)
        except Unsupported:
            raise
        except VoiceCloneError:
            return False

    async def stats(self) -> dict[str, Any]:
        """Counters of the server's voice cache, and its model families."""
        return dict(responses.result(await self._cache("stats")))

    async def export(self, name: str | None = None, *, include_audio: bool = True) -> bytes:
        """One voice, or all, as a bundle for `import_`; raises VoiceNotFound.

        Args:
            name: of the voice; None exports all.
            include_audio: include the clips; a bundle without them is valid for the same checkpoints only.
        """
        return b"".join([part async for part in self.export_parts(name, include_audio=include_audio)])

    async def export_parts(self, name: str | None = None, *, include_audio: bool = True) -> AsyncIterator[bytes]:
        """As `export`, in parts of at most 4 MiB: of the voices as they are when the first part comes.

        Raises:
            VoiceNotFound. Overloaded: the server has lost the bundle, for example as it was started again.
        """
        bundle = ExportedBundle(name=name, include_audio=None if include_audio else False)
        try:
            while bundle.offset < bundle.size:
                yield await self.export_part(bundle)
        finally:
            self.forget_export(bundle)

    async def export_part(self, bundle: ExportedBundle) -> bytes:
        """The next part of a bundle, from its `offset` on. Raises: as `export_parts`, BrokenStream."""
        return bundle.take(await self._cache("export", **bundle.fields()))

    def forget_export(self, bundle: ExportedBundle) -> None:
        """Let the server forget a bundle of which not all is wanted."""

        async def forget() -> None:
            with suppress(VoiceCloneError):
                await self._cache("export", **bundle.fields())

        if bundle.skip():
            self._backend.begin(forget())

    async def import_(self, bundle: Source, reextract: bool = False, *, replace: bool = False) -> Voices:
        """Register the voices of a bundle (path or bytes), all or none, and return them.

        Args:
            bundle: the result of `export`.
            reextract: compute artifacts of another encoder again, from the audio in the bundle.
            replace: replace voices of the same names that differ; otherwise such a voice is an error.

        Raises:
            InvalidArgument: it is no bundle, or requires `reextract`. Overloaded, QuotaExceeded, VoiceExists.
        """
        return await self.import_parts(parts(bundle, LARGEST_BUNDLE), reextract, replace)

    async def import_parts(
        self, bundle: AsyncIterable[bytes] | Iterable[bytes], reextract: bool = False, replace: bool = False
    ) -> Voices:
        """As `import_`, of a bundle in parts: each but the last has `sources.PART` bytes or more."""
        name, index, answer = uuid.uuid4().hex, 0, None
        async for part in each(bundle):
            fields = imported_part(name, index, part)
            answer = await self._cache("import", reextract=reextract or None, replace=replace or None, **fields)
            index += 1
        return responses.voices(answer)

    async def detect(self, audio: Source) -> Detection:
        """Look for the mark of synthetic speech in a sound.

        Args:
            audio: path or bytes of a file: WAV, FLAC, OGG or MP3 of 0.1 s to 10 minutes, or another one that `clips`
                reads.

        Raises:
            InvalidArgument: it cannot be decoded, or is too short or too long.
            Unsupported: the server has no `mark_detector`.
        """
        lack = "this server does not look for marks; serve the model mark_detector, too: docs/provenance.md"
        return responses.detection(await self._optional(requests.detection(audio), lack))

    async def transcribe(self, audio: Source, *, language: str | None = None, required: bool = False) -> str:
        """Write down the words spoken in a clip; an upload takes them as `reference_text`.

        Args:
            audio: path or bytes of a clip of 1 to 30 s, in the formats of `clips`.
            language: such as `en`; None lets the server's model find it out.
            required: a clip without words is an error.

        Raises:
            InvalidArgument: the clip cannot be decoded, is too short or too long, or lacks required words.
            Unsupported: the server has no `transcriber`, or that does not know the language.
        """
        lack = (
            "this server does not write down words; serve the model transcriber, too (serve --with transcriber): "
            "docs/triton_api.md"
        )
        words = responses.transcript(await self._optional(requests.transcription(audio, language), lack))
        if required and not words:
            raise InvalidArgument("no words were recognised in the `audio`; give `reference_text`")
        return words

    async def _optional(self, request: Any, lack: str) -> Any:
        """The answer of an optional model, which may take long. Raises: Unsupported: `lack`, as there is none."""
        try:
            return await self._servers.infer(request, requests.patient(self._timeout))
        except VoiceCloneError as error:
            raise (Unsupported(lack) if "has no model" in str(error) else error) from None
