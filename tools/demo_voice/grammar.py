"""A grammar of simple English sentences: what the training says, and what a recogniser may be told to expect.

A rule is a list of expansions; `<name>` in an expansion stands for any expansion of that rule. No rule leads back to
itself, so the language is finite, and the same rules are a JSGF grammar (Java Speech Grammar Format).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from tools.demo_voice import words

Rules = Mapping[str, Sequence[str]]

_VOWELS = "aeiou"
_SYMBOL = re.compile(r"<(\w+)>")


def rules() -> dict[str, list[str]]:
    """All rules; `sentence` is the first."""
    nouns = [*words.PEOPLE, *words.ANIMALS, *words.THINGS]
    transitive = {**{verb: (_past(verb),) * 2 for verb in words.TRANSITIVE}, **words.IRREGULAR_TRANSITIVE}
    intransitive = {**{verb: (_past(verb),) * 2 for verb in words.INTRANSITIVE}, **words.IRREGULAR_INTRANSITIVE}
    described = words.ADJECTIVES
    return {
        **_PHRASES,
        "noun": nouns,
        "someone": words.PEOPLE,
        "animal": words.ANIMALS,
        "object": words.THINGS,
        "place": words.PLACES,
        "idea": words.ABSTRACT,
        "nouns": [_plural(noun) for noun in nouns],
        "a_noun": [f"{_article(noun)} {noun}" for noun in nouns],
        "a_idea": [f"{_article(noun)} {noun}" for noun in words.ABSTRACT],
        "adjective": described,
        "a_adjective": [f"{_article(word)} {word}" for word in described],
        "act": list(transitive),
        "acts": [_third_person(verb) for verb in transitive],
        "acted": [past for past, _ in transitive.values()],
        "acted_on": [participle for _, participle in transitive.values()],
        "acting": [_present_participle(verb) for verb in transitive],
        "do": list(intransitive),
        "does": [_third_person(verb) for verb in intransitive],
        "did": [past for past, _ in intransitive.values()],
        "doing": [_present_participle(verb) for verb in intransitive],
        "name": words.NAMES,
        "city": words.CITIES,
        "number": words.NUMBERS,
        "day": words.DAYS,
        "month": words.MONTHS,
        "how": words.MANNER,
        "when": words.TIMES,
        "where": words.PREPOSITIONS,
    }


# Commas make the synthesisers pause. A question mark at the end of an expansion replaces the full stop.
_PHRASES: dict[str, list[str]] = {
    "sentence": [
        *["<subject> <predicate>", "<subject> <predicate> <place_phrase>", "<subject> <predicate> <when>"] * 3,
        "<when>, <subject> <predicate>",
        "<many> <plural_predicate>",
        "<many> <plural_predicate> <place_phrase>",
        "<you> <plural_predicate>",
        "<you> <plural_predicate> <when>",
        "<order>",
        "please <order>",
        "<name>, please <order>",
        "<question>?",
        "<question> <when>?",
        "<opening>, <remark>",
        "<remark>",
        "<fact>",
        "<fact>, but <remark>",
        "<subject> <past> and <past>",
        "<subject> <past> because <it> was <very> <adjective>",
        "if you <act> <thing>, <remark>",
        "when <subject> <past>, <it> was <adjective>",
        "<subject> said that <it> <past>",
        "the <noun>, the <noun> and the <noun> were <adjective>",
        "<list>",
        "<everyday>",
        "<everyday>, <everyday>",
    ],
    "everyday": [
        "how are you",
        "I am fine, thank you",
        "nice to meet you",
        "what time is it",
        "it is half past <number>",
        "I don't know",
        "I'm not sure about that",
        "see you <when>",
        "have a nice day",
        "happy birthday",
        "welcome home",
        "thank you very much",
        "you're welcome",
        "excuse me",
        "where do you come from",
        "what is your name",
        "what's the matter",
        "that's right",
        "that's all for now",
        "let's go to the <place>",
        "come with me",
        "come here",
        "wait a minute",
        "don't worry about it",
        "I would like some <object>",
        "I'd like a cup of tea",
        "could you help me",
        "what do you think",
        "I think so, too",
        "I've been there before",
        "we'll be there at <number> o'clock",
        "you can say that again",
        "this is a test",
        "hello world",
        "can you hear me",
        "speak a little louder",
        "the <object> costs <number> dollars",
        "once upon a time there was <a_noun>",
        "the weather is <adjective> today",
        "he doesn't live here anymore",
        "she is looking for her <object>",
        "they went there by train",
        "it was raining outside",
        "the water in the <place> is <adjective>",
        "my favorite color is blue",
        "read the next page",
        "turn left at the <place>",
        "first things first",
    ],
    "subject": ["<the> <noun>", "<the> <adjective> <noun>", "<name>", "<it>", "<the> <someone>", "<a_noun>"],
    "the": ["the", "the", "the", "my", "your", "his", "her", "our", "their", "this", "that", "every", "no", "another"],
    "these": ["the", "my", "your", "our", "these", "those", "some", "many", "few", "most", "all the", "<number>"],
    "it": ["he", "she", "it"],
    "you": ["I", "you", "we", "they", "people"],
    "many": ["<these> <nouns>", "<these> <adjective> <nouns>", "<name> and <name>"],
    "thing": ["<the> <noun>", "<a_noun>", "<the> <adjective> <object>", "<a_adjective> <object>", "<these> <nouns>"],
    "thing_or_pronoun": ["<thing>", "<thing>", "<thing>", "him", "her", "it", "them", "me", "us", "<the> <idea>"],
    "predicate": ["<past>", "<past>", "<present>", "<other>"],
    "past": ["<acted> <thing_or_pronoun>", "<did> <how>", "<did> <place_phrase>", "<acted> <thing_or_pronoun> <how>"],
    "present": ["<acts> <thing_or_pronoun>", "<does> <how>", "<does> <place_phrase>", "always <acts> <thing_or_pronoun>"],
    "other": [
        "was <very> <adjective>",
        "is <adjective>",
        "has <a_noun>",
        "had <these> <nouns>",
        "was <acting> <thing_or_pronoun>",
        "is <doing> <place_phrase>",
        "<will> <act> <thing_or_pronoun>",
        "<will> <do> <how>",
        "has <acted_on> <thing_or_pronoun>",
        "had never <acted_on> <thing_or_pronoun>",
        "wants to <act> <thing>",
        "likes <acting> <nouns>",
        "was <acted_on> by <thing>",
        "did not <act> <thing_or_pronoun>",
        "doesn't <act> <thing>",
        "isn't <adjective>",
        "came from <city>",
    ],
    "plural_predicate": [
        "<acted> <thing_or_pronoun>",
        "<did> <how>",
        "<act> <thing_or_pronoun>",
        "<do> <place_phrase>",
        "were <very> <adjective>",
        "are <adjective>",
        "have <acted_on> <thing_or_pronoun>",
        "<will> <act> <thing_or_pronoun>",
        "don't <act> <thing>",
        "had to <act> <thing>",
    ],
    "will": ["will", "can", "could", "would", "should", "must", "may", "might", "cannot", "won't", "can't"],
    "very": ["very", "so", "too", "quite", "not", "rather", "almost", "still", "more", "less"],
    "place_phrase": ["<where> the <place>", "<where> <the> <noun>", "in the <place>", "at the <place>", "in <city>"],
    "order": [
        "<act> <thing_or_pronoun>",
        "<act> <thing> <how>",
        "<act> <thing> <place_phrase>",
        "do not <act> <thing>",
        "<do> <place_phrase>",
        "don't <do> <how>",
    ],
    "question": [
        "did you <act> <thing>",
        "do you <act> <these> <nouns>",
        "where is <the> <noun>",
        "where are <these> <nouns>",
        "who <acted> <thing>",
        "what did <subject> <act>",
        "why is <the> <noun> so <adjective>",
        "how many <nouns> did you <act>",
        "can you <act> <thing>",
        "is <the> <noun> <adjective>",
        "when will <subject> <act> <thing>",
        "how <adjective> is <the> <noun>",
        "which <noun> is <adjective>",
        "whose <noun> was <acted_on>",
        "are you <adjective>",
    ],
    "opening": ["yes", "no", "well", "oh", "hello", "good morning", "thank you", "of course", "sorry", "sir", "<name>"],
    "remark": [
        "it is <a_adjective> <idea>",
        "that was <a_idea>",
        "there is <a_noun> <place_phrase>",
        "there are <number> <nouns> <place_phrase>",
        "I am <adjective>",
        "I'm <doing> <place_phrase>",
        "we are <very> <adjective>",
        "this is my <noun>",
        "it's time to <do>",
        "let us <act> <thing>",
        "they'll <act> <thing>",
        "here is the <idea>",
        "nothing is as <adjective> as <a_noun>",
        "I think that <subject> <past>",
        "you have <number> <nouns>",
        "my name is <name>",
    ],
    "fact": [
        "<the> <idea> is <adjective>",
        "<the> <idea> of the <noun> was <very> <adjective>",
        "we <act> the <noun> on <day>",
        "it happened in <month>",
        "<name> is <number> years old",
        "the <place> is open until <number> o'clock",
        "both <nouns> and <nouns> are <adjective>",
        "<a_noun> is <adjective>er than <a_noun>",
        "<number> and <number> make <number>",
    ],
    "list": [
        "<noun>, <adjective>, <act>, <idea>, <how>",
        "<idea> and <noun>, <place> and <animal>",
        "<number>, <number>, <number>, <number>",
        "<name>, <name> and <name>",
        "<day>, <month>, <city>",
    ],
}
# Comparatives by rule are right only for some adjectives.
_PHRASES["fact"] = [expansion.replace("<adjective>er", "more <adjective>") for expansion in _PHRASES["fact"]]


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


def jsgf(grammar: Rules) -> str:
    """The language of the sentences in the Java Speech Grammar Format."""
    lines = ["#JSGF V1.0;", "grammar sentences;"]
    for name, expansions in grammar.items():
        plain = dict.fromkeys(re.sub(r"[,.?]", "", expansion).lower() for expansion in expansions)
        lines.append(f"{'public ' if name == 'sentence' else ''}<{name}> = {' | '.join(plain)};")
    return "\n".join(lines) + "\n"


def _article(word: str) -> str:
    if word in ("hour", "honest"):
        return "an"
    return "an" if word[0] in _VOWELS and not word.startswith(("uni", "use", "usu", "euro")) else "a"


def _plural(noun: str) -> str:
    return _PLURALS.get(noun) or _with_s(noun)


_PLURALS = {
    **{"child": "children", "man": "men", "woman": "women", "policeman": "policemen", "fisherman": "fishermen"},
    **{"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth", "wolf": "wolves", "leaf": "leaves"},
    **{"knife": "knives", "scarf": "scarves", "thief": "thieves", "sheep": "sheep", "deer": "deer", "fish": "fish"},
    **{"potato": "potatoes", "tomato": "tomatoes", "shelf": "shelves"},
}


def _third_person(verb: str) -> str:
    return {"go": "goes"}.get(verb) or _with_s(verb)


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh")) else "s")


_DOUBLED = "beg step drop plan stop hug rub grab swim run sit get put hit cut win hop trap wrap chat shop forget".split()


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
