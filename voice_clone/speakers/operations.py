"""The operations of the speaker cache: one frozen dataclass for each, which parsing.py makes of a request.

A request is the name of an operation, inputs and options. In a dataclass, None stands for a choice that the caller left
open, never for an input that the operation needs.

A speaker is shown as a dictionary (`get`): name, generation, created_at, embedding_source; where they exist
consent, description, reference_text, mime_type, file_size, duration, sample_rate, embedding_dim, design,
design_model, design_seed, report (see `ClipReport`), warnings [{code, message}], owner, shared; artifacts
[{model_type, mode, state, reason?, extraction_ms?, fingerprint?}]; and, where it has further clips, styles {name: the
same of that clip}. The state is `pending`, `processing`, `ready`, `failed`, or `unsupported`: it lacks what the family
needs.

The option `owner` of any operation says for whom the caller acts. That caller does not see the speakers of others,
except that `get`, `list` and `resolve` find those that are shared. Without it the caller is the operator.

    upload   name, audio or speaker_embedding, reference_text?, consent?, description?, model_type?; options
             wait (for artifacts), timeout, replace, shared, max_owned (how many the owner may have), max_owned_bytes
             (of the files of their clips; all that takes max_owned takes it), reserved (names that the owner may not
             give, unless it has them; `x*` are all that begin with x); with audio
             trim_silence (at its ends), strict (refuses a clip with warnings), and design, design_model and
             design_seed (see `SpeakerRecord`), all or none. The speaker. A name that is taken is refused, unless
             `replace` is true, or the speaker of that name was uploaded just as this one: then it stays as it is.
             With the option style the clip becomes a further one of a speaker that there is, as a new generation of
             it; `replace` then replaces the clip of that style alone. `neutral` is the style of the first clip.
             With the option takes (the sizes in bytes), audio has several recordings of the speaker, one file behind
             the other, whose speaker embeddings are averaged. All else is made of one of them, the clip: the first if
             there is a reference_text, which is that of the first, else the one with the fewest warnings and the most
             speech.
    get      name; option kind (`voice`, which is the default, `consent`, `alias` or `dictionary`). The speaker, also by
             an alias. Of a dictionary its content, too, as artifacts.
    list     options limit, after, kind. {"speakers": [speaker, ...], "count": n}, by name; the first `limit` behind the
             name `after`.
    presets  option timeout. {"presets": [{"name", "model_type", "registered"}, ...]}: the voices that the checkpoints
             of the families bring, which can be spoken and neither changed nor deleted; `registered`: whether a speaker
             of that name, which this owner may use, is spoken in its place. A family whose encoder does not say in time
             (5 s) what its checkpoint brings is left out.
    delete   name; option kind. {"name", "generation", "deleted": true}. With the option style, only that clip of a
             speaker, which goes on as a new generation. {"name", "generation", "style", "deleted": true}
    record_consent  name: its id, which begins with `cons_`; audio, description, and option language: a new recording
             of a speaker's consent. Without audio and language the description changes. Option max_owned.
             The `consent` of an upload that begins with `cons_` must be the id of such a recording.
    set_alias  name; option voice: for which it stands from now on, a speaker of the same owner, or what a checkpoint
             brings. It takes the place of an alias, and of nothing else. Options max_owned, reserved.
    keep_dictionary  name: its id, which begins with `dict_`; audio: the content of a dictionary of pronunciations, at
             most 4 MiB, and option about: what its keeper says of it. Nothing here reads either. With option
             generation, the dictionary of that generation changes, and keeps its content if there is no audio; where it
             has another one, the change is refused. Option max_owned.
    keep_loudness  name, model_type; options mode, generation, style, loudness: in LUFS, how loud this family speaks in
             this voice. It is kept with the voice until that is replaced or the family has another checkpoint. A
             gateway has measured it; `resolve` answers it.
    prepare  name, model_type?; options mode, style, force, timeout. The speaker, with "status": "ready", "mode",
             "extraction_ms", and "message": "already prepared" if there was nothing to do.
    resolve  one of name, audio, speaker_embedding, voice_prompt; model_type?; reference_text? with audio; options mode,
             cache, timeout, and with name or voice_prompt style: a name, or several with commas between them, of which
             the first that there is counts. The artifacts, and {"status": "hit" | "restored" | "miss" | "none",
             "model_type", "mode", "style"?, "generation", "embedding_source", "extraction_ms", "fingerprint", "origin",
             "scope", "name"?, "reference_text"?, "loudness"?}. Other processes file what they compute of the artifacts
             under `origin`, drop it by that, and find it within `scope` alone: what comes of an owner's clip is found
             for this owner.
    stats    option synthesizers. Counters, sizes of the pools, histogram of extraction seconds; "model_types", the
             default first; "instructions", by family the option that takes them; "voiceless", the families that need no
             voice; "options", by family what each is; "languages", by family, where the checkpoint does not decide;
             "max_characters", by family, of a piece of text that it speaks well, if it says so;
             "kept": {model: {"entries", "bytes", "voices"} that it keeps of voices, or null if it did not answer}. With
             the option: in "kept" the "digest" of each model that knows it yet, for which it reads its checkpoint once;
             and "synthesizers", by family, the digest of all that makes its sound.
    export   name?; options include_audio, id, offset. {"speakers": [name, ...], "size": of the bundle in bytes,
             "digest": of it}, and the bundle as artifacts; with the option `id`, which no other bundle has, 4 MiB of it
             at most. The bundle is made with the first part; the next call, with the same `id`, has the bytes from
             `offset` on. It is forgotten with its last part, with an `offset` at its end, and after ten minutes.
    import   audio: a bundle; options reextract, replace, max_owned, reserved. {"speakers": [speaker, ...], "count": n}.
             For names that are taken the rule is that of `upload`; all speakers are registered, or none. A large bundle
             comes in parts, one after the other: each has a `name` that no other bundle has, and the options part (0,
             1, ...) and more (whether one follows). Only the last one registers speakers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.speakers.name import ReservedNames, SpeakerName
from voice_clone.speakers.record import Kind

Embedding = NDArray[np.float32]


@dataclass(frozen=True)
class Allowance:
    """What a caller may register.

    Attributes:
        owner: for whom it acts; None: the operator.
        most, most_bytes: speakers that the owner may have, and bytes of their clips; None: any number.
        reserved: names that only the operator gives, unless the owner has a speaker of that name already.
    """

    owner: str | None = None
    most: int | None = None
    reserved: ReservedNames = field(default_factory=ReservedNames)
    most_bytes: int | None = None


ANYTHING = Allowance()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What all operations have.

    Attributes:
        owner: for whom the caller acts; None: the operator.
    """

    owner: str | None


@dataclass(frozen=True, kw_only=True)
class Upload(Operation):
    """Register a speaker. Abstract: of a clip, or of an embedding.

    Attributes:
        consent, description: texts, if there are any.
        model_type: the only family whose artifacts are made; None: all that are made by default.
        wait: whether the answer waits for the artifacts.
        timeout: seconds to wait; None: as the server is configured.
        shared: whether other owners may use the speaker.
        replace: a speaker of that name, which differs, goes; otherwise it is an error.
        allowance: what the caller may register.
    """

    name: SpeakerName
    consent: str | None
    description: str | None
    model_type: str | None
    wait: bool
    timeout: float | None
    shared: bool
    replace: bool
    allowance: Allowance


@dataclass(frozen=True, kw_only=True)
class UploadClip(Upload):
    """Register a speaker by a clip.

    Attributes:
        audio: an encoded clip or its data URL.
        reference_text: its transcript, if there is one.
        trim_silence: cut off the silence at its ends.
        strict: refuse a clip that has warnings.
        design, design_model, design_seed: as of `SpeakerRecord`.
        style: the clip is a further one of a speaker that there is; "": its first one; None: of a speaker of its own.
        takes: the sizes of the files in `audio`, where it has several recordings of the speaker.
    """

    audio: bytes
    reference_text: str | None
    trim_silence: bool
    strict: bool
    design: str | None
    design_model: str | None
    design_seed: int | None
    style: str | None = None
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class UploadEmbedding(Upload):
    """Register a speaker by a ready embedding, float32 [dimension], finite."""

    embedding: Embedding


@dataclass(frozen=True, kw_only=True)
class RecordConsent(Operation):
    """Keep the recording of a consent; without audio, give it another description.

    Attributes:
        language: as a BCP 47 tag; None where there is no audio.
        allowance: what the caller may register.
    """

    name: SpeakerName
    audio: bytes | None
    description: str
    language: str | None
    allowance: Allowance


@dataclass(frozen=True, kw_only=True)
class KeepDictionary(Operation):
    """Keep a dictionary of pronunciations, or change it.

    Attributes:
        content: None keeps that of the older generation.
        about: what its keeper says of it.
        generation: of the dictionary that changes; None: it is a new one.
        allowance: what the caller may register.
    """

    name: SpeakerName
    content: bytes | None
    about: str
    generation: int | None
    allowance: Allowance


@dataclass(frozen=True, kw_only=True)
class KeepLoudness(Operation):
    """Keep how loud a family speaks in a voice.

    Attributes:
        model_type, mode: of the artifacts with which it spoke.
        generation: of the voice.
        loudness: in LUFS.
        style: of the clip.
    """

    name: SpeakerName
    model_type: str
    mode: str
    generation: int
    loudness: float
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class SetAlias(Operation):
    """Give a speaker a further name.

    Attributes:
        voice: the speaker.
        allowance: what the caller may register.
    """

    name: SpeakerName
    voice: SpeakerName
    allowance: Allowance


@dataclass(frozen=True, kw_only=True)
class Get(Operation):
    """Show a speaker, or what else is kept."""

    name: SpeakerName
    kind: Kind = "voice"


@dataclass(frozen=True, kw_only=True)
class List(Operation):
    """Show speakers by name.

    Attributes:
        limit: how many; None: all.
        after: the key behind which they begin; "": at the first one.
    """

    limit: int | None
    after: str
    kind: Kind = "voice"


@dataclass(frozen=True, kw_only=True)
class Presets(Operation):
    """Show the voices that the checkpoints of the families bring.

    Attributes:
        timeout: seconds to wait for encoders that have not said yet; None: five.
    """

    timeout: float | None


@dataclass(frozen=True, kw_only=True)
class Delete(Operation):
    """Delete a speaker, or what else is kept; with `style`, that clip of a speaker alone."""

    name: SpeakerName
    kind: Kind = "voice"
    style: str | None = None


@dataclass(frozen=True, kw_only=True)
class ForFamily(Operation):
    """What the operations have that find or make artifacts.

    Attributes:
        model_type: the family; None: the server's default.
        mode: of the artifacts; None: the best one that the voice allows.
        timeout: seconds to wait; None: as the server is configured.
        style: of the clip, as `SpeakerRecord.style_meant` reads it.
    """

    model_type: str | None
    mode: str | None
    timeout: float | None
    style: str | None = None


@dataclass(frozen=True, kw_only=True)
class Prepare(ForFamily):
    """Make artifacts of a speaker; with `force` again, as a new generation."""

    name: SpeakerName
    force: bool


@dataclass(frozen=True, kw_only=True)
class Resolve(ForFamily):
    """Answer artifacts of a registered speaker; `cache` False neither asks nor fills the memory."""

    name: SpeakerName
    cache: bool


@dataclass(frozen=True, kw_only=True)
class ResolveClip(ForFamily):
    """Answer artifacts of a clip that is not registered.

    Attributes:
        audio, reference_text: as of `UploadClip`.
        cache: False neither asks nor fills the memory.
    """

    audio: bytes
    reference_text: str | None
    cache: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolveEmbedding(ForFamily):
    """Answer artifacts of a ready embedding, as of `UploadEmbedding`."""

    embedding: Embedding


@dataclass(frozen=True, kw_only=True)
class ResolvePrompt(ForFamily):
    """Answer the artifacts in a bundle of one speaker."""

    bundle: bytes


@dataclass(frozen=True, kw_only=True)
class Stats(Operation):
    """Show counters.

    Attributes:
        synthesizers: whether to answer what makes the sound of each family.
    """

    synthesizers: bool = False


@dataclass(frozen=True, kw_only=True)
class Export(Operation):
    """Answer a bundle of one speaker; `name` None: of all speakers of the owner.

    Attributes:
        id: of the bundle, if it is answered in parts; any that no other one has.
        offset: where the part begins. At 0 the bundle is made; later ones need the `id` alone.
    """

    name: SpeakerName | None
    include_audio: bool
    id: str = ""
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Import(Operation):
    """Register the speakers of a bundle.

    Attributes:
        reextract: drop artifacts of another checkpoint where there is audio to make them again.
        replace, allowance: as of `Upload`.
        name: of the bundle, if it comes in parts; any that no other one has.
        part: the number of this part, from 0.
        more: whether another part follows. The answer to this one has no speakers then.
    """

    bundle: bytes
    reextract: bool
    replace: bool
    allowance: Allowance
    name: str = ""
    part: int = 0
    more: bool = False


@dataclass(frozen=True)
class Reply:
    """The answer of an operation: `result` fit for JSON, and for some operations `artifacts` (safetensors bytes)."""

    result: dict[str, Any]
    artifacts: bytes | None = None
