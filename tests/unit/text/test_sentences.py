"""Where texts are cut into sentences, whole or while they are being written."""

from __future__ import annotations

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from voice_clone_text.abbreviations import (
    ABBREVIATIONS,
    BEFORE_DATE,
    BEFORE_LABEL,
    BEFORE_NAME,
    BEFORE_NUMBER,
    MAYBE,
    STARTS,
)
from voice_clone_text.sentences import MAX_CHARACTERS, Granularity, Sentence, SentenceSplitter

GRANULARITIES: tuple[Granularity, ...] = ("sentence", "clause", "none")


def split(text: str, granularity: Granularity = "sentence", least: int = 0, most: int = MAX_CHARACTERS) -> list[str]:
    splitter = SentenceSplitter(granularity, min_characters=least, max_characters=most)
    return [sentence.text for sentence in splitter.feed(text, final=True)]


def increments(splitter: SentenceSplitter, text: str, sizes: list[int]) -> list[Sentence]:
    found, at = [], 0
    for size in sizes:
        found += splitter.feed(text[at : at + size])
        at += size
    return found + splitter.feed(text[at:]) + splitter.feed("", final=True)


# Sentences are separated by | here, which takes the place of the white space, or of nothing in `GLUED`.
SPACED = [
    "Dr. Smith met Mrs. Jones at St. Paul's.|They left.",
    "Some fruit, e.g. apples, i.e. good ones, etc. is fine.|Yes.",
    "We met at 5 p.m.|He was late.",
    "It began at 5 p.m. and ended.|Good.",
    "U.S. troops came.|They left the U.S.A. again.",
    "J. R. R. Tolkien wrote it.|So did J.K. Rowling.",
    "It costs 3.14 dollars, or 1.000,50 euros.|Cheap!",
    "At 10:30.|Not at 11.15.|Then go.",
    "In 2024.|Then came 2025.|There were 12.|Good.",
    "Vom 3. bis zum 12. Mai.|Die 2. Klasse hat 20.|Gut.",
    "No. 5 is alive.|I said no.|Five of them left.",
    "See Fig. 3 and pp. 7.|Next.",
    "Visit www.example.com/a.b?c=1.|Mail a.b@c.de.|Done.",
    "Wait... what?|Hmm…|Then he went.|So... yes.",
    "What?!|No way!!!|Fine.",
    'He said "Stop!" and left.|"Go!" she said.|"Yes."|(Really.)|[Sure.]|Then.',
    "„Halt!“ rief er.|»Gut.«|Er ging.|« Bien. »|Oui !|Non ?|Si.",
    "Das ist z.B. gut, z. B. hier.|Am 3. Oktober kam Prof. Dr. Meier.|Es sind ca. 5 Euro.|Ja.",
    "M. Dupont et Mme. Duval sont là.|Bien.",
    "¿Qué tal?|¡Bien!|La Sra. García vino.|Sí.",
    "Он жил в г. Москве, т. е. там.|А. С. Пушкин писал.|Да!",
    "1. First thing\n|2. Second thing\n|3. Third thing",
    "Shopping:\n|- apples\n|- pears\n|* plums",
    "A title\n|\n|A paragraph that is\nwrapped here.|Another one.\n|# Heading\n|Text.",
    "**Bold.**|_Italic._|`Code.`|Plain, see [a](http://b.c/d.e).|Next.",
    "Hi 😀!|Great 👍🏽.|Done! 🎉🎉|A family 👨‍👩‍👧 came.|Bye!😀|Now.",
    "hello there.|how are you.|approx. five.|bye",
    "यह एक वाक्य है।|यह दूसरा है॥|तीसरा?|हाँ।",
    "مرحبا؟|هذا جيد۔|نعم، نعم.|لا",
    "안녕하세요.|반갑습니다!|네.",
    "Զարմանալի է։|Այո։",
    "ሰላም።|እንዴት ነህ።",
    "สวัสดีครับ ผมชื่อ จอห์น วันนี้อากาศดี",
    "Yahoo. . .|Yes.",
    "Node.js is fine.|Use v2.0.1 now.",
    "The call is Wed. March 3.|It starts at 5 p.m. Eastern and 7 a.m. Tuesday.",
    "See Fig. A, Sec. C and Vol. II.|He sat.|No one came.|I saw the sun.",
    "He lives at 40 Oak Ave. Suite 5.|Then Acme Inc. Ohio moved.|They sold Acme Inc.|It is gone.",
    "Wir wohnen in der Lindenstr. 12, nahe der Karl-Marx-Str. Ecke Markt.|Kommt vorbei.",
    "Er zahlte 5 Mio. Euro, dann 3 Mrd. Dollar.|Es sind 5 Mio.|Das ist viel.",
    "Siehe Abb. A im Anhang.|Hr. Klein, Fa. Krause und die Gebr. Grimm sind da.",
    "Rendez-vous au 12 av. Foch, pl. Monge.|Les Éts. Dupuis ouvrent.|Voir chap. B.",
    "Ayer vi al Sr. García en la calle.|La Profa. Díaz vive en la Av. Libertador.",
    "O Sr. Silva chegou.|O Exmo. Juiz mora na Av. Paulista.|Gosto de sol.",
    "L'Ing. Conti e l'Avv. Neri abitano in P.zza Dante.|Due anni fa.|Poi basta.",
    "На пл. Победы тов. Сидоров.|Им. Пушкина театр.|Это 5 млн. Рублей хватит.|Я дал им.|Потом ушёл.",
    "Dhr. Jansen en mevr. Bakker.|Zie afb. A hier.|Het kost 5 mln. Euro.",
    "Mieszka przy ul. Długiej, al. Róż.|Spotkałem p. Nowaka.|Zob. rys. A tutaj.|To 5 tys. Złotych.",
    "he sat.|then he left on wed. march 3.",
]
GLUED = [
    "你好！|今天天气很好。|3.14是圆周率；|我们走吧。|“真的吗？”|他说。",
    "他说：「走吧。」|然后走了……我等。|好吗?|我不知道.|是的",
    "これはペンです。|本当？！|（はい。）|うん",
]


@pytest.mark.parametrize("text", SPACED)
def test_sentences_of_scripts_with_spaces(text: str) -> None:
    expected = [sentence.strip() for sentence in text.split("|")]
    assert split(text.replace("\n|", "\n").replace("|", " ")) == [sentence for sentence in expected if sentence]


@pytest.mark.parametrize("text", GLUED)
def test_sentences_of_scripts_without_spaces(text: str) -> None:
    assert split(text.replace("|", "")) == text.split("|")


@pytest.mark.parametrize("text", SPACED + GLUED)
def test_examples_come_out_the_same_letter_by_letter(text: str) -> None:
    text = text.replace("\n|", "\n").replace("|", " ")
    letters = increments(SentenceSplitter(), text, [1] * len(text))
    assert [sentence.text for sentence in letters] == split(text)


@pytest.mark.parametrize(
    ("increment", "expected"),
    [
        ("I have 3.", []),  # perhaps 3.14
        ("14 apples. ", []),  # "apples. 3 of them" or "apples. and": the next letter decides
        ("S", ["I have 3.14 apples."]),
        ("he left!", []),
        ('"', []),
        (" ", []),
        ("T", ['She left!"']),
        ("he end.\n", []),
        ("\n", ["The end."]),
        ("Dr", []),
        (".", []),
        (" A", []),
    ],
)
def test_a_sentence_comes_as_soon_as_it_is_certain(increment: str, expected: list[str]) -> None:
    script = ["I have 3.", "14 apples. ", "S", "he left!", '"', " ", "T", "he end.\n", "\n", "Dr", ".", " A"]
    splitter = SentenceSplitter()
    for text in script[: script.index(increment)]:
        splitter.feed(text)
    assert [sentence.text for sentence in splitter.feed(increment)] == expected


def test_a_short_sentence_joins_the_next_and_the_last_one_joins_the_one_before() -> None:
    assert split("Yes. I will come at once. Ok.", least=12) == ["Yes. I will come at once. Ok."]
    assert split("I will come at once. Yes. You will come too.", least=12) == [
        "I will come at once.",
        "Yes. You will come too.",
    ]
    assert split("Nobody has come yet. No. No.", least=12) == ["Nobody has come yet. No. No."]
    assert split("Yes. But then it took us long.", least=12, most=26) == ["Yes.", "But then it took us long."]
    assert split("Title\n\nText.", least=12) == ["Title", "Text."], "paragraphs stay apart"
    assert split("你好。你好。", least=4) == ["你好。你好。"]


def test_sentences_that_are_not_joined_do_not_wait() -> None:
    assert [sentence.text for sentence in SentenceSplitter().feed("Yes. I will. You ")] == ["Yes.", "I will."]


def test_a_long_sentence_is_cut_where_it_hurts_least() -> None:
    assert split("one, two three four; five", most=12) == ["one, two", "three four;", "five"]
    assert split("a, bcdefghi jklm nop", most=14) == ["a, bcdefghi", "jklm nop"], "a clause mark too early"
    assert split("我们今天去，明天不去后天再说吧", most=8) == ["我们今天去，", "明天不去后天再说", "吧"]
    assert split("aaaaaaaaaa", most=4) == ["aaaa", "aaaa", "aa"]
    assert split("e\u0301" * 5, most=3) == ["e\u0301"] * 5
    assert split("👨‍👩‍👧" * 3, most=12) == ["👨‍👩‍👧👨‍👩‍👧", "👨‍👩‍👧"]
    assert split("👨‍👩‍👧" * 2, most=2) == ["👨‍👩‍👧"] * 2, "a single character stays whole"
    thai = "สวัสดีครับ ผมชื่อจอห์น วันนี้อากาศดี" * 30
    assert all(20 < len(piece) <= 100 for piece in split(thai, most=100)[:-1])


def test_granularities() -> None:
    text = "First, second: third. Well-known, 1,000.\n\nNext"
    assert split(text, "clause") == ["First,", "second:", "third.", "Well-known,", "1,000.", "Next"]
    assert split(text, "none") == [text]
    assert split("甲，乙、丙。", "clause") == ["甲，", "乙、", "丙。"]


def test_endings() -> None:
    splitter = SentenceSplitter("clause", min_characters=0, max_characters=10)
    found = splitter.feed("One, two. Three\n\nA very long sentence\nEnd", final=True)
    assert [(sentence.text, sentence.ending) for sentence in found] == [
        ("One,", "clause"),
        ("two.", "sentence"),
        ("Three", "paragraph"),
        ("A very", "cut"),
        ("long", "cut"),
        ("sentence", "sentence"),
        ("End", "sentence"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\u0085", "\x0b", "\x0c"])
def test_characters_that_end_a_line(end: str) -> None:
    text = f"A title{end}First line{end}wrapped here.{end}{end}[a{end}Next paragraph. b]{end}1. First{end}2. Second"
    found = SentenceSplitter().feed(text, final=True)
    assert [(sentence.text.replace(end, "\n"), sentence.ending) for sentence in found] == [
        ("A title", "sentence"),
        ("First line\nwrapped here.", "paragraph"),
        ("[a", "sentence"),
        ("Next paragraph. b]", "sentence"),
        ("1. First", "sentence"),
        ("2. Second", "sentence"),
    ]
    letters = increments(SentenceSplitter(), text, [1] * len(text))
    assert letters == found


def test_a_word_has_one_rule() -> None:
    lists = (BEFORE_NAME, MAYBE, BEFORE_NUMBER, BEFORE_LABEL, BEFORE_DATE)
    assert sum(map(len, lists)) == len(ABBREVIATIONS) and all(
        word == word.casefold() for word in ABBREVIATIONS | STARTS
    )


def test_an_abbreviation_waits_for_the_next_word_if_that_matters() -> None:
    splitter = SentenceSplitter()
    assert splitter.feed("It is 5 p.m. T") == [] and splitter.feed("he") == []
    assert [sentence.text for sentence in splitter.feed(" ")] == ["It is 5 p.m."]
    assert splitter.feed("day ends at 5 p.m. East ") == []
    assert [sentence.text for sentence in SentenceSplitter().feed("Mr. Hill left. T")] == ["Mr. Hill left."]


def test_marks_alone_are_no_sentence_unless_the_text_has_no_other() -> None:
    assert split("---\n\nHello. (") == ["---\n\nHello. ("]
    assert split("") == split("  \n\n ") == []
    marks = SentenceSplitter().feed("... — !", final=True)
    assert [sentence.spoken for sentence in marks] == [False]
    assert [sentence.spoken for sentence in SentenceSplitter().feed("100 % sure", final=True)] == [True]


def test_halves_of_characters_are_put_together() -> None:
    splitter = SentenceSplitter()
    assert splitter.feed("Hi \ud83d") == []
    assert [sentence.text for sentence in splitter.feed("\ude00! Now")] == ["Hi 😀!"]
    assert [sentence.text for sentence in splitter.feed(" \ud83d", final=True)] == ["Now \ufffd"]
    assert split("\ude00a\ud83d\ude00") == ["\ufffda😀"]


@pytest.mark.parametrize(("least", "most"), [(-1, 5), (6, 5), (0, 0)])
def test_lengths_that_make_no_sense(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="max_characters"):
        SentenceSplitter(min_characters=least, max_characters=most)


def test_a_granularity_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="sentence, clause, none"):
        SentenceSplitter("word")  # type: ignore[arg-type]


PIECES = [
    *"aAzB1. .!?,;:…\"'“”»«()[]-*#\n。！？；，、好吗ก็ा।؟۔é😀",
    "\u0301",
    "\u200d",
    "🇩",
    "🇪",
    "👍🏽",
    "\r\n",
    "\n\n",
]
PIECES += [
    "\u2029",
    "\u2028",
    "\u0085",
    "\r",
    "p.m. ",
    "Fig. ",
    "no. ",
    "Wed. ",
    "East",
    "Then",
    "Str. ",
    "Dr.",
    "e.g.",
    "etc.",
    " 3. ",
    "\t",
    " " * 45,
    "\u0600",
    "ำ",
    "word ",
    "Word. ",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=40)
TAGS = ["[a. b]", "<|speaker:1|>", "<|phoneme_start|>", "<|phoneme_end|>", "<|", "[" + "a. b " * 60]
TAGGED_TEXTS = st.lists(st.sampled_from(PIECES + TAGS), max_size=60).map("".join)
SIZES = st.lists(st.integers(1, 20), max_size=20)
LENGTHS = st.sampled_from([1, 5, 20, 400])


@given(TEXTS | TAGGED_TEXTS, SIZES, st.sampled_from(GRANULARITIES), LENGTHS, st.sampled_from([0, 1, 12]))
@example("x" * 395 + "     \nfoo", [401], "sentence", 400, 0)
@example("one. " + " " * 500 + "two", [1] * 600, "sentence", 400, 0)
@example("aaaaaaaaa[a]", [11], "sentence", 1, 0)
@example("a<|speaker:1|>", [5], "sentence", 1, 0)
@example("aa<|phoneme_start|>k<|phoneme_end|>", [20], "none", 2, 0)
@example("[\u0301a]", [2], "none", 1, 0)
@example("Yes. I will come at once. No. No.", [5, 10], "sentence", 400, 12)
def test_increments_do_not_matter(text: str, sizes: list[int], granularity: Granularity, most: int, least: int) -> None:
    least = min(least, most)
    whole = SentenceSplitter(granularity, min_characters=least, max_characters=most).feed(text, final=True)
    pieces = increments(SentenceSplitter(granularity, min_characters=least, max_characters=most), text, sizes)
    assert pieces == whole


@given(TEXTS, SIZES, st.sampled_from(GRANULARITIES), LENGTHS)
def test_sentences_are_the_text(text: str, sizes: list[int], granularity: Granularity, most: int) -> None:
    least = min(12, most)
    found = increments(SentenceSplitter(granularity, min_characters=least, max_characters=most), text, sizes)
    ends = {0} | {character.end() for character in regex.finditer(r"\X", text)}
    at = 0
    for sentence in found:
        assert not text[at : sentence.start].strip()
        assert "".join(text[sentence.start : sentence.end].split()) == "".join(sentence.text.split())
        assert sentence.text == sentence.text.strip() != ""
        assert sentence.end in ends or text[sentence.end].isspace(), "cut inside a character"
        assert len(sentence.text) <= most or len(regex.findall(r"\X", sentence.text)) == 1
        at = sentence.end
    assert not text[at:].strip()


def test_a_long_text_without_spaces() -> None:
    splitter = SentenceSplitter()
    found = [sentence for _ in range(5000) for sentence in splitter.feed("ก.")]
    assert all(len(sentence.text) <= MAX_CHARACTERS for sentence in found)
    assert sum(len(sentence.text) for sentence in found) > 9000


TAGGED = [
    "Hello [pause. a long one] there.¦Next.",
    "He said [whisper] so.¦[Sure.]¦Then.",
    "[She is nervous. She speaks quickly, as if someone might hear her! She never stops to breathe] Hello.¦Next.",
    "It is <|phoneme_start|>k a. T o<|phoneme_end|> today.¦Next.",
    "A [break.¦And more that is never closed.¦End.",
]


@pytest.mark.parametrize("text", TAGGED)
def test_no_sentence_ends_inside_a_tag(text: str) -> None:
    expected = [sentence.strip() for sentence in text.split("¦")]
    joined = text.replace("¦", " ")
    assert split(joined) == expected
    for size in (1, 3, 7):
        splitter = SentenceSplitter()
        found = increments(splitter, joined, [size] * (len(joined) // size))
        assert [sentence.text for sentence in found] == expected


@pytest.mark.parametrize(
    "tag", ["[very softly, as if from far away]", "<|speaker:1|>", "<|phoneme_start|>", "[" + "slowly " * 8 + "]"]
)
def test_no_cut_is_inside_a_tag(tag: str) -> None:
    for before in range(30, 60):
        pieces = split("x" * before + tag + "y" * 50, "none", most=60)
        assert "".join(pieces).count(tag) >= 1 and sum(tag in piece for piece in pieces) >= 1
        assert all(piece.replace(tag, "").strip("xy") == "" for piece in pieces), pieces


def test_a_cut_keeps_a_direction_with_what_follows() -> None:
    assert split("one two three [whisper] four five", "none", most=26) == ["one two three", "[whisper] four five"]
    assert split("[a direction of many words] yes no", "none", most=10) == ["[a direction of many words]", "yes no"]


def test_a_sentence_keeps_the_tag_of_its_speaker() -> None:
    text = "First. <|speaker:0|>Good morning. How are you? <|speaker:1|>Fine. Thanks."
    assert split(text) == [
        "First.",
        "<|speaker:0|>Good morning.",
        "<|speaker:0|>How are you?",
        "<|speaker:1|>Fine.",
        "<|speaker:1|>Thanks.",
    ]
    splitter = SentenceSplitter()
    found = increments(splitter, text, [4] * 12)
    assert [sentence.text for sentence in found] == split(text)
    assert all(sentence.text.endswith(text[sentence.start : sentence.end]) for sentence in found)
