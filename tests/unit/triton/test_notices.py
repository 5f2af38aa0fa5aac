"""Messages between the models of one server."""

from __future__ import annotations

import uuid

from voice_clone.triton.notices import LONGEST, MOST, Notices, NoticesSender


def test_messages_reach_the_models_that_they_are_for() -> None:
    name = uuid.uuid4().hex
    talker, decoder, other = (Notices(f"{name}_{stage}") for stage in ("talker", "code2wav", "other"))
    sender = NoticesSender(f"{name}_talker", f"{name}_absent", f"{name}_code2wav")
    for stream in ("first", "ä" * LONGEST):
        sender.send(stream)
    for model in (talker, decoder):
        first, second = model.news()
        assert first == "first" and 0 < len(second.encode()) <= LONGEST + 3 and set(second) <= {"ä", "\ufffd"}
        assert not model.news()
    assert not other.news()
    for model in (talker, decoder, other):
        model.close()
    sender.send("nobody reads it")
    sender.close()


def test_many_messages_make_no_sender_wait() -> None:
    """A model that does not read them misses some, and reads the others in pieces."""
    name = uuid.uuid4().hex
    model, sender = Notices(name), NoticesSender(name)
    for number in range(10_000):
        sender.send(str(number))
    pieces = []
    while found := model.news():
        pieces.append(len(found))
    assert 0 < sum(pieces) < 10_000 and max(pieces) <= MOST
    sender.send("again")
    assert model.news() == ["again"]
    model.close()
    sender.close()


def test_a_model_that_is_loaded_again_gets_them_when_the_old_one_has_gone() -> None:
    name = uuid.uuid4().hex
    old, new, sender = Notices(name), Notices(name), NoticesSender(name)
    sender.send("first")
    assert new.news() == [] and old.news() == ["first"]
    old.close()
    assert new.news() == []
    sender.send("second")
    assert new.news() == ["second"]
    new.close()
    sender.close()
