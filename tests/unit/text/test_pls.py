"""Files of pronunciations: what is read of them, that they give back the rules, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_text.dictionary import MOST_RULES, Rule
from voice_clone_text.pls import Lexicon, read, write
from voice_clone_text.tags import MarkupError

PLS = 'version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon"'
HEAD = f'<lexicon {PLS} alphabet="ipa" xml:lang="en-GB">'


def lexicon(*lexemes: str) -> str:
    return f"{HEAD}{''.join(f'<lexeme>{each}</lexeme>' for each in lexemes)}</lexicon>"


def test_a_file() -> None:
    found = read(f"""\ufeff<?xml version="1.0" encoding="ISO-8859-1"?>
        <!-- <lexeme> --><lexicon {PLS} alphabet="x-sampa" xml:lang="en" xmlns:x="urn:x">
          <metadata><x:a><x:lexeme><grapheme>no</grapheme></x:lexeme></x:a></metadata><meta name="a" content="b"/>
          <lexeme role="x:noun">
            <grapheme>  W3C\n </grapheme><grapheme>World &amp; Web</grapheme>
            <alias>World Wide <![CDATA[<Web>]]></alias><alias prefer="true">consortium</alias>
            <example>W3C is <x:b>here</x:b></example>
          </lexeme>
          <lexeme><grapheme>Straße</grapheme><phoneme alphabet="ipa">ˈʃtʁaːsə</phoneme><phoneme>x</phoneme></lexeme>
          <lexeme><grapheme>read</grapheme><phoneme>rEd</phoneme><alias>red</alias></lexeme>
          <lexeme><grapheme>gone</grapheme><alias/></lexeme><x:other>text</x:other>
        </lexicon>""")
    rules = [
        *(Rule("W3C", "consortium"), Rule("World & Web", "consortium")),
        Rule("Straße", "", phoneme="ˈʃtʁaːsə", alphabet="ipa"),
        *(Rule("read", "red"), Rule("gone", "")),
    ]
    assert found == Lexicon(rules, "en")


def test_without_a_namespace_and_as_bytes() -> None:
    text = "<lexicon alphabet='x-sampa'><lexeme><grapheme>é</grapheme><phoneme>e</phoneme></lexeme></lexicon>"
    wanted = Lexicon([Rule("é", "", phoneme="e", alphabet="x-sampa")], None)
    assert read(text) == wanted == read(text.encode()) == read(text.encode("utf-8-sig")) == read(text.encode("utf-16"))
    with pytest.raises(MarkupError, match="UTF-8"):
        read(text.encode("latin-1"))


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Z"]), min_size=1, max_size=9)
TEXTS = st.lists(WORDS, max_size=3).map(" ".join)
ALIASES = st.builds(Rule, WORDS, TEXTS, st.booleans(), st.booleans())
PHONEMES = st.builds(
    Rule, WORDS, st.just(""), st.booleans(), st.booleans(), WORDS, st.sampled_from(["ipa", "cmu-arpabet"])
)


@given(st.lists(ALIASES | PHONEMES, max_size=6), st.sampled_from([None, "de", 'x"<&']))
def test_what_is_written_is_read_again(rules: list[Rule], language: str | None) -> None:
    assert read(write(rules, language)) == Lexicon(rules, language or "und")


def test_what_xml_cannot_say_is_left_out() -> None:
    assert read(write([Rule("a\0b", "c\x1b\ufffe d")])).rules == [Rule("ab", "c d")]


def test_a_large_file() -> None:
    rules = [Rule(f"term {number}", f"alias {number}", word_boundaries=False) for number in range(MOST_RULES)]
    assert read(write(rules)).rules == rules


BOMBS: dict[str, Any] = {
    "entities": '<!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + lexicon("<grapheme>&b;</grapheme>"),
    "an entity": lexicon("<grapheme>&b;</grapheme><alias>c</alias>"),
    "an external one": f'<!DOCTYPE lexicon SYSTEM "file:///etc/passwd">{HEAD}</lexicon>',
    "depth": HEAD + "<a>" * 300_000,
    "attributes": "<lexicon " + " ".join(f"a{number}=''" for number in range(100_000)) + "/>",
    "some attributes": "<lexicon " + " ".join(f"a{number}=''" for number in range(100)) + "/>",
    "a long tag": f"<lexicon {PLS} a='{'x' * 4_000_000}'/>",
    "tags": HEAD + "<lexeme/>" * 400_000,
    "rules": lexicon(*["<grapheme>a</grapheme><alias>b</alias>"] * (MOST_RULES + 1)),
    "graphemes": lexicon("<grapheme>a</grapheme>" * (MOST_RULES + 1) + "<alias>b</alias>"),
    "no term": lexicon("<alias>b</alias>"),
    "a blank term": lexicon("<grapheme> </grapheme><alias>b</alias>"),
    "no alias": lexicon("<grapheme>a</grapheme>"),
    "no end": HEAD,
    "another root": "<speak>a</speak>",
    "two roots": lexicon() * 2,
    "a prefix": "<lexicon><x:a/></lexicon>",
    "text": "SQL=sequel",
    "nothing": " ",
    "a surrogate": lexicon("<grapheme>\ud800</grapheme><alias>b</alias>"),
    "a nul": lexicon("<grapheme>a\0</grapheme><alias>b</alias>"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(MarkupError, match="line 1, column"):
        read(BOMBS[name])


def test_fragments_in_any_order() -> None:
    draw = random.Random(5)
    parts = [
        *(HEAD, "</lexicon>", "<lexeme>", "</lexeme>", "<grapheme>", "</grapheme>", "<alias>", "</alias>", "<phoneme>"),
        *(
            "</phoneme>",
            "<alias prefer='true'/>",
            "a",
            "&amp;",
            "&#0;",
            "&x;",
            "<!-- c -->",
            "<![CDATA[",
            "]]>",
            "<",
            ">",
        ),
        *("<?x?>", "<!DOCTYPE a>", "\ud800", "\0", "<meta/>", "<x:y>", "京"),
    ]
    read_ones = 0
    for _ in range(20_000):
        text = HEAD * draw.randrange(2) + "".join(draw.choices(parts, k=draw.randrange(9))) + "</lexicon>"
        try:
            rules = read(text).rules
        except MarkupError:
            continue
        read_ones += 1
        assert all(rule.term and (rule.phoneme or rule.phoneme is None or rule.alias == "") for rule in rules)
    assert read_ones > 100
