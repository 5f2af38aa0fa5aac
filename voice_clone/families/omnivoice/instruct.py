"""What the option `instruct` may say: words for a voice, out of a closed list. Needs no torch.

Source of the words and rules: omnivoice 0.2.1, `utils/voice_design.py` and `models/omnivoice.py` (`_resolve_instruct`).
"""

from __future__ import annotations

import difflib
import re

from voice_clone.errors import InvalidArgument, quoted
from voice_clone.families.omnivoice.chunks import is_chinese

# Groups of words that exclude each other, in English and in Chinese.
_PAIRS = (
    {"male": "男", "female": "女"},
    {"child": "儿童", "teenager": "少年", "young adult": "青年", "middle-aged": "中年", "elderly": "老年"},
    {
        "very low pitch": "极低音调",
        "low pitch": "低音调",
        "moderate pitch": "中音调",
        "high pitch": "高音调",
        "very high pitch": "极高音调",
    },
    {"whisper": "耳语"},
)
_PEOPLES = "american british australian chinese canadian indian korean portuguese russian japanese"
_PLACES = "河南 陕西 四川 贵州 云南 桂林 济南 石家庄 甘肃 宁夏 青岛 东北"
ACCENTS = frozenset(f"{people} accent" for people in _PEOPLES.split())  # of English alone
DIALECTS = frozenset(f"{place}话" for place in _PLACES.split())  # of Chinese alone
_GROUPS = (*(frozenset(pairs) | frozenset(pairs.values()) for pairs in _PAIRS), ACCENTS, DIALECTS)
_TO_CHINESE = {english: chinese for pairs in _PAIRS for english, chinese in pairs.items()}
_TO_ENGLISH = {chinese: english for english, chinese in _TO_CHINESE.items()}
WORDS = frozenset().union(*_GROUPS)
MOST_HINTS = 8  # unknown words that a message names: to look for words like them takes long


def instruction(asked: str | None, text: str) -> str | None:
    """An instruction as the model was trained to read it, in one language.

    Args:
        asked: words separated by commas, such as `female, low pitch`; case does not matter.
        text: what is said; a Chinese one asks for Chinese words, unless there is an accent.

    Returns:
        None: nothing is asked.

    Raises:
        InvalidArgument: a word is unknown, or two of them contradict each other.
    """
    words = [word for each in re.split("[,，]", asked or "") if (word := each.strip().lower())]
    if unknown := [each for each in words if each not in WORDS]:
        raise InvalidArgument(_unknown(unknown[:MOST_HINTS]))
    dialect, accent = (any(each in group for each in words) for group in (DIALECTS, ACCENTS))
    if dialect and accent:
        raise InvalidArgument(
            "`options.instruct`: a dialect is for Chinese and an accent for English; leave out one of them"
        )
    in_chinese = dialect or (is_chinese(text) and not accent)
    words = [(_TO_CHINESE if in_chinese else _TO_ENGLISH).get(each, each) for each in words]
    for group in _GROUPS:
        if len(chosen := [each for each in words if each in group]) > 1:
            raise InvalidArgument(
                f"`options.instruct`: {' and '.join(chosen)} contradict each other; leave out one of them"
            )
    return ("，" if is_chinese("".join(words)) else ", ").join(words) or None


def _unknown(words: list[str]) -> str:
    hints = []
    for word in words:
        near = difflib.get_close_matches(word, sorted(WORDS), n=1)
        hints.append(quoted(word[:40]) + (f" (did you mean {near[0]!r}?)" if near else ""))
    known = ", ".join(sorted(each for each in WORDS if not is_chinese(each)))
    return (
        f"`options.instruct`: unknown {', '.join(hints)}; this model knows {known}, and their "
        "Chinese words and dialects"
    )
