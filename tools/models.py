"""Writes the models of the families into a model repository, from their cards.

Each family has a card, voice_clone/families/<family>/family.py, and the inputs of all public models stand in
voice_clone/request_fields.py. Change these, then run this program; it also writes what tools/fields.py makes.

python -m tools.models                           writes all: model_repository/, and the files of tools/fields.py
python -m tools.models --check                   exits 1 if they are behind
python -m tools.models --output DIR PACKAGE ...  writes those of other packages' cards, such as mine.families.tenor
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from voice_clone_program.arguments import Parser

from tools import fields as request_fields
from tools.fields import Tensor, tensor
from voice_clone.family import EncoderPart, Family
from voice_clone.request_fields import FIELDS
from voice_clone.settings import DecoderSettings, EncoderSettings, PromptSettings, StageSettings, TalkerSettings
from voice_clone_server.families.cards import PACKAGES, cards
from voice_clone_server.triton_server import MODELS

PER_LINE = 119

# The settings that only some families' models read, by stage, each with the condition on the family's card.
CONDITIONS: Mapping[str, Mapping[str, Callable[[Family], Any]]] = {
    "prompt": {"max_chunk_frames": lambda card: card.references or card.frame.voice},
    "talker": {
        "chunk_frames": lambda card: card.chunk_frames,
        "text_idle_seconds": lambda card: card.appends,
        "prefill_chunk": lambda card: card.autoregressive,
        "prefix_bytes": lambda card: card.prefix_bytes,
        "restore_seconds": lambda card: card.prefix_bytes,
        "cuda_graphs": lambda card: card.autoregressive,
        "runaway_seconds": lambda card: card.autoregressive and card.frame.dtype != "FP32",
    },
    "code2wav": {
        "chunk_frames": lambda card: card.chunk_frames,
        "max_state_bytes": lambda card: card.streams == "states",
        "page_bytes": lambda card: card.streams == "pages",
        "cuda_graphs": lambda card: card.cuda_graphs,
        "packed_bytes": lambda card: card.native_decoder,
        "primed_bytes": lambda card: card.references and card.streams == "states",
        "primed_seconds": lambda card: card.references,
        "restore_seconds": lambda card: card.references,
        "voice_dir": lambda card: card.references,
    },
}


FORGET = Tensor("forget", "STRING", "instead of all else: a voice that was deleted")
APPENDS = (
    Tensor("append", "STRING", "instead of a prompt: the id of the stream whose text goes on"),
    Tensor("text", "STRING", "what is appended"),
    Tensor("index", "INT32", "of the append: 0, 1, 2, ..."),
    Tensor("last", "BOOL", "true: no more text follows"),
)
AUDIO = (
    Tensor("audio", "FP32", "samples, mono", "-1"),
    Tensor("sample_rate", "INT32", "Hz"),
    Tensor("chunk_index", "INT32", "0, 1, 2, ..."),
    Tensor("final", "BOOL", "true: the last chunk"),
    Tensor("info", "STRING", "JSON, with the first and the last chunk"),
)
PROMPT_INFO = Tensor("prompt_info", "STRING", "JSON: what the prompt stage says of the request")
WAVEFORM = Tensor("waveform", "FP32", "mono; empty: asks for fingerprints and shapes only", "-1")
RATE = Tensor("sample_rate", "INT32", "Hz")
MODE = Tensor("mode", "STRING", "one of the family's; without it all artifacts are made")
FOUND = [
    "speaker_cache finds this model by its name. It stores all outputs but fingerprints, modes, presets and limits."
]
AFTER = Tensor("after", "STRING", "not read: lets an ensemble run this model after another")


def files(card: Family, package: str) -> dict[str, str]:
    """The files of a family's models, by their paths in a model repository."""
    models = {card.name: (_public(card), "")}
    models[f"{card.name}_prompt"] = _prompt(card, package)
    models[f"{card.name}_talker"] = _talker(card, package)
    if not card.decoder_of:
        models[f"{card.name}_code2wav"] = _decoder(card, package)
    for part in card.encoders:
        models[f"{card.name}_{part.stage}"] = _encoder(card, part, package)
    if len(card.encoders) > 1:
        models[f"{card.name}_voice_encoder"] = (_voice_encoder(card), "")
    written = {f"{name}/config.pbtxt": config for name, (config, _) in models.items()}
    # Triton wants a folder for the version of an ensemble, too, and Git keeps none that is empty.
    return written | {f"{name}/1/{'model.py' if code else '.gitkeep'}": code for name, (_, code) in models.items()}


def _public(card: Family) -> str:
    """Return the ensemble that speaks: prompt, talker, code2wav."""
    decoder = f"{card.decoder_of or card.name}_code2wav"
    renamed = {each.name: f"talker_{each.name}" for each in _frames(card) if each.name in _names(AUDIO)}
    renamed |= {"stream_id": "talker_stream_id", "voice": "decoder_voice"}
    handed = {each.name: renamed.get(each.name, each.name) for each in _frames(card)}
    steps = [
        _step(f"{card.name}_prompt", _same(_fields("prompt")), _same(["prompt", "prompt_info"])),
        _step(f"{card.name}_talker", _same(["prompt", "prompt_info", *_fields("talker")]), handed),
        _step(decoder, handed, _same(_names(AUDIO))),
    ]
    said = [("checkpoint", card.recognised_by, "how a checkpoint of this family is recognised")]
    if card.instructions:
        said += [("instructions_option", card.instructions, "takes instructions of the OpenAI speech API")]
    if card.voiceless:
        said += [("voiceless", "true", "speaks without a voice, too")]
    if card.languages:
        said += [("languages", ", ".join(card.languages), "that a request may name")]
    if card.max_characters:
        said += [("max_characters", str(card.max_characters), "of a piece of text that it speaks well at once")]
    for option in card.options:
        said += [
            (f"option_{option.name}", f"{option.meaning} ({option.takes})", "one of `options`, for callers to read")
        ]
    own = ", ".join(each.name for each in card.options) or "none"
    inputs = [tensor(each) for each in FIELDS]
    inputs[-1] = Tensor("options", "STRING", f"{FIELDS[-1].meaning}: {own}")
    about = [
        f"{card.title}: text and a voice in, speech out, chunk by chunk.",
        "",
        f"  {card.name}_prompt -> {card.name}_talker (decoupled) -> {decoder}",
        "",
        "A step after the decoupled talker may take only tensors of the talker, so the talker hands on all that "
        "code2wav needs. Triton ends a stream that lacks a required input without a word, so text is optional here, "
        f"and {card.name}_prompt demands it.",
    ]
    parts = [
        _head(card.name, about, ensemble=True, decoupled=True),
        "".join(_parameter(*each) for each in said),
        _block("input", inputs, optional=True),
        _block("output", AUDIO),
        _scheduling(steps),
    ]
    return "\n".join(parts)


def _prompt(card: Family, package: str) -> tuple[str, str]:
    about = ["Text and voice to the talker's prompt: tokenises, checks, asks speaker_cache."]
    prompt = Tensor("prompt", "STRING", f"safetensors bytes: {', '.join(card.prompt)}")
    config = _python_model(
        _head(f"{card.name}_prompt", about),
        _block("input", [tensor(each) for each in FIELDS if "prompt" in each.stages], optional=True),
        _block("output", [prompt, PROMPT_INFO]),
        _settings(card, "prompt", PromptSettings),
    )
    return config, _code(card, package, "prompt.load_prompt", "prompt", "PromptModel", about[0])


def _talker(card: Family, package: str) -> tuple[str, str]:
    one = "continuous batching inside" if card.autoregressive else "utterances are batched inside"
    made = (
        f"a stream of {card.frame.kind}" if card.autoregressive else f"{card.frame.kind}, all of an utterance at once"
    )
    about = [f"Prompt to {made}; {one}, so exactly one instance."]
    inputs = [
        Tensor("prompt", "STRING", "of the prompt stage"),
        PROMPT_INFO,
        *(tensor(each) for each in FIELDS if "talker" in each.stages),
        Tensor("cancel", "STRING", "instead of all else: the id of a stream that ends"),
        FORGET,
        *(APPENDS if card.appends else ()),
    ]
    config = _python_model(
        _head(f"{card.name}_talker", about, decoupled=True),
        _block("input", inputs, optional=True),
        _block("output", _frames(card)),
        _settings(card, "talker", TalkerSettings),
    )
    return config, _code(card, package, "talker.load_talker", "talker", "TalkerModel", f"Prompt to {made}.")


def _decoder(card: Family, package: str) -> tuple[str, str]:
    kind = card.frame.kind[0].upper() + card.frame.kind[1:]
    about = [
        f"{kind} to waveform; keeps what it knows of every stream, so exactly one instance. One response a chunk, and "
        "none to a chunk without samples, so decoupled."
    ]
    config = _python_model(
        _head(f"{card.name}_code2wav", about, decoupled=True),
        _block("input", [*_frames(card), FORGET], optional=True),
        _block("output", AUDIO),
        _settings(card, "code2wav", DecoderSettings),
    )
    said = f"{kind} to audio, chunk by chunk."
    return config, _code(card, package, "codec.load_decoder", "code2wav", "Code2WavModel", said)


def _encoder(card: Family, part: EncoderPart, package: str) -> tuple[str, str]:
    """Return one of the models that make artifacts. The last one says what the family can do with a clip."""
    first, last = part is card.encoders[0], part is card.encoders[-1]
    fingerprints = card.fingerprints if len(card.encoders) == 1 else ("fingerprint",)
    inputs = [(WAVEFORM, False), (RATE, False), *([(MODE, True)] if last else []), *([] if first else [(AFTER, True)])]
    config = _python_model(
        _head(f"{card.name}_{part.stage}", [part.meaning, *(FOUND if part.stage == "voice_encoder" else [])]),
        _lines("input", [each.line(optional, each is inputs[-1][0]) for each, optional in inputs]),
        _block("output", _encoded(card, part.artifacts, fingerprints, last)),
        _settings(card, part.stage, EncoderSettings, ("checkpoint_dir", *part.settings)),
    )
    module, base = ("encoder", "EncoderModel") if part.artifacts else ("no_encoder", "NoEncoderModel")
    facts = [f'stage = "{part.stage}"'] if part.artifacts else []
    facts += [] if part.in_torch else ["in_torch = False"]
    facts += [f"least_rate = {part.least_rate}"] if part.least_rate else []
    return config, _code(card, package, part.load, module, base, part.meaning, facts)


def _voice_encoder(card: Family) -> str:
    """Return the ensemble of a family with several encoders."""
    steps, before = [], ""
    for part, fingerprint in zip(card.encoders, card.fingerprints, strict=True):
        last = part is card.encoders[-1]
        taken = _same(["waveform", "sample_rate", *(["mode"] if last else [])]) | ({"after": before} if before else {})
        made = _same(part.artifacts) | {"fingerprint": fingerprint}
        made |= _same(each.name for each in _encoded(card, (), (), last))
        steps.append(_step(f"{card.name}_{part.stage}", taken, made))
        before = fingerprint
    artifacts = [each.name for each in card.artifacts]
    about = [
        "Waveform to all that is kept of a voice.",
        *FOUND,
        "The steps run one after the other, though only an error asks for it: Triton 2.51 never releases an ensemble's "
        "request if one of its steps answers with an error while another is at work, and all check the waveform alike.",
    ]
    inputs = [WAVEFORM.line(False, False), RATE.line(False, False), MODE.line(True, True)]
    return "\n".join(
        [
            _head(f"{card.name}_voice_encoder", about, ensemble=True),
            _lines("input", inputs),
            _block("output", _encoded(card, artifacts, card.fingerprints, True)),
            _scheduling(steps),
        ]
    )


def _encoded(card: Family, artifacts: Collection[str], fingerprints: Sequence[str], declares: bool) -> list[Tensor]:
    """Return the outputs of an encoder. If `declares`, it also says what the family can do with a clip."""
    outputs = [
        Tensor(each.name, each.dtype, each.meaning, ", ".join(map(str, each.shape)))
        for each in card.artifacts
        if each.name in artifacts
    ]
    outputs += [Tensor(each, "STRING", "of weights and configuration") for each in fingerprints]
    if declares:
        outputs += [Tensor("modes", "STRING", "JSON: modes, the best first; what each needs, or why it cannot be had")]
        outputs += [Tensor("limits", "STRING", "JSON: what the artifacts may hold")] if card.artifacts else []
        outputs += [Tensor("presets", "STRING", "JSON: the voices that the checkpoint brings")] if card.presets else []
    return outputs


def _frames(card: Family) -> list[Tensor]:
    """Return the tensors that the talker hands to code2wav."""
    codes = f"{card.frame.kind}, frames x width"
    voice = f"safetensors bytes with chunk 0: {', '.join(card.frame.voice)}"
    return [
        Tensor("stream_id", "STRING", "of the speech"),
        Tensor("codes", card.frame.dtype, codes, "-1, -1"),
        Tensor("context_codes", card.frame.dtype, "with chunk 0: the reference's frames", "-1, -1"),
        *([Tensor("voice", "STRING", voice)] if card.frame.voice else []),
        *AUDIO[2:],
    ]


def _settings(card: Family, stage: str, kind: type[StageSettings], names: Collection[str] | None = None) -> str:
    """Return the parameters of a model; if `names` are given, only these."""
    lines = [
        f"# The environment variables VOICE_CLONE_<NAME> and, before it, VOICE_CLONE_{card.name.upper()}_<NAME> "
        "override each parameter.\n"
    ]
    for name, each in kind.known().items():
        condition = CONDITIONS.get(stage, {}).get(name)
        of_the_cache = name == "voice_store_tls"  # the models read it, too, but it is set where the store is
        if each.only_variable or of_the_cache or (condition and not condition(card)):
            continue
        if names is None or name in names:
            default = ",".join(map(str, card.chunk_frames)) if name == "chunk_frames" else _shown(each.default)
            lines.append(_parameter(name, default, each.meaning + _note(card, stage, name)))
    return "".join(lines)


def _note(card: Family, stage: str, name: str) -> str:
    """Return what is added to the meaning of a setting in this family."""
    if name == "prefix_bytes":
        return f"; default: {card.prefix_bytes >> 20} MB on a CPU, 5 % of the free memory on a GPU"
    return card.notes.get(f"{stage}.{name}", card.notes.get(name, ""))


def _shown(default: object) -> str:
    """Return the default of a setting as config.pbtxt has it; it is empty if the code decides."""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:.15g}" if isinstance(default, int | float) else default if isinstance(default, str) else ""


def _python_model(head: str, inputs: str, outputs: str, settings: str) -> str:
    return "\n".join([head, inputs, outputs, "instance_group [ { count: 1 kind: KIND_CPU } ]\n", settings])


def _head(name: str, about: Sequence[str], ensemble: bool = False, decoupled: bool = False) -> str:
    lines = ["# Written by tools/models.py from the family's card; change the card.", f'name: "{name}"']
    lines += [f"# {line}".rstrip() for text in about for line in textwrap.wrap(text, PER_LINE - 2) or [""]]
    lines += ['platform: "ensemble"' if ensemble else 'backend: "python"', "max_batch_size: 0"]
    return "\n".join([*lines, *(["model_transaction_policy { decoupled: true }"] if decoupled else []), ""])


def _parameter(name: str, value: str, meaning: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}  # {meaning}\n'


def _block(kind: str, tensors: Sequence[Tensor], optional: bool = False) -> str:
    return _lines(kind, [each.line(optional, each is tensors[-1]) for each in tensors])


def _lines(kind: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{kind} [", *lines, "]", ""])


def _scheduling(steps: Sequence[str]) -> str:
    return "ensemble_scheduling {\n  step [\n" + ",\n".join(steps) + "\n  ]\n}\n"


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    lines = ["    {", f'      model_name: "{model}"', "      model_version: -1"]
    lines += [f'      input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    lines += [f'      output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return "\n".join([*lines, "    }"])


def _same(names: Collection[str] | Iterator[str]) -> dict[str, str]:
    return {name: name for name in names}


def _names(tensors: Sequence[Tensor]) -> list[str]:
    return [each.name for each in tensors]


def _fields(stage: str) -> list[str]:
    return [each.name for each in FIELDS if stage in each.stages]


def _code(card: Family, package: str, load: str, stage: str, base: str, about: str, facts: Sequence[str] = ()) -> str:
    """The model.py of a stage. `load`: module and function of the package."""
    module, function = load.split(".")
    return f'''"""{about}"""

from {package}.{module} import {function}
from voice_clone.triton.stages.{stage} import {base}


class TritonPythonModel({base}):
    """Of {card.title}."""

    {"".join(f"{fact}{chr(10)}    " for fact in facts)}load_stage = staticmethod({function})
'''


def wanted(packages: Collection[str]) -> dict[str, str]:
    """Return all files of the models of the cards in packages."""
    found: dict[str, str] = {}
    for package in packages:
        for card in cards([package]):
            found |= files(card, package)
    return found


def write(packages: Collection[str], repository: Path) -> None:
    """Write the models of the cards in packages into a repository."""
    _write({repository / path: text for path, text in wanted(packages).items()})


def _write(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """The command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="packages with a module `family`")
    parser.add_argument("--output", type=Path, default=MODELS, metavar="DIR", help="the model repository")
    parser.add_argument("--check", action="store_true", help="change nothing")
    asked = parser.parse_args()
    try:
        return _main(asked)
    except ValueError as error:
        parser.error(str(error))


def _main(asked: argparse.Namespace) -> int:
    behind = _update({asked.output / path: text for path, text in wanted(asked.packages or PACKAGES).items()}, asked)
    if not asked.packages and asked.output == MODELS:
        behind |= _update(request_fields.wanted(), asked)  # they follow the models
    return 1 if asked.check and behind else 0


def _update(texts: Mapping[Path, str], asked: argparse.Namespace) -> bool:
    """Write the files that are behind, or only name them; return whether there are any."""
    behind = {path: text for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text}
    if not asked.check:
        _write(behind)
    for path in behind:
        print(f"{path} {'is behind: python -m tools.models' if asked.check else 'is written'}")
    return bool(behind)


if __name__ == "__main__":
    sys.exit(main())
