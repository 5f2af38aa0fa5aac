"""Their dictionaries of pronunciations: kept by the server beside the voices, in versions that never change.

Three fields are ours: `default`, with which a dictionary is for speech that does not name it, and `voice` and
`language`, to which that speech is then limited. So is the deletion; with theirs a dictionary is archived.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import Form, Query, Request, Response, UploadFile
from pydantic import Field
from voice_clone_client import InvalidArgument, KeptDictionary, VoiceExists, VoiceNotFound
from voice_clone_client.types import MAX_NAME
from voice_clone_text.dictionary import MOST_ALIAS, MOST_RULES, MOST_TERM, Rule
from voice_clone_text.pls import read, write

from ...http.audit import recorded
from ...http.errors import HTTPFailure
from ...services import services_of
from ...speech.dictionaries import all_kept
from ...speech.kept_dictionaries import MOST_BYTES, About, Kept, Version, packed, versions_of
from ...voices.ids import voice_name
from ..orders import Lenient
from ..vendor import adapter

router = adapter()
manage = adapter("manage")
PATH = "/v1/pronunciation-dictionaries"
MOST = 100  # of a page
TRIES = 20  # of a change while others change the same dictionary
_ID = re.compile(r"dict_[0-9a-z]{1,59}")

Title = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=1024)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Change = Callable[[Sequence[Rule]], Sequence[Rule]]


class RuleOf(Lenient):
    """A rule: an alias, or phonemes, which are kept and have no effect."""

    type: Literal["alias", "phoneme"]
    string_to_replace: Annotated[str, Field(min_length=1, max_length=MOST_TERM)]
    alias: Annotated[str, Field(max_length=MOST_ALIAS)] | None = None
    phoneme: Annotated[str, Field(min_length=1, max_length=MOST_ALIAS)] | None = None
    alphabet: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] = "ipa"
    case_sensitive: bool | None = None
    word_boundaries: bool | None = None

    def rule(self) -> Rule:
        """The rule.

        Raises:
            InvalidArgument: it says nothing.
        """
        if getattr(self, self.type) is None:
            raise InvalidArgument(f"`rules`: the one of {self.string_to_replace[:40]!r} has no {self.type}; give one")
        options = self.case_sensitive is not False, self.word_boundaries is not False
        if self.type == "alias":
            return Rule(self.string_to_replace, self.alias or "", *options)
        return Rule(self.string_to_replace, "", *options, self.phoneme, self.alphabet)


class Rules(Lenient):
    """Rules to add or to set."""

    rules: Annotated[list[RuleOf], Field(max_length=MOST_RULES)]

    def all(self) -> list[Rule]:
        return [each.rule() for each in self.rules]


class Removed(Lenient):
    """The terms of rules to remove."""

    rule_strings: Annotated[list[str], Field(max_length=MOST_RULES)]


class Details(Lenient):
    """What may change without a new version."""

    name: Title | None = None
    description: Text | None = None
    archived: bool | None = None
    default: bool | None = None
    voice: Name | None = None
    language: Name | None = None

    async def change(self, request: Request, about: About) -> About:
        """What is known of the dictionary then."""
        given = {name: getattr(self, name) for name in ("name", "description", "default", "language")}
        if self.voice is not None:
            given["voice"] = await voice_name(request, self.voice)
        changed: dict[str, Any] = {
            name: None if value == "" else value for name, value in given.items() if value is not None
        }
        if self.archived is not None:
            changed["archived"] = (about.archived or time.time()) if self.archived else None
        return about.model_copy(update=changed)


class FromRules(Rules, Details):
    """The body of a new dictionary."""

    name: Title


class FromFile(Details):
    """The form of a new dictionary."""

    name: Title
    file: UploadFile


@manage.post(f"{PATH}/add-from-rules")
async def add_from_rules(body: FromRules, request: Request) -> dict[str, Any]:
    """`pronunciation_dictionaries.create_from_rules`."""
    return await _add(request, body, body.all())


@manage.post(f"{PATH}/add-from-file")
async def add_from_file(
    request: Request, form: Annotated[FromFile, Form(media_type="multipart/form-data")]
) -> dict[str, Any]:
    """`pronunciation_dictionaries.create_from_file`."""
    data = await form.file.read()
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        async with services_of(request).after_speech.turn():
            lexicon = await asyncio.to_thread(read, data)
    except ValueError as error:
        raise HTTPFailure(400, f"file: this is no PLS: {error}", "invalid_pls", param="file") from None
    if form.language is None and lexicon.language != "und":
        form.language = lexicon.language
    return await _add(request, form, lexicon.rules)


@router.get(PATH)
async def list_dictionaries(
    request: Request,
    cursor: str | None = None,
    page_size: Annotated[int, Query(ge=1, le=MOST)] = 30,
    sort: Literal["creation_time_unix", "created_at_unix", "name"] = "creation_time_unix",
    sort_direction: Literal["ascending", "descending", "ASCENDING", "DESCENDING"] = "descending",
    include_archived: bool = False,
) -> dict[str, Any]:
    """`pronunciation_dictionaries.list`."""
    found = [kept for kept in await all_kept(request.state.client) if include_archived or kept.about.archived is None]

    def place(kept: Kept) -> tuple[Any, str]:
        return (kept.about.name if sort == "name" else kept.created_at), kept.id

    found.sort(key=place, reverse=sort_direction.lower() == "descending")
    begin = next((index + 1 for index, kept in enumerate(found) if kept.id == cursor), 0)
    if cursor and not begin:
        raise HTTPFailure(400, "cursor: it is none of this list; begin without one", "invalid_argument", param="cursor")
    page, more = found[begin : begin + page_size], len(found) > begin + page_size
    shown = [_described(request, kept) for kept in page]
    return {"pronunciation_dictionaries": shown, "next_cursor": page[-1].id if more else None, "has_more": more}


@manage.get(f"{PATH}/{{id}}")
async def get(id: str, request: Request) -> Response:
    """`pronunciation_dictionaries.get`."""
    with _in_their_words(id):
        found = await request.state.client.dictionary(id)
    shown = _described(request, _kept(found))

    def whole() -> bytes:  # FastAPI would take long for so many objects, and let nothing else run
        rules = [_rule(rule) for rule in versions_of(found)[0].rules()]
        return json.dumps({**shown, "rules": rules}).encode()

    return Response(await asyncio.to_thread(whole), media_type="application/json")


@manage.patch(f"{PATH}/{{id}}")
async def update(id: str, body: Details, request: Request) -> dict[str, Any]:
    """`pronunciation_dictionaries.update`: the version stays."""
    return _described(request, await _change(request, id, body))


@manage.delete(f"{PATH}/{{id}}")
async def delete(id: str, request: Request) -> dict[str, Literal["ok"]]:
    """Erase a dictionary with all its versions."""
    with recorded(request, "delete", id), _in_their_words(id):
        await request.state.client.delete_dictionary(id)
    services_of(request).dictionaries.forget(request.state.client.owner, id)
    return {"status": "ok"}


@manage.get(f"{PATH}/{{id}}/{{version}}/download")
async def download(id: str, version: str, request: Request) -> Response:
    """`pronunciation_dictionaries.download`."""
    with _in_their_words(id):
        found = await request.state.client.dictionary(id)
    chosen = next((each for each in versions_of(found) if each.id == version), None)
    if chosen is None:
        raise _not_found(f"there is no version {version[:64]!r} of the dictionary {id!r} any more")
    language = _kept(found).about.language
    file = await asyncio.to_thread(lambda: write(chosen.rules(), language).encode())
    headers = {"Content-Disposition": f'attachment; filename="{id}.pls"'}
    return Response(file, media_type="application/pls+xml", headers=headers)


@manage.post(f"{PATH}/{{id}}/set-rules")
async def set_rules(id: str, body: Rules, request: Request) -> dict[str, Any]:
    """`pronunciation_dictionaries.rules.set`."""
    rules = body.all()
    return _version(await _change(request, id, change=lambda _: rules))


@manage.post(f"{PATH}/{{id}}/add-rules")
async def add_rules(id: str, body: Rules, request: Request) -> dict[str, Any]:
    """`pronunciation_dictionaries.rules.add`: in place of those of the same terms."""
    rules = body.all()
    terms = {rule.term for rule in rules}
    return _version(await _change(request, id, change=lambda old: [*_without(old, terms), *rules]))


@manage.post(f"{PATH}/{{id}}/remove-rules")
async def remove_rules(id: str, body: Removed, request: Request) -> dict[str, Any]:
    """`pronunciation_dictionaries.rules.remove`."""
    return _version(await _change(request, id, change=lambda old: _without(old, {*body.rule_strings})))


async def _add(request: Request, details: Details, rules: Sequence[Rule]) -> dict[str, Any]:
    """Keep a new dictionary."""
    id = f"dict_{time.time_ns() // 10**6:012x}{secrets.token_hex(8)}"  # ids are in the order of their time
    with recorded(request, "dictionary", id), _in_their_words(id):
        about = await details.change(request, About(name=details.name or ""))
        async with services_of(request).after_speech.turn():
            about, content = await asyncio.to_thread(_changed, about, (), rules)
            found = await request.state.client.keep_dictionary(id, content, about=about.model_dump_json())
    services_of(request).dictionaries.forget(request.state.client.owner)
    kept = _kept(found)
    return {**_described(request, kept), "version_id": kept.about.version, "version_rules_num": kept.about.rules}


async def _change(request: Request, id: str, details: Details | None = None, change: Change | None = None) -> Kept:
    """Change what is known of a dictionary, or its rules: none of what others change meanwhile is lost."""
    client = request.state.client
    with recorded(request, "dictionary", id), _in_their_words(id):
        for _ in range(TRIES):
            async with services_of(request).after_speech.turn():
                found: KeptDictionary = await client.dictionary(id)
                about, content = _kept(found).about, None
                if details is not None:
                    about = await details.change(request, about)
                if change is not None:
                    about, content = await asyncio.to_thread(_renewed, about, found, change)
                try:
                    changed = await client.keep_dictionary(
                        id, content, about=about.model_dump_json(), generation=found.generation
                    )
                except VoiceExists:  # it has another generation by now
                    continue
            services_of(request).dictionaries.forget(request.state.client.owner)
            return _kept(changed)
        raise HTTPFailure(503, "the dictionary is changed all the time; send its changes one after the other", "busy")


def _renewed(about: About, found: KeptDictionary, change: Change) -> tuple[About, bytes]:
    versions = versions_of(found)
    return _changed(about, versions, change(versions[0].rules()))


def _changed(about: About, versions: Sequence[Version], rules: Sequence[Rule]) -> tuple[About, bytes]:
    """What is known of a dictionary and its content, with these rules as its newest version."""
    version = Version.of(rules)
    about = about.model_copy(update={"version": version.id, "rules": version.number})
    return about, packed([version, *versions])


def _without(rules: Sequence[Rule], terms: set[str]) -> list[Rule]:
    return [rule for rule in rules if rule.term not in terms]


def _kept(found: KeptDictionary) -> Kept:
    kept = Kept.of(found)
    if kept is None:
        raise _not_found(f"no gateway has written the dictionary {found.id!r}")
    return kept


@contextmanager
def _in_their_words(id: str) -> Iterator[None]:
    """The server's errors about the dictionary of this id."""
    try:
        if not _ID.fullmatch(id):
            raise VoiceNotFound(id)
        yield
    except VoiceNotFound:
        raise _not_found(f"there is no dictionary {id[:64]!r}; GET {PATH} lists those that there are") from None


def _not_found(text: str) -> HTTPFailure:
    return HTTPFailure(404, text, "pronunciation_dictionary_not_found")


def _described(request: Request, kept: Kept) -> dict[str, Any]:
    about = kept.about
    return {
        "id": kept.id,
        "name": about.name,
        "description": about.description,
        "latest_version_id": about.version,
        "latest_version_rules_num": about.rules,
        "permission_on_resource": "admin",
        "created_by": kept.owner or request.state.key.name or "anyone",
        "creation_time_unix": int(kept.created_at),
        "archived_time_unix": None if about.archived is None else int(about.archived),
        "default": about.default,
        "voice": about.voice,
        "language": about.language,
    }


def _version(kept: Kept) -> dict[str, Any]:
    return {"id": kept.id, "version_id": kept.about.version, "version_rules_num": kept.about.rules}


def _rule(rule: Rule) -> dict[str, Any]:
    options = {"case_sensitive": rule.case_sensitive, "word_boundaries": rule.word_boundaries}
    said = {"type": "alias", "alias": rule.alias}
    if rule.phoneme is not None:
        said = {"type": "phoneme", "phoneme": rule.phoneme, "alphabet": rule.alphabet}
    return {"string_to_replace": rule.term, **said, **options}
