"""Tokens of a text that comes piece by piece equal those of the whole text."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from tools.families.byte_level_bpe import merges_of, train
from tools.families.qwen3_tts.checkpoint_config import SPECIAL_TOKENS, write_tokenizer
from voice_clone.appended_text import Composed, settled_length, starts_composition
from voice_clone.errors import InvalidArgument, Unsupported
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.stages.byte_pairs import QWEN2_SPLIT

TEXTS = 3_000  # in the default run
MANY = 200_000

CHINESE = """
人工智能正在改变我们的生活方式。今天的天气非常好,我们一起去公园散步吧。中华人民共和国的首都是北京。
这个问题的答案并不简单,需要从不同的角度来考虑。请问您需要什么帮助?谢谢大家的支持与关注。
他说他明天会来参加会议,但是现在还没有确定具体的时间。语音合成技术可以把文字转换成自然的声音。
友だちの声は最初の言葉の前にわかります。朝と夜に同じ話を読みます。人工知能は私たちの生活を変えています。
친구의 목소리는 첫 단어 전에 알 수 있습니다. 아침과 저녁에 같은 이야기를 읽습니다.
"""
ENGLISH = """
It's late, we're tired, but they'll sing again; I'd say don't. The voice of a friend is known before the first word
ends. Numbers such as 12, 305 or 1998 are spoken as words!!! ... (and so on) --- #hash @home a_b c/d e=mc^2
"""
# What the rules are about: contractions, whitespace of all kinds, parts of added tokens, marks that compose, jamo.
PARTS = (
    *(
        "a",
        "b",
        "'",
        "'s",
        "'S",
        "'l",
        "l",
        "'r",
        "e",
        "'\u017f",
        "\u2019",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "\u00a0",
    ),
    *("\u3000", "\u2028", "1", "23", "\u0662", "!", "!!", "...", "<", "<|", "|", "|>", ">", "<th", "<think>"),
    *(
        "<thi",
        "</tool_call>",
        "</",
        "<tool_",
        "nk>",
        "\u0301",
        "\u0323",
        "\u0307",
        "e\u0301",
        "\u00e9",
        "s\u0323\u0307",
    ),
    *("\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u0344", "\u0f71", "\u0f72", "\u0f73", "\u0340", "\u212b"),
    *("\u0915", "\u093c", "\u0958", "\u09c7", "\u09be", "\u1b05", "\u1b35", "\U0001d15e", "\U000110a5\U000110ba"),
    *(
        "🙂",
        "\u200d",
        "👩‍👩‍👧",
        "🇩🇪",
        "\ufe0f",
        "漢",
        "字",
        "人工",
        "。",
        ",",
        "の",
        "\u3099",
        "か\u3099",
        "\u0e33",
        "\U0010ffff",
    ),
    *("\u0378", "\x00", "\x7f", "\u0600", "\u200b", "\u00ad", "\ufeff", "  \n  ", " \r\n\n ", "\u0085", "\u001c"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With the splitting rule of the released tokenizer, and entries of several Chinese characters, as it has them."""
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = [CHINESE * 3, ENGLISH * 3, "assistant\n" * 50, "\n\n\n", " " * 40, "aaaaaaaaaaaaaaaa", "!!!!!!!!....''''"]
    write_tokenizer(folder, None, merges_of(train(texts, QWEN2_SPLIT, 2500, min_frequency=1)))
    return Tokenizer(folder)


def text_of(rng: random.Random) -> str:
    """An adversarial text."""
    kind = rng.random()
    if kind < 0.15:
        return "".join(rng.choice(CHINESE) for _ in range(rng.randrange(1, 30)))
    if kind < 0.25:
        begin = rng.randrange(len(ENGLISH))
        return ENGLISH[begin : begin + rng.randrange(1, 60)]
    if kind < 0.3:
        return "".join(
            chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(8)
        )
    return "".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 24)))


def pieces_of(rng: random.Random, text: str) -> list[str]:
    """`text` cut at random places; some pieces are empty."""
    count = rng.choice((1, 2, 3, len(text)))
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(count))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def joined(tokenizer: Tokenizer, pieces: list[str]) -> tuple[list[int], list[int]]:
    """Ids and ends of a text that comes in pieces."""
    tail, ids, ends = tokenizer.begin_text(), [], []
    for number, piece in enumerate(pieces):
        appended = tokenizer.appended.append(tail, piece, last=number == len(pieces) - 1)
        tail = appended.tail
        ids += appended.ids.tolist()
        ends += appended.ends.tolist()
    return ids, ends


def check(tokenizer: Tokenizer, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        text = text_of(rng)
        pieces = pieces_of(rng, text)
        ids, ends = joined(tokenizer, pieces)
        assert ids == tokenizer.text_ids(text).tolist(), (number, pieces)
        assert len(ends) == len(ids)
        assert all(0 <= end <= len(text) for end in ends), (number, pieces, ends)


def test_ids_equal_those_of_the_whole_text(tokenizer: Tokenizer) -> None:
    check(tokenizer, TEXTS, 1)


@pytest.mark.long
def test_ids_equal_those_of_the_whole_text_very_often(tokenizer: Tokenizer) -> None:
    check(tokenizer, MANY, 2)


def test_random_merges(tmp_path: Path) -> None:
    """Merges that were not learned, in any order: the rule for words does not depend on a sane vocabulary."""
    rng = random.Random(3)
    for number in range(4):
        texts = ["".join(rng.choice("abc漢字") for _ in range(30)) for _ in range(30)]
        merges = merges_of(train(["assistant\n" * 9, *texts], QWEN2_SPLIT, 120, min_frequency=1))
        folder = tmp_path / str(number)
        folder.mkdir()
        write_tokenizer(folder, None, merges)
        tokenizer = Tokenizer(folder)
        for _ in range(150):
            text = "".join(rng.choice("abc漢字") for _ in range(rng.randrange(1, 30)))
            assert joined(tokenizer, pieces_of(rng, text))[0] == tokenizer.text_ids(text).tolist()


def test_a_chinese_clause_waits_for_at_most_four_characters(tmp_path: Path) -> None:
    """Words of one to three characters, as most Chinese entries of the released vocabulary are."""
    rng = random.Random(6)
    characters = sorted({character for character in CHINESE if character.isalpha()})
    words = ["".join(rng.sample(characters, rng.choice((1, 2, 2, 3)))) for _ in range(150)]
    lines = ["".join(rng.choices(words, k=40)) for _ in range(100)]
    write_tokenizer(tmp_path, None, merges_of(train(["assistant\n" * 99, *lines], QWEN2_SPLIT, 900, min_frequency=20)))
    tokenizer = Tokenizer(tmp_path)
    late = []
    for _ in range(20):
        clause = "".join(rng.choices(words, k=20))
        tail, given_out, tokens = tokenizer.begin_text(), 0, 0
        for number, character in enumerate(clause, 1):
            appended = tokenizer.appended.append(tail, character)
            tail, tokens = appended.tail, tokens + len(appended.ids)
            given_out = int(appended.ends[-1]) if len(appended.ids) else given_out
            late.append(number - given_out)
            assert len(tail.text) <= 4  # no more is kept
        assert tokens < len(clause)  # there are tokens of several characters
    assert max(late) <= 4


def test_a_space_ends_an_english_word(tokenizer: Tokenizer) -> None:
    appended = tokenizer.appended.append(tokenizer.begin_text(), "The voice of ")
    assert appended.ids.tolist() == tokenizer.text_ids("The voice of").tolist()
    assert (appended.tail.text, appended.ends[-1]) == (" ", len("The voice of"))


def test_an_english_word_waits_for_the_next(tokenizer: Tokenizer) -> None:
    appended = tokenizer.appended.append(tokenizer.begin_text(), "The voice of")
    assert appended.ids.tolist() == tokenizer.text_ids("The voice").tolist()
    assert appended.tail.text == " of"


@pytest.mark.parametrize("token", [token for token in SPECIAL_TOKENS if token.startswith(("<|im", "<tts"))])
def test_a_control_token_is_refused_with_the_piece_that_completes_it(tokenizer: Tokenizer, token: str) -> None:
    tail = tokenizer.appended.append(tokenizer.begin_text(), "so " + token[:3]).tail
    with pytest.raises(InvalidArgument, match="control token"):
        tokenizer.appended.append(tail, token[3:] + " and")
    rest = tokenizer.appended.append(tail, " and", last=True)
    assert rest.ids.tolist() == tokenizer.text_ids("so " + token[:3] + " and").tolist()[-len(rest.ids) :]


def test_a_word_without_an_end_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidArgument, match="separate words"):
        tokenizer.appended.append(tokenizer.begin_text(), "!?" * 40_000)


def test_letters_without_an_end_are_not_kept(tokenizer: Tokenizer) -> None:
    appended = tokenizer.appended.append(tokenizer.begin_text(), "ab" * 20_000)
    assert len(appended.tail.text) < 100


def test_another_kind_of_tokenizer_is_unsupported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for change in ("normalizer", "splitter", "added"):
        write_tokenizer(tmp_path, None)
        other = Tokenizer(tmp_path)
        if change == "normalizer":
            other.vocabulary.library.normalizer = normalizers.NFKC()
        elif change == "splitter":
            split = pre_tokenizers.Split(Regex(r"\s+"), behavior="isolated")
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            other.vocabulary.library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        else:
            other.vocabulary.library.add_tokens(["word"])  # normalised
        with pytest.raises(Unsupported, match="whole text"):
            _ = other.appended


def test_composition_of_parts() -> None:
    """Cut before any character that starts a composition, the composed parts joined are the composed whole."""
    rng = random.Random(5)

    def compose(text: str) -> str:
        return unicodedata.normalize("NFC", text)

    for _ in range(TEXTS):
        text = text_of(rng)
        for place in (place for place in range(1, len(text)) if starts_composition(text[place])):
            assert compose(text) == compose(text[:place]) + compose(text[place:])
            composed = Composed(text, compose)
            assert composed.before(len(compose(text[:place]))) <= place or not compose(text[:place])
        settled = settled_length(text)
        assert compose(text[:settled]) == compose(text + "\u0301" + "\u11a8")[: len(compose(text[:settled]))]


def test_hangul_and_marks_do_not_start_anew() -> None:
    assert all(starts_composition(character) for character in "a é 漢가 \u1100 🙂")
    assert not any(starts_composition(character) for character in "\u0301\u1161\u11a8\u09be\u3099\u0344\u0f73\u0378")
