"""Writes the README's table of settings from where they stand: the parameters of all config.pbtxt, with comments.

python -m tools.settings_table           writes it
python -m tools.settings_table --check   exits 1 if the README is behind
"""

from __future__ import annotations

import argparse
import re
import sys

from tools.triton_server import MODELS, ROOT

README = ROOT / "README.md"
BEGIN, END = "<!-- settings: written by tools/settings_table.py -->\n", "<!-- end of settings -->\n"
VARIABLES_ONLY = {"write_token": ("speaker_cache", "who changes voices must send it, see Security; as a variable only")}

_PARAMETER = re.compile(
    r'^parameters \{ key: "(\w+)" value \{ string_value: "([^"]*)" \} \}(?:\s*#\s*(.*))?$', re.MULTILINE
)


def parameters() -> list[tuple[str, str, str, str]]:
    """(model, setting, default, meaning) of every parameter, in the order of the files."""
    found = []
    for config in sorted(MODELS.glob("*/config.pbtxt")):
        text = config.read_text(encoding="utf-8")
        found += [(config.parent.name, *match.groups(default="")) for match in _PARAMETER.finditer(text)]
        if len(_PARAMETER.findall(text)) != text.count("\nparameters"):
            raise ValueError(f"{config.parent.name}: a parameter is not on a line of its own")
    return found  # type: ignore[return-value]


def table() -> str:
    """Markdown; settings that several models have with one default and meaning share a line."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for model, name, default, meaning in parameters():
        lines.setdefault((name, default, meaning), []).append(model.removeprefix("qwen3_tts_"))
    for name, (model, meaning) in VARIABLES_ONLY.items():
        lines[name, "", meaning] = [model]
    rows = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {', '.join(models)} | {meaning} |"
        for (name, default, meaning), models in sorted(lines.items())
    ]
    return "\n".join(["| setting | default | models | |", "|---|---|---|---|", *rows]) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + "\n" + table() + "\n" + END + after
    if check and wanted != text:
        print("The README's table of settings is behind: python -m tools.settings_table", file=sys.stderr)
        return 1
    if not check:
        README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
