"""Speech Synthesis Markup: what of it is spoken, what has an effect, and what is refused."""

from __future__ import annotations

import random

import pytest
from voice_clone_text.pieces import Joiner, MarkPlace, Plan, Silence
from voice_clone_text.planner import InputType, Planner, Settings, plan
from voice_clone_text.tags import MOST_BEFORE, MarkupError, is_ssml

from tests.support.text_in_pieces import in_pieces


def speak(inside: str) -> Plan:
    return plan(f"<speak>{inside}</speak>", Settings("ssml"))


def said(found: Plan) -> str:
    """All of a plan; a silence as its milliseconds in brackets."""
    parts = [f"[{item.seconds * 1000:g}]" if isinstance(item, Silence) else item.text for item in found.items]
    return "|".join(parts)


DOCUMENTS = {
    "Hi &amp; you, &#x41;&#66;.": "Hi & you, AB.",
    " One\n  two ": "One two",
    "A <b>bold</b> word": "A bold word",
    "<![CDATA[a < b &amp;]]> c": "a < b &amp; c",
    "one<!-- not --> two": "one two",
    "<p><s>One.</s> <s>Two.</s></p><p>Three.</p>": "One.\nTwo.\n\nThree.",
    "A<break time='500ms'/>B": "A|[500]|B",
    "A <break time='1.5s' strength='none'/> B": "A|[1500]|B",
    "A<break/>B": "A|[500]|B",
    "A<break strength='none'/>B": "A B",
    "A<break strength='x-strong'/><break time='250ms'/>B": "A|[1500]|[250]|B",
    "<sub alias='World Wide Web'>W<b>W</b>W</sub> is": "World Wide Web is",
    "say <say-as interpret-as='characters'>ABC</say-as>!": "say A B C!",
    "a<say-as interpret-as='characters'> A B\nC </say-as> d": "aA B C d",
    "on <say-as interpret-as='date'>1 May</say-as>": "on 1 May",
    "a <phoneme alphabet='ipa' ph='x'>tomato</phoneme>": "a tomato",
    "<desc>no</desc><metadata>no</metadata>yes": "yes",
    "<audio src='http://example.org/a.wav'>a cat</audio>": "a cat",
    "A <prosody rate='slow'>B</prosody> C": "A|B|C",
    "A <prosody rate='100%'>B</prosody> C": "A B C",
    "<voice name='ada'>A</voice><voice name='ada'>B</voice>": "A B",
    "A <mark name='m'/>B": "A B",
    "": "",
}


@pytest.mark.parametrize(("inside", "spoken"), DOCUMENTS.items())
def test_what_is_spoken(inside: str, spoken: str) -> None:
    assert said(speak(inside)) == spoken


@pytest.mark.parametrize("inside", DOCUMENTS)
def test_in_pieces(inside: str) -> None:
    document = f'\ufeff<?xml version="1.0"?>\n<!-- c --><speak xml:lang="en-US">{inside}</speak>\n'
    whole = plan(document)
    assert whole.items or not inside
    for size in (1, 2, 3, 7):
        assert in_pieces(document, Settings(), size) == whole


@pytest.mark.parametrize("inside", DOCUMENTS)
def test_each_prefix_is_a_beginning(inside: str) -> None:
    document = f"<speak>{inside}</speak>"
    whole = "".join(span.text for span in plan(document).spans)
    planner, joiner = Planner(Settings()), Joiner()
    for character in document:
        joiner.add(planner.feed(character))
        assert whole.startswith("".join(span.text for span in joiner.plan().spans))


def test_styles() -> None:
    found = speak(
        "A<voice name='ada'>B<prosody rate='150%' volume='-6dB'>C<prosody rate='-50%' volume='soft'>D</prosody>"
        "</prosody><lang xml:lang='fr-FR'>E</lang></voice>F"
    )
    assert [tuple(span.style)[:4] for span in found.spans] == [
        (None, None, 1.0, 1.0),
        ("ada", None, 1.0, 1.0),
        ("ada", None, 1.5, 0.5012),
        ("ada", None, 0.75, 0.2506),
        ("ada", "fr-FR", 1.0, 1.0),
        (None, None, 1.0, 1.0),
    ]
    assert found.warnings == ()


def test_a_percentage_without_a_sign() -> None:
    document = "<speak><prosody rate='50%'>A</prosody></speak>"
    rates = [plan(document, Settings(relative_rates=relative)).spans[0].style.rate for relative in (False, True)]
    assert rates == [0.5, 1.5]


def test_where_words_and_marks_are_written() -> None:
    document = "<speak>A &lt; B<break/><mark name='m'/>ab <mark name='n'/>cd</speak>"
    found = plan(document)
    first, second = found.spans
    assert document[first.start : first.end] == "A &lt; B"
    assert [document[slice(*each.written)] for each in first.replaced] == ["&lt;"]
    assert document[second.start : second.end] == "ab <mark name='n'/>cd"
    assert found.marks == (MarkPlace("m", 2, 0), MarkPlace("n", 2, 2))


def test_styles_of_a_voice() -> None:
    found = speak(
        "A<voice name='ada' style='happy'>B<voice style='sad'>C</voice><voice name='ben'>D</voice>"
        "<mstts:express-as xmlns:mstts='m' style='cheerful'>E</mstts:express-as>F</voice>"
    )
    clips = [None, "happy", "sad", None, "cheerful,neutral", "happy"]
    assert [span.style.clip for span in found.spans] == clips and found.warnings == ()


@pytest.mark.parametrize(
    ("inside", "word"),
    [
        ("<emphasis>A</emphasis>", "emphasis"),
        ("<phoneme ph='x'>A</phoneme>", "phoneme"),
        ("<prosody pitch='high' range='low'>A</prosody>", "pitch, range"),
        ("<mstts:express-as xmlns:mstts='m' role='Girl'>A</mstts:express-as>", "express-as"),
        ("<blink>A</blink>", "unknown marks"),
        ("A<break time='11s'/>", "10 s"),
        ("A" + "<break time='10s'/>" * 7, "60 s"),
    ],
)
def test_warnings(inside: str, word: str) -> None:
    found = speak(inside)
    assert len(found.warnings) == 1 and word in found.warnings[0] and found.spans[0].text == "A"
    assert sum(item.seconds for item in found.items if isinstance(item, Silence)) <= 60


@pytest.mark.parametrize(
    ("document", "place", "word"),
    [
        ("<speak>a & b</speak>", "line 1, column 11", "token"),
        ("<speak>\n<a></speak>", "line 2, column 6", "tag"),
        ("<speak>\n a < b</speak>", "line 2", ""),
        ("<speak>&b;</speak>", "line 1, column 8", "entity"),
        ("<speak>", "line 1", "<speak>"),
        ("words", "line 1", "<speak>"),
        ("", "line 1", "<speak>"),
        ("<p>words</p>", "line 1", "<speak>"),
        ("<speak/>more", "line 1", "<speak>"),
        ("<speak>\n<break time='soon'/></speak>", "line 2, column 1", "500ms"),
        ("<speak><break strength='odd'/></speak>", "line 1", "x-strong"),
        ("<speak><prosody rate='9'>A</prosody></speak>", "line 1", "0.25 to 4"),
        ("<speak><prosody rate='often'>A</prosody></speak>", "line 1", "fast"),
        ("<speak><prosody volume='99dB'>A</prosody></speak>", "line 1", "+12 dB"),
        ("<speak>\ud800</speak>", "line 1", "surrogate"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><speak>&b;</speak>', "line 1, column 1", "DOCTYPE"),
        ('\n<!DOCTYPE a SYSTEM "file:///etc/passwd"><speak/>', "line 2, column 1", "DOCTYPE"),
    ],
)
def test_documents_that_are_refused(document: str, place: str, word: str) -> None:
    for read in (plan, in_pieces):
        with pytest.raises(MarkupError) as caught:
            read(document, Settings("ssml"))
        assert place in str(caught.value) and word in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">' + "<!ENTITY b '&a;&a;'>" * 30 + "]><speak>&b;</speak>",
        "<speak>" * 150_000,
        "<speak>" + "<p>" * 300_000,
        "<speak>" + "<break/>" * 55_000 + "</speak>",
        "<speak " + "".join(f"a{index}='' " for index in range(100_000)) + "/>",
        "<speak " + "".join(f"a{index}='' " for index in range(70)) + "/>",
        "<speak><!--" + "-" * 1_000_000,
        "<speak><" + "a" * 1_000_000,
        "<speak><a b='" + '"' * 1_000_000,
        "<speak>&" + "a" * 1_000_000,
    ],
)
def test_documents_that_would_cost_much(document: str) -> None:
    with pytest.raises(MarkupError):  # after 5 ms; without the limits some take minutes
        plan(document, Settings("ssml"))


def test_random_fragments() -> None:
    parts = (
        *(
            "<speak>",
            "</speak>",
            "<",
            ">",
            "&",
            ";",
            "&amp;",
            "&#1;",
            "'",
            '"',
            "/>",
            "<!--",
            "-->",
            "<![CDATA[",
            "]]>",
        ),
        *("<break time='1s'/>", "<p>", "</p>", "<voice name='a'>", "</voice>", "<?x", "?>", " a ", "é", "\0", "\ud800"),
    )
    draw = random.Random(7)
    for _ in range(3000):
        text = "<speak>" + "".join(draw.choices(parts, k=draw.randrange(20))) + draw.choice(("", "</speak>"))
        results = []
        for read in (plan, in_pieces):
            try:
                results.append(read(text, Settings("ssml")))
            except MarkupError:
                results.append(Plan(()))
        assert results[0] == results[1]


@pytest.mark.parametrize(
    ("text", "ssml"),
    [
        ("<speak>A</speak>", True),
        ("<speak/>", True),
        ("\ufeff\n <?xml version='1.0'?> <!-- c --> <!-- d --><speak version='1.1'>", True),
        ("<speak", False),
        ("<speaker>", False),
        ("a <speak>", False),
        ("<!-- <speak>", False),
        ("1 < 2", False),
        ("", False),
    ],
)
def test_what_is_taken_for_ssml(text: str, ssml: bool) -> None:
    assert is_ssml(text, final=True) is ssml
    known = [is_ssml(text[:count]) for count in range(len(text) + 1)]
    assert set(known) <= {None, ssml}


def test_ssml_that_begins_late_is_a_text() -> None:
    """Else each character behind ten thousand comments would cost a tenth of a second."""
    for count, ssml in ((580, True), (585, False), (14_000, False)):
        text = "<!---->" * count + "<speak>"
        assert is_ssml(text) is is_ssml(text, final=True) is ssml
    assert is_ssml("<!---->" * 580) is None and is_ssml(" " * MOST_BEFORE + " ") is False


@pytest.mark.parametrize(("kind", "text"), [("text", "<speak>A</speak>"), ("auto", "<speaker> 1 < 2 & 3\r\n\n x ")])
def test_a_text_stays_as_it_is(kind: InputType, text: str) -> None:
    (span,) = plan(text, Settings(kind)).items
    assert not isinstance(span, Silence) and span.text == text and span.replaced == ()


def test_pauses_in_a_text() -> None:
    text = "One. [pause:500ms]Two [pause:1.5s] three [pause:x] [pau"
    assert said(plan(text)) == text
    asked = Settings(inline_pauses=True)
    assert said(plan(text, asked)) == "One. |[500]|Two |[1500]| three [pause:x] [pau"
    assert in_pieces(text, asked) == plan(text, asked)


def test_tags_of_pauses_in_a_text() -> None:
    text = "One. <break time=\"500ms\" />Two <break time='1.5s'/>[pause:1s] <break/> 1 < 2 <break time='x'/> <brea"
    assert said(plan(text, Settings(inline_pauses=True))) == text.replace("[pause:1s]", "|[1000]|")
    asked = Settings(tag_pauses=True)
    spoken = "One. |[500]|Two |[1500]|[pause:1s] <break/> 1 < 2 <break time='x'/> <brea"
    assert said(plan(text, asked)) == spoken
    for size in (1, 3, 7):
        assert in_pieces(text, asked, size) == plan(text, asked)
