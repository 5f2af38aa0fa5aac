"""A grammar of simple English sentences, for the training and for its judges.

A rule is a list of expansions; `<name>` in an expansion stands for any expansion of that rule. No rule leads back to
itself, so the language is finite.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

Rules = Mapping[str, Sequence[str]]

_VOWELS = "aeiou"
_SYMBOL = re.compile(r"<(\w+)>")


def rules() -> dict[str, list[str]]:
    """All rules; `sentence` is the first."""
    words = {
        name: [word.replace("_", " ") for line in lines for word in line.split()] for name, lines in _LISTS.items()
    }
    nouns = [*words["people"], *words["animals"], *words["things"]]
    verbs = {}
    for kind in ("transitive", "intransitive"):
        irregular = (line.split() for line in _LISTS[f"irregular_{kind}"])
        verbs[kind] = {verb: (_past(verb),) * 2 for verb in words[kind]} | {verb: (a, b) for verb, a, b in irregular}
    return {
        # Commas make the synthesisers pause. A question mark at the end replaces the full stop.
        **_sections("phrases.txt"),
        "noun": nouns,
        "someone": words["people"],
        "animal": words["animals"],
        "object": words["things"],
        "place": words["places"],
        "idea": words["abstract"],
        "nouns": [_plural(noun) for noun in nouns],
        "a_noun": [f"{_article(noun)} {noun}" for noun in nouns],
        "a_idea": [f"{_article(noun)} {noun}" for noun in words["abstract"]],
        "adjective": words["adjectives"],
        "a_adjective": [f"{_article(word)} {word}" for word in words["adjectives"]],
        "act": list(verbs["transitive"]),
        "acts": [_third_person(verb) for verb in verbs["transitive"]],
        "acted": [past for past, _ in verbs["transitive"].values()],
        "acted_on": [participle for _, participle in verbs["transitive"].values()],
        "acting": [_present_participle(verb) for verb in verbs["transitive"]],
        "do": list(verbs["intransitive"]),
        "does": [_third_person(verb) for verb in verbs["intransitive"]],
        "did": [past for past, _ in verbs["intransitive"].values()],
        "doing": [_present_participle(verb) for verb in verbs["intransitive"]],
        "name": words["names"],
        "city": words["cities"],
        "number": words["numbers"],
        "day": words["days"],
        "month": words["months"],
        "how": words["manner"],
        "when": words["times"],
        "where": words["prepositions"],
    }


def _sections(file: str) -> dict[str, list[str]]:
    """The lines of a file beside this one, by the name in brackets above them."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


_LISTS = _sections("words.txt")
_PLURALS = dict(line.split() for line in _LISTS["plurals"])  # not by rule
_DOUBLED = {verb for line in _LISTS["doubled"] for verb in line.split()}  # their last letter, before -ed and -ing


def expand(symbol: str, grammar: Rules, chance: random.Random) -> str:
    """A random expansion of a rule."""
    chosen = chance.choice(grammar[symbol])
    return _SYMBOL.sub(lambda found: expand(found[1], grammar, chance), chosen)


def sentence(grammar: Rules, chance: random.Random) -> str:
    """A random sentence with its first letter large and its punctuation."""
    text = expand("sentence", grammar, chance)
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def spoken_words(text: str) -> list[str]:
    """The words of a text in small letters, as a recogniser writes them."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("’", "'"))


def _article(word: str) -> str:
    if word in ("hour", "honest"):
        return "an"
    return "an" if word[0] in _VOWELS and not word.startswith(("uni", "use", "usu", "euro")) else "a"


def _plural(noun: str) -> str:
    return _PLURALS.get(noun) or _with_s(noun)


def _third_person(verb: str) -> str:
    return {"go": "goes"}.get(verb) or _with_s(verb)


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + (verb[-1] if verb in _DOUBLED else "") + "ed"


def _present_participle(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + (verb[-1] if verb in _DOUBLED else "") + "ing"
