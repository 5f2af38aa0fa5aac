"""All that a text can have at once, whole and in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from voice_clone_text.dictionary import Dictionary, Rule, Scoped
from voice_clone_text.numbers import Normalize
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings, plan

from tests.support.text_in_pieces import in_pieces

PARTS = [
    *(
        "a",
        "5",
        "10%",
        "etc.",
        "Then",
        "$3",
        "3.",
        "VI",
        "„5",
        "5\u00a0%",
        "SQL",
        "cafe\u0301",
        "New",
        "York",
        "City",
        "京都",
    ),
    *("&amp;", "&#53;", "<b>", "</b>", "<break/>", "<break time='0s'/>", "<p>", "</p>", "<s>", "</s>", "<!-- c -->"),
    *("<mark name='m'/>", "<sub alias='x 5'>", "</sub>", "<prosody rate='1.0'>", "</prosody>", "<lang xml:lang='de'>"),
    *(
        "</lang>",
        "<voice name='v'>",
        "</voice>",
        "<![CDATA[5 cats]]>",
        "<say-as interpret-as='characters'>",
        "</say-as>",
    ),
]
RULES = Dictionary(
    [
        *(Rule("SQL", "sequel", case_sensitive=False), Rule("New York", "NY"), Rule("New York City", "NYC")),
        *(Rule("café", "coffee"), Rule("京都", "Kyoto"), Rule("5", "five!"), Rule("a", "A", word_boundaries=False)),
    ]
)
FIRST = Scoped(Dictionary([Rule("New", "Old"), Rule("5 a", "five")]), lambda style: style.language != "de")
KINDS: tuple[Normalize, ...] = ("off", "on", "numbers")


def document(parts: list[tuple[str, str]]) -> str:
    """The parts with gaps behind the words; ends that nothing has begun are left out, others added."""
    text, ends = "<speak>", list[str]()
    for part, gap in parts:
        if part.startswith("</"):
            if ends and ends[-1] == part:
                text += ends.pop()
            continue
        text += part if part.startswith("<") else part + gap
        if part.startswith("<") and not part.startswith("<!") and not part.endswith("/>"):
            ends.append(f"</{part[1:].rstrip('>').split()[0]}>")
    return text + "".join(reversed(ends)) + "</speak>"


@given(st.data())
def test_pieces_equal_the_whole(data: st.DataObject) -> None:
    parts = st.tuples(st.sampled_from(PARTS), st.sampled_from(["", " ", "\n"]))
    text = document(data.draw(st.lists(parts, max_size=24)))
    style = Style(language=data.draw(st.sampled_from([None, "en", "de", "fr", "zh"])))
    dictionaries = data.draw(st.sampled_from([[], [Scoped(RULES)], [FIRST, Scoped(RULES)]]))
    settings = Settings(style=style, dictionaries=dictionaries, normalize=data.draw(st.sampled_from(KINDS)))
    whole = plan(text, settings)
    assert in_pieces(text, settings, 1) == whole == in_pieces(text, settings, data.draw(st.integers(2, 9)))
    for span in whole.spans:
        assert span.start <= span.end and all(each.written[0] <= each.written[1] for each in span.replaced)
