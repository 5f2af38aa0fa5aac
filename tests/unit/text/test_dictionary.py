"""Dictionaries of pronunciations: which rule has an effect where, whole and in pieces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_text.dictionary import MOST_RULES, Dictionary, Rule, Scoped
from voice_clone_text.planner import Planner, Settings, plan

from tests.support.text_in_pieces import in_pieces


def by(*dictionaries: Dictionary) -> Settings:
    return Settings(dictionaries=[Scoped(each) for each in dictionaries])


def said(text: str, *rules: Rule) -> str:
    return "".join(span.text for span in plan(text, by(Dictionary(rules))).spans)


ANY = {"case_sensitive": False}
INSIDE = {"word_boundaries": False}
CASES: list[tuple[str, list[Rule], str]] = [
    ("The SQL and the sql", [Rule("SQL", "sequel")], "The sequel and the sql"),
    ("The SQL and the sql", [Rule("SQL", "sequel", **ANY)], "The sequel and the sequel"),
    ("SQLite, MySQL, SQL2, SQL-like, 'SQL'", [Rule("SQL", "sequel")], "SQLite, MySQL, SQL2, sequel-like, 'sequel'"),
    ("SQLite", [Rule("SQL", "sequel", **INSIDE)], "sequelite"),
    ("New York City", [Rule("New York", "a"), Rule("New York City", "b"), Rule("York City", "c")], "b"),
    ("New York Cityscape", [Rule("New York", "a"), Rule("New York City", "b")], "a Cityscape"),
    ("xNew York", [Rule("New York", "a"), Rule("York", "b")], "xNew b"),
    ("twice", [Rule("twice", "a"), Rule("twice", "b")], "a"),
    ("Twice twice", [Rule("Twice", "a"), Rule("twice", "b", **ANY)], "a b"),
    ("a b a", [Rule("a", "b"), Rule("b", "a")], "b a b"),
    ("東京都と京都と東京", [Rule("京都", "きょうと"), Rule("東京都", "とうきょうと")], "とうきょうとときょうとと東京"),
    ("用AI技术", [Rule("AI", "人工智能")], "用人工智能技术"),
    ("cafe\u0301 and caf\u00e9", [Rule("café", "coffee")], "coffee and coffee"),
    ("cafe\u0301s, cafe", [Rule("cafe", "x"), Rule("café", "y")], "cafe\u0301s, x"),
    ("STRASSE Straße", [Rule("straße", "street", **ANY)], "STRASSE street"),
    ("İstanbul", [Rule("istanbul", "x", **ANY)], "İstanbul"),
    ("C++ or C", [Rule("C++", "C plus plus"), Rule("C", "see")], "C plus plus or see"),
    ("$5", [Rule("$", "dollar ")], "dollar 5"),
    ("gone", [Rule("gone", "")], ""),
]


@pytest.mark.parametrize(("text", "rules", "spoken"), CASES)
def test_what_is_spoken(text: str, rules: list[Rule], spoken: str) -> None:
    assert said(text, *rules) == spoken
    for size in (1, 2, 3):
        settings = by(Dictionary(rules))
        assert in_pieces(text, settings, size) == plan(text, settings)


def test_where_it_is_written() -> None:
    text = "<speak>The <sub alias='SQL'>x</sub> SQL &amp; SQL</speak>"
    found = plan(text, by(Dictionary([Rule("SQL", "sequel"), Rule("&", "and")])))
    (span,) = found.spans
    assert span.text == "The SQL sequel and sequel"
    assert [text[slice(*each.written)] for each in span.replaced] == ["<sub alias='SQL'>", "SQL", "&amp;", "SQL"]
    assert [span.text[slice(*each.spoken)] for each in span.replaced] == ["SQL", "sequel", "and", "sequel"]


def test_a_mark_inside_a_term_stands_before_it() -> None:
    found = plan("<speak>a New <mark name='m'/>York b</speak>", by(Dictionary([Rule("New York", "x")])))
    assert (found.spans[0].text, found.marks[0].character) == ("a x b", 2)


LETTERS = "aAbéE\u0301京都 .1"


@given(st.data())
def test_pieces_equal_the_whole_and_each_prefix_is_a_beginning(data: st.DataObject) -> None:
    words = st.text(LETTERS, min_size=1, max_size=4).filter(lambda text: bool(text.strip()))
    rules = data.draw(
        st.lists(st.builds(Rule, words, st.text("xyz", max_size=3), st.booleans(), st.booleans()), max_size=6)
    )
    text = data.draw(st.text(LETTERS, max_size=30))
    settings = by(Dictionary(rules))
    whole = plan(text, settings)
    assert in_pieces(text, settings) == whole
    spoken = "".join(span.text for span in whole.spans)
    planner, so_far = Planner(settings), ""
    for character in text:
        so_far += "".join(piece[0] for piece in planner.feed(character) if isinstance(piece[0], str))
        assert spoken.startswith(so_far)


def test_the_longest_term_bounds_what_waits() -> None:
    planner, waits = Planner(by(Dictionary([Rule("a" * 20, "x"), Rule("ab", "y")]))), list[int]()
    text = "a" * 19 + "b" + "a" * 40 + "words that are no terms " * 5
    for at, character in enumerate(text, 1):
        pieces = planner.feed(character)
        ends = [piece[2] for piece in pieces if isinstance(piece[0], str)]
        waits.append(at - max(ends, default=at - waits[-1] - 1 if waits else 0))
    assert max(waits) <= 20 + 1 and waits[-1] <= 1, "what follows may change the last character, too"


def test_large_dictionaries_and_texts_that_nearly_fit() -> None:
    draw = random.Random(1)
    terms = {"".join(draw.choices("abcdefghij", k=draw.randrange(3, 9))) for _ in range(MOST_RULES)}
    dictionary = Dictionary([Rule(term, term.upper()) for term in sorted(terms)])
    text = " ".join(draw.choices(sorted(terms), k=500))
    assert plan(text, by(dictionary)).spans[0].text == text.upper()
    nested = Dictionary([Rule("a" * count, "x") for count in range(1, 65)])
    assert plan("a" * 60_000, by(nested)).spans[0].text == "a" * 60_000  # none has boundaries
    inside = Dictionary([Rule("a" * count, "x", word_boundaries=False) for count in range(1, 65)])
    assert plan("a" * 6400, by(inside)).spans[0].text == "x" * 100


@pytest.mark.parametrize("rules", [[Rule("", "a")], [Rule(" ", "a")], [Rule("a" * 201, "b")], [Rule("a", "b" * 501)]])
def test_rules_that_are_refused(rules: list[Rule]) -> None:
    with pytest.raises(ValueError, match="1 to 200"):
        Dictionary(rules)
    with pytest.raises(ValueError, match="10000"):
        Dictionary([Rule("a", "b")] * 10_001)


def test_a_dictionary_without_rules() -> None:
    assert said("as it is") == "as it is"
