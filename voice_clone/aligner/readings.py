"""What may be said for a token of an English text: words of the dictionary, in one or several ways.

The decoder chooses among them by the sound. So nothing here has to be certain; the text front end, which must settle on
one reading, has other rules.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {"&": "and", "%": "percent", "+": "plus", "@": "at", "=": "equals", "#": "number", "°": "degrees"}
_MONEY = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny"), "¥": ("yen", "sen")}
_PARTS = re.compile(r"\d+(?:,\d{3})+(?!\d)|\d+(?:st|nd|rd|th)\b|\d+|[a-z]+(?:'[a-z]+)*'?|[&%+@=#°$€£¥]|[.:](?=\d)")
_ONES = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
)
_TENS = re.findall(r"\w+", "zero ten twenty thirty forty fifty sixty seventy eighty ninety")
_GROUPS = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
             "twelve": "twelfth"}  # fmt: skip
_AMOUNT = re.compile(r"([$€£¥])(\d+(?:,\d{3})*)(?:\.(\d\d))?$")
_LONGEST = 12  # digits of a number that is read as one

Reading = tuple[str, ...]


def readings(token: str) -> list[Reading]:
    """The ways to say a token: each a row of lower-case words, some of which no dictionary may have. Empty: nothing is
    known about it."""
    text = unicodedata.normalize("NFKD", token.replace("’", "'")).casefold()
    text = "".join(each for each in text if not unicodedata.combining(each))
    amount = _AMOUNT.match(text.strip(".,;:!?()\"'"))
    if amount is not None:
        return _money(*amount.groups())
    parts = [found[0] for found in _PARTS.finditer(text)]
    if any(each.isalpha() and not each.isascii() for each in text):
        return []  # another script, or letters that no rule knows
    found: list[Reading] = [()]
    for index, part in enumerate(parts):
        decimal = index > 1 and parts[index - 1] == "."
        ways = _ways(part, decimal)
        found = [(*before, *way) for before in found for way in ways][:12]
    if len(parts) > 1 and all(part.isalpha() for part in parts):
        found.append(("".join(parts),))
    letters = [each for each in token if each.isalpha()]
    if 1 < len(letters) <= 5 and all(each.isupper() for each in letters):
        found.append(tuple(spelled(text)))
    return [*dict.fromkeys(way for way in found if way)]


def spelled(word: str) -> list[str]:
    """The names of the letters, as the dictionary has them, and of the digits."""
    return [f"{each}." if each.isalpha() else _ONES[int(each)] for each in word if each.isalpha() or each.isdecimal()]


def _ways(part: str, decimal: bool) -> list[Reading]:
    """The ways to say a part of a token; `decimal`: it is behind a point."""
    if part[0].isdigit():
        digits = part.replace(",", "")
        if not digits.isdecimal():
            words = cardinal(int(digits[:-2]))
            return [(*words[:-1], _ordinal(words[-1]))]
        return _numbers(digits, decimal)
    if part in _MONEY:
        return [(f"{_MONEY[part][0]}s",), (_MONEY[part][0],), ()]
    if part in ".:":
        return [("point",), ("dot",), ()] if part == "." else [(), ("to",)]
    if part in _SIGNS:
        return [(_SIGNS[part],), ()]
    return [(part.strip("'"),)]


def _numbers(digits: str, decimal: bool) -> list[Reading]:
    single = tuple(_ONES[int(each)] for each in digits)
    if len(digits) > _LONGEST or (digits[0] == "0" and len(digits) > 1):
        zero = tuple("oh" if each == "zero" else each for each in single)
        return [*dict.fromkeys([single, zero])]
    whole = cardinal(int(digits))
    found: list[Reading] = [single, whole] if decimal else [whole]
    if "hundred" in whole and len(whole) > whole.index("hundred") + 1:
        at = len(whole) - whole[::-1].index("hundred")
        found.append((*whole[:at], "and", *whole[at:]))
    if len(digits) == 4:
        first, second = int(digits[:2]), int(digits[2:])
        rest = cardinal(second) if second > 9 else ("oh", _ONES[second]) if second else ("hundred",)
        found.append((*cardinal(first), *rest))
    if len(digits) == 3:
        second = int(digits[1:])
        found.append((_ONES[int(digits[0])], *(cardinal(second) if second > 9 else ("oh", _ONES[second]))))
    if len(digits) > 1:
        found.append(single)
    return [*dict.fromkeys(found)]


def cardinal(number: int) -> Reading:
    """A whole number below 10^12 in words, without `and`."""
    if number < 20:
        return (_ONES[number],)
    if number < 100:
        tens, ones = divmod(number, 10)
        return (_TENS[tens], *((_ONES[ones],) if ones else ()))
    size, name = next(group for group in _GROUPS if group[0] <= number)
    many, rest = divmod(number, size)
    return (*cardinal(many), name, *(cardinal(rest) if rest else ()))


def _ordinal(word: str) -> str:
    if word in _ORDINALS:
        return _ORDINALS[word]
    return f"{word[:-1]}ieth" if word.endswith("y") else f"{word}th"


def _money(sign: str, whole: str, part: str | None) -> list[Reading]:
    """Amounts such as `$3.50`."""
    unit, small = _MONEY[sign]
    found: list[Reading] = []
    for amount in _numbers(whole.replace(",", ""), decimal=False):
        units = (*amount, unit if int(whole.replace(",", "")) == 1 or unit == "yen" else f"{unit}s")
        if part is None or part == "00":
            found.append(units)
            continue
        cents = cardinal(int(part))
        found += [(*units, *cents), (*amount, *cents), (*units, "and", *cents)]
        found += [(*units, *cents, f"{small}s"), (*units, "and", *cents, f"{small}s")]
    return found[:12]
