"""What client, gateway and documents say of fields, families, settings and metrics, written from where these stand.

The client does without the server's package, and type checkers see only what is written. `python -m tools.models`
writes these files, too.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voice_clone_errors.kinds import KINDS

from tools.families.table import options_table, table
from tools.settings_table import tables
from tools.vendor_paths import table as vendor_paths
from voice_clone.batching import statistics
from voice_clone.codec import series
from voice_clone.family import Family
from voice_clone.metrics import SERIES as MODEL_SERIES
from voice_clone.metrics import SeriesForm
from voice_clone.request_fields import FIELDS, KNOBS, RequestField
from voice_clone.speakers import metrics
from voice_clone_server.families.cards import PACKAGES, cards
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, ROOT

CLIENT = ROOT / "client" / "voice_clone_client" / "fields.py"
GATEWAY = ROOT / "gateway" / "voice_clone_gateway" / "fields.py"
DOCS = ROOT / "docs"
WRITTEN = "Written by tools/models.py from voice_clone/request_fields.py; change that."
PYTHON: Mapping[str, str] = {"STRING": "str", "BOOL": "bool", "INT32": "int", "UINT64": "int", "FP32": "float"}
ENDS: Mapping[str, str] = {"INT32": "lt=2**31", "UINT64": "lt=2**64", "FP32": "allow_inf_nan=False"}
"""What a tensor cannot hold, as pydantic checks it."""
STATUSES: Mapping[str, tuple[str, int]] = {
    "INVALID_ARG": ("INVALID_ARGUMENT", 400),
    "NOT_FOUND": ("NOT_FOUND", 404),
    "ALREADY_EXISTS": ("ALREADY_EXISTS", 400),
    "UNAVAILABLE": ("UNAVAILABLE", 503),
    "UNSUPPORTED": ("UNIMPLEMENTED", 501),
    "CANCELLED": ("CANCELLED", 400),
    "INTERNAL": ("INTERNAL", 500),
}
"""How Triton answers an error with each of its codes by gRPC and by HTTP."""
SERIES = {
    "model": MODEL_SERIES,
    "talker": statistics.SERIES,
    "code2wav": series.SERIES,
    "speaker_cache": metrics.SERIES,
}
OPTIONS = "options"  # a string for Triton, an object for all others


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model. `dims`: as in config.pbtxt."""

    name: str
    dtype: str
    meaning: str = ""
    dims: str = "1"

    def line(self, optional: bool, last: bool) -> str:
        """Its line in a block of inputs or outputs."""
        may_lack = " optional: true" if optional else ""
        comment = f"  # {self.meaning}" if self.meaning else ""
        end = "" if last else ","
        return f'  {{ name: "{self.name}" data_type: TYPE_{self.dtype} dims: [ {self.dims} ]{may_lack} }}{end}{comment}'


def tensor(each: RequestField) -> Tensor:
    """The input of a model."""
    return Tensor(each.name, each.dtype, _meaning(each), str(each.size))


def wanted() -> dict[Path, str]:
    """The files, as they should be. Those of the models must be written before: docs/settings.md follows them."""
    parts = {
        MODELS / "speech_whole" / "config.pbtxt": {"inputs": _whole_inputs()},
        OPTIONAL / "text_front_end" / "config.pbtxt": {"inputs": _whole_inputs()},
        DOCS / "triton_api.md": {"inputs": _inputs_table(), "errors": _errors_table()},
        DOCS / "families.md": {
            "families": table(cards()),
            "parameters": _parameters_table(),
            "options": options_table(cards()),
        },
        ROOT / "README.md": {"models": _models()},
        DOCS / "adding_a_family.md": {"card": _card()},
        DOCS / "settings.md": {"settings": f"\n{tables()}\n"},
        DOCS / "operations.md": {"metrics": _metrics_table()},
        DOCS / "http_api.md": {"paths": vendor_paths()},
    }
    found = {CLIENT: client(), GATEWAY: gateway()}
    for path, named in parts.items():
        text = path.read_text(encoding="utf-8")
        for name, part in named.items():
            text = with_part(text, name, part, "<!-- {} -->\n" if path.suffix == ".md" else "  # {}\n")
        found[path] = text
    return found


def with_part(text: str, name: str, part: str, mark: str = "<!-- {} -->\n") -> str:
    """A document with another part between the marks of that name.

    Raises:
        ValueError: it has no such marks.
    """
    begin, end = mark.format(f"{name}: written by tools/models.py"), mark.format(f"end of {name}")
    before, begins, rest = text.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"there are no marks {begin.strip()} and {end.strip()}")
    return before + begin + part + end + after


def client() -> str:
    """The client's module."""
    dtypes = {each.name: each.dtype for each in FIELDS if each.dtype != "STRING"}
    knobs = "".join(f"    {each.name}: {_python(each)} | None\n{_docstring(each)}" for each in _knobs())
    return f'''"""The fields of a speech. {WRITTEN}"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

SOURCES = {_tuple([each.name for each in FIELDS if each.role == "source"])}
"""Those that say whose voice it is; a request has one."""
DTYPES = {_dict(dtypes)}
"""Triton's type of each that is no string."""
MEANINGS = {_dict({each.name: _meaning(each) for each in _knobs()})}
"""What each knob is, and the numbers that it may be."""


class Knobs(TypedDict, total=False):
    """How the server speaks a text. A knob that is absent or None takes the default of the server's checkpoint."""

{knobs}'''


def gateway() -> str:
    """The gateway's module."""
    knobs = "".join(
        f"    {each.name}: {_json(each)} | None = None\n{_docstring(each, each.aliases)}"
        for each in _knobs()
        if each.name != OPTIONS
    )
    return f'''"""The fields of a speech as JSON. {WRITTEN}"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from voice_clone_client.types import MAX_NAME

ALIASES = {_dict({alias: each.name for each in FIELDS for alias in each.aliases})}
"""Other names of fields."""


class Knobs(BaseModel, strict=True, use_attribute_docstrings=True):
    """How the server speaks a text."""

{knobs}'''


def _knobs() -> list[RequestField]:
    return [each for each in FIELDS if each.role == "knob"]


def _meaning(each: RequestField) -> str:
    return f"{each.meaning} ({each.range})" if each.range else each.meaning


def _docstring(each: RequestField, aliases: Sequence[str] = ()) -> str:
    meaning = _meaning(each)
    others = f" Another name: {', '.join(aliases)}." if aliases else ""
    text = f'"""{meaning[0].upper()}{meaning[1:]}.{others}"""'
    return textwrap.fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 4) + "\n"


def _python(each: RequestField) -> str:
    return "Mapping[str, Any]" if each.name == OPTIONS else PYTHON[each.dtype]


def _json(each: RequestField) -> str:
    """Its type in JSON, with its range."""
    if each.dtype == "STRING":
        return "Annotated[str, Field(max_length=MAX_NAME)]"
    if each.dtype == "BOOL":
        return "bool"
    bounds = {"gt": each.above, "ge": each.least, "le": each.most if each.dtype == "FP32" else None}
    said = [f"{name}={value}" for name, value in bounds.items() if value is not None]
    return f"Annotated[{PYTHON[each.dtype]}, Field({', '.join([*said, ENDS[each.dtype]])})]"


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(map(json.dumps, names))})"


def _dict(entries: Mapping[str, str]) -> str:
    lines = "".join(f"    {json.dumps(name)}: {json.dumps(value)},\n" for name, value in entries.items())
    return f"{{\n{lines}}}"


def _whole_inputs() -> str:
    """For speech_whole and text_front_end, which take a whole text."""
    names = [each for each in FIELDS if each.name != "text_stream"]
    return "".join(tensor(each).line(True, each is names[-1]) + "\n" for each in names)


def _inputs_table() -> str:
    """Markdown: the inputs that are neither the text nor the source of the voice."""
    rows = [
        f"| `{each.name}` | {each.dtype} | {each.range} | {each.meaning} |\n"
        for each in FIELDS
        if each.role in ("voice", "knob")
    ]
    return "".join(["| input | type | range | |\n", "|---|---|---|---|\n", *rows])


def _errors_table() -> str:
    """Markdown: the errors of the server."""
    rows = [
        " | ".join((f"| `{kind.slug}`", *map(str, STATUSES[kind.code]), f"{kind.meaning} |".lstrip())) + "\n"
        for kind in KINDS
        if kind.code
    ]
    return "".join(["| slug | gRPC | HTTP | |\n", "|---|---|---|---|\n", *rows])


def _parameters_table() -> str:
    """Markdown: which families have which knobs."""
    known = [card for card in _by_name() if not card.decoder_of]
    rows = [
        f"| `{name}` | "
        + " | ".join("yes" if name in (*card.knobs, "seed", "max_frames") else "no" for card in known)
        + " |\n"
        for name in KNOBS
    ]
    head = f"| | {' | '.join(card.title for card in known)} |\n|{'---|' * (len(known) + 1)}\n"
    return "".join([head, *rows])


def _models() -> str:
    """Markdown: an entry of a list, the families with their pages."""
    links = [f"[{card.title}](docs/{card.decoder_of or card.name}.md)" for card in _by_name()]
    text = f"- **Models**: {', '.join(links)}. [docs/families.md](docs/families.md) compares them."
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _by_name() -> list[Family]:
    """The cards of the package; those to whose speech text can be appended come first."""
    return sorted(cards(), key=lambda card: (not card.appends, card.name))


def _card() -> str:
    """Markdown: the card of the family with the shortest one."""
    codes = [(ROOT / package.replace(".", "/") / "family.py").read_text(encoding="utf-8") for package in PACKAGES]
    shortest = min(codes, key=len)
    return f"```python\n{shortest[shortest.index('CARD = ') :]}```\n"


def _metrics_table() -> str:
    """Markdown: the series of all parts of the server."""
    rows = [
        f"| `voice_clone_{part}_{name}` | {form.kind} | {form.label and _labels(form)} | {form.meaning} |\n"
        for part, forms in SERIES.items()
        for name, form in forms.items()
    ]
    return "".join(["| name | kind | label | what it counts |\n", "|---|---|---|---|\n", *rows])


def _labels(form: SeriesForm) -> str:
    return f"`{form.label}`: {', '.join(form.values)}"
