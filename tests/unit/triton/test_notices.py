"""Messages between the models of one server."""

from __future__ import annotations

import uuid

from voice_clone.batching.expected import name_of
from voice_clone.triton.notices import Notices, NoticesSender


def test_messages_reach_the_models_that_they_are_for() -> None:
    name = uuid.uuid4().hex
    talker, decoder, other = (Notices(f"{name}_{stage}") for stage in ("talker", "code2wav", "other"))
    sender = NoticesSender(f"{name}_talker", f"{name}_absent", f"{name}_code2wav")
    streams = ["first", "\u00e4" * 1000]
    for stream in streams:
        sender.send(stream)
    for model in (talker, decoder):
        assert model.news() == [name_of(stream) for stream in streams] and not model.news()
    assert not other.news()
    for model in (talker, decoder, other):
        model.close()
    sender.send("nobody reads it")
    sender.close()


def test_many_messages_make_no_sender_wait() -> None:
    """A model that does not read them may miss the later ones."""
    name = uuid.uuid4().hex
    model, sender = Notices(name), NoticesSender(name)
    for number in range(10_000):
        sender.send(str(number))
    found: list[str] = []
    while news := model.news():
        found += news
    assert found and found == [name_of(str(number)) for number in range(len(found))]
    sender.send("again")
    assert model.news() == [name_of("again")]
    model.close()
    sender.close()


def test_a_model_that_is_loaded_again_gets_them_when_the_old_one_has_gone() -> None:
    name = uuid.uuid4().hex
    old, new, sender = Notices(name), Notices(name), NoticesSender(name)
    sender.send("first")
    assert new.news() == [] and old.news() == [name_of("first")]
    old.close()
    assert new.news() == []
    sender.send("second")
    assert new.news() == [name_of("second")]
    new.close()
    sender.close()
