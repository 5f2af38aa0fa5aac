"""Numbers in words: what is read how, what stays as it is written, whole and in pieces."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voice_clone_text.languages import code_of
from voice_clone_text.normalizers import CODES, normalizer_of
from voice_clone_text.numbers import Normalize
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Planner, Settings, plan

from tests.support.text_in_pieces import in_pieces


def asked(language: str | None, kinds: Normalize = "on") -> Settings:
    return Settings("text", normalize=kinds, style=Style(language=language))


def said(text: str, settings: Settings) -> str:
    return "".join(span.text for span in plan(text, settings).spans)


READ = {
    "en": {
        "The bill is $1,234.56.": "The bill is one thousand two hundred and thirty four dollars fifty six cents.",
        "Meet me at 3:05 pm.": "Meet me at three oh five p m.",
        "It was the 1980s and the '90s.": "It was the nineteen eighties and the nineties.",
        "King Henry VIII died.": "King Henry the eighth died.",
        "Add 1/2 cup and 3/4 tsp.": "Add one half cup and three quarters tsp.",
        "Mail john.doe@example.org.": "Mail john dot doe at example dot org.",
        "We sell pens, paper, etc. Bring cash.": "We sell pens, paper, et cetera. Bring cash.",
    },
    "de": {
        "Das kostet 1.234,56 €.": "Das kostet tausendzweihundertvierunddreißig Euro sechsundfünfzig.",
        "Am 03.10.2024 ist frei.": "Am dritten zehnten zwanzig vierundzwanzig ist frei.",
        "Von 9-17 Uhr geöffnet.": "Von neun bis siebzehn Uhr geöffnet.",
        "In den 1980er Jahren.": "In den neunzehnhundertachtziger Jahren.",
        "1/2 Liter Milch und 3/4 Stunde.": "ein halb Liter Milch und drei Viertel Stunde.",
        "Siehe https://beispiel.de/hilfe.": "Siehe beispiel punkt de slash hilfe.",
        "Stifte, Papier usw. Bring Geld mit.": "Stifte, Papier und so weiter. Bring Geld mit.",
        "Er wurde 21.": "Er wurde einundzwanzig.",
    },
    "fr": {
        "Ça coûte 1 234,56 €.": "Ça coûte mille deux cent trente-quatre euros cinquante-six.",
        "Le 1er mai.": "Le premier mai.",
        "Appelez le 01 23 45 67 89.": "Appelez le zéro un, vingt-trois, quarante-cinq, soixante-sept, "
        "quatre-vingt-neuf.",
        "Au XIXe siècle.": "Au dix-neuvième siècle.",
        "Ajoutez 1/2 litre et 3/4 de tasse.": "Ajoutez un demi litre et trois quarts de tasse.",
        "Environ 20 % des 21 pages.": "Environ vingt pour cent des vingt et une pages.",
        "2,5 M€ de ventes.": "deux virgule cinq millions d'euros de ventes.",
        "Il a 71 ans et 92 timbres.": "Il a soixante et onze ans et quatre-vingt-douze timbres.",
        "La 1re fois et la 2de.": "La première fois et la 2de.",
    },
    "es": {
        "Cuesta 1.234,56 €.": "Cuesta mil doscientos treinta y cuatro euros con cincuenta y seis céntimos.",
        "A las 14:30 h.": "A las catorce y media.",
        "Llama al 912 345 678.": "Llama al nueve uno dos, tres cuatro cinco, seis siete ocho.",
        "El siglo XIX.": "El siglo diecinueve.",
        "El 20 % de 21 páginas.": "El veinte por ciento de veintiuna páginas.",
        "Hay 200 casas.": "Hay doscientas casas.",
        "EE. UU. ganó.": "Estados Unidos ganó.",
    },
    "zh": {
        "会议在14:30开始。": "会议在十四点三十分开始。",
        "气温-5°C。": "气温负五摄氏度。",
        "电话010-12345678。": "电话零一零一二三四五六七八。",
        "第10-15页。": "第十到十五页。",
        "1998年出生。": "一九九八年出生。",
        "有2个人和2本书。": "有两个人和两本书。",
        "人口1,000,000。": "人口一百万。",
        "100m跑9.58s。": "一百米跑九点五八秒。",
    },
    "ja": {
        "価格は1,234円です。": "価格は千二百三十四円です。",
        "14:30に始まる。": "十四時三十分に始まる。",
        "電話03-1234-5678。": "電話ゼロ三の一二三四の五六七八。",
        "1/2の確率。": "二分の一の確率。",
        "本を3冊と猫を2匹。": "本を三冊と猫を二匹。",
        "9:00-17:00営業。": "九時から十七時営業。",
        "100mを9.58秒。": "百メートルを九点五八秒。",
    },
}
LEFT = {
    "en": ["Call 555-0123 now.", "On 12/25/2024 we rest.", "Update to v2.10.3."],
    "de": ["Heinrich VIII. starb.", "Er hat 1 Hund und 1 Katze."],
    "fr": ["Louis XIV régnait."],
    "es": ["Felipe VI habló.", "La versión 2.10.3 salió.", "Perdió 5.000 M$."],
    "zh": ["航班CA1234。", "30%-50%的人。"],
    "ja": ["気温は-5℃。", "10〜15ページ。", "第II章。"],
}
"""What the libraries would read wrongly, or do not know."""
EACH = [(code, text, spoken) for code, texts in READ.items() for text, spoken in texts.items()]


@pytest.mark.parametrize(("code", "text", "spoken"), EACH)
def test_what_is_read(code: str, text: str, spoken: str) -> None:
    found = plan(text, asked(code))
    assert (found.spans[0].text, found.warnings) == (spoken, ())
    for each in found.spans[0].replaced:
        assert text[each.written[0] : each.written[1]] != spoken[each.spoken[0] : each.spoken[1]]


@pytest.mark.parametrize(("code", "text"), [(code, text) for code, texts in LEFT.items() for text in texts])
def test_what_stays_as_it_is_written(code: str, text: str) -> None:
    assert said(text, asked(code)) == text


@pytest.mark.parametrize("code", CODES)
def test_pieces_equal_the_whole(code: str) -> None:
    texts = [*READ[code], *LEFT[code]]
    gap = "" if code in ("zh", "ja") else " "
    for text in (*texts, gap.join(texts), "  ".join(texts), "\n".join(texts)):
        whole = plan(text, asked(code))
        for size in (1, 3, 7):
            assert in_pieces(text, asked(code), size) == whole


@pytest.mark.parametrize("code", CODES)
def test_each_prefix_is_a_beginning(code: str) -> None:
    text = ("" if code in ("zh", "ja") else " ").join([*READ[code], *LEFT[code]])
    whole, planner, so_far = said(text, asked(code)), Planner(asked(code)), ""
    for character in text:
        so_far += "".join(piece[0] for piece in planner.feed(character) if isinstance(piece[0], str))
        assert whole.startswith(so_far)
    assert len(whole) - len(so_far) < 100


SPACED = [
    *("a", "5", "10%", "B2B", "etc.", "Then", "$3", "3.", "Oktober", "EE.", "UU.", "VI", "(7)", "12:30", "x" * 90),
    *("„5", "6“", '"7', "https://a.b", "5\u00a0%", "1\u202f234", "9" * 201, " ", "  ", "\n", ", ", ". "),
]
UNSPACED = ["中", "文", "5", "。", "，", "AB", "3%", "-", " ", "1,000", "年", "x" * 40, "7" * 65]


@given(st.data())
def test_any_text_in_any_pieces(data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(CODES))
    words = UNSPACED if code in ("zh", "ja") else SPACED
    drawn = data.draw(st.lists(st.sampled_from(words), max_size=24))
    text = "".join(drawn) if words is UNSPACED else " ".join(drawn)
    settings = asked(code)
    whole = plan(text, settings)
    size = data.draw(st.integers(1, 5))
    assert in_pieces(text, settings, size) == whole


def test_everything_else_stays_as_it_is() -> None:
    text = "“It’s the the   end”,  she said;\tnot  10 % of it… \n\n  Mr. Ng's café — naïve?  "
    spoken = said(text, asked("en"))
    assert spoken == text.replace("not  10 % of", "not  ten percent of")


def test_quotations_brackets_and_addresses() -> None:
    text = 'He said "5 cats" (see 3 notes). See https://a.org/b?x=1 now.'
    assert said(text, asked("en")) == text.replace("5", "five").replace("3", "three")
    assert said("Bitte „5 Hunde“ sagen.", asked("de")) == "Bitte „fünf Hunde“ sagen."


def test_kinds() -> None:
    text = "5 cats and dogs, etc. Mail a@b.org."
    assert said(text, asked("en")) == "five cats and dogs, et cetera. Mail a at b dot org."
    assert said(text, asked("en", "numbers")) == "five cats and dogs, etc. Mail a@b.org."
    assert said(text, asked("en", "off")) == text


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("English", "en"),
        ("en-US", "en"),
        ("de_AT", "de"),
        ("zh-Hant-TW", "zh"),
        ("Auto", "auto"),
        (None, ""),
        (" Italian", "it"),
    ],
)
def test_languages(language: str | None, code: str) -> None:
    assert code_of(language) == code


def test_without_a_language_numbers_stay_and_that_is_told() -> None:
    found = plan("5 cats", asked(None))
    assert found.spans[0].text == "5 cats" and "language" in found.warnings[0]
    assert "language" in plan("5 gatti", asked("Italian")).warnings[0]
    assert plan("cats", asked(None)).warnings == ()


def test_languages_of_parts() -> None:
    text = "<speak xml:lang='en'>5 cats <lang xml:lang='de'>5 Katzen</lang></speak>"
    found = plan(text, Settings(normalize="on"))
    assert [span.text for span in found.spans] == ["five cats", "fünf Katzen"]
    text = "<speak>a<lang xml:lang='de'>5 Katzen</lang></speak>"
    assert in_pieces(text, Settings(normalize="on")) == plan(text, Settings(normalize="on"))


def test_what_ssml_or_a_dictionary_replaces_is_not_read_again() -> None:
    assert said_of("<speak>5 <sub alias='6 cats'>x</sub> 7</speak>") == "five 6 cats seven"
    assert said_of("<speak>2 &lt; 3 <mark name='m'/>dogs</speak>") == "two < three dogs"


def said_of(document: str) -> str:
    return plan(document, Settings(normalize="on", style=Style(language="en"))).spans[0].text


def test_what_is_too_long_or_wrong_stays_and_is_told() -> None:
    text = f"We have {'1' * 201} cats and 5 dogs"
    assert said(text, asked("en")) == text.replace("5", "five")
    found = plan("a1b 5:3 here", asked("en"))
    assert found.spans[0].text == "a1b 5:3 here" and "5:3" in found.warnings[0]


def test_dense_texts_are_read_in_pieces() -> None:
    draw = random.Random(3)
    text = " ".join(str(draw.randrange(100)) for _ in range(300))
    spoken = said(text, asked("en"))
    assert not any(character.isdigit() for character in spoken)


def test_a_normalizer_is_loaded_once() -> None:
    assert normalizer_of("en") is normalizer_of("en")
