"""The tables of docs/families.md from the cards: what each family can do, a column each, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from voice_clone.family import Family


def _mode(card: Family, transcript: bool) -> str:
    return next((f"`{mode}`" for mode, needs in card.modes.items() if bool(needs) == transcript), "no")


def _language(card: Family) -> str:
    return f"one of {len(card.languages)}" if card.languages else "no"


ROWS: Mapping[str, tuple[str, Callable[[Family], str]]] = {
    "family": ("family", lambda card: f"`{card.name}`"),
    "sizes": ("weights of the talker", lambda card: card.sizes),
    "licence": ("licence of the weights, as their page says", lambda card: card.licence),
    "with transcript": ("clones a clip with its transcript, in the mode", lambda card: _mode(card, True)),
    "without transcript": ("clones a clip without a transcript, in the mode", lambda card: _mode(card, False)),
    "without a voice": ("speaks without a registered voice", lambda card: "yes" if card.voiceless else "no"),
    "instructions": (
        "instructions (`instructions` of the gateway)",
        lambda card: f"`{card.instructions}`" if card.instructions else "no",
    ),
    "rate": ("sample rate", lambda card: ""),
    "frame": ("a frame; frames a second", lambda card: ""),
    "first audio": ("first audio comes after", lambda card: ""),
    "appends": ("text may follow while it is spoken", lambda card: "yes" if card.appends else "no"),
    "kept": ("kept of a clip of 10 s with its transcript", lambda card: ""),
    "language": ("`language`", _language),
}
"""By name: what the row says, and what of it the other fields of a card say."""


def table(cards: Sequence[Family]) -> str:
    """Markdown. Kinds of another family have no column.

    Raises:
        ValueError: a card has a cell for a row that is not there, or lacks one.
    """
    shown = sorted((card for card in cards if not card.decoder_of), key=lambda card: (not card.appends, card.name))
    rows = [
        ["", *(f"[{card.title}]({card.name}.md)" for card in shown)],
        ["---"] * (1 + len(shown)),
        *([said, *(_cell(card, name) for card in shown)] for name, (said, _) in ROWS.items()),
    ]
    return "".join(f"|{'|'.join(row)}|\n" if row[0] == "---" else f"| {' | '.join(row)} |\n" for row in rows)


def _cell(card: Family, name: str) -> str:
    if unknown := card.cells.keys() - ROWS:
        raise ValueError(f"the card {card.name} has cells of no row: {', '.join(sorted(unknown))}")
    cell = card.cells.get(name) or ROWS[name][1](card)
    if not cell:
        raise ValueError(f"the card {card.name} lacks the cell {name!r}")
    return cell


def options_table(cards: Sequence[Family]) -> str:
    """Markdown: the options of each family, without those of kinds that have the same."""
    rows = [
        f"| `{card.name}` | `{each.name}` | {each.takes} | {each.meaning} |\n"
        for card in cards
        if not card.decoder_of
        for each in card.options
    ]
    return "".join(["| family | option | it may be | |\n", "|---|---|---|---|\n", *rows])
