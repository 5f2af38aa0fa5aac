"""The tables of docs/settings.md, from where the settings stand. `python -m tools.models` writes them.

These are the parameters of all config.pbtxt, with comments, which a test compares with the settings of the stages; of
these settings those that only a variable has; the gateway's `Settings`; and the few variables that are read by
themselves.
"""

from __future__ import annotations

from dataclasses import fields

from voice_clone_gateway.settings import PREFIX as GATEWAY_PREFIX
from voice_clone_gateway.settings import Settings as GatewaySettings

from voice_clone.server_settings import AlignerSettings, SpeakerCacheSettings, TextSettings, WholeSpeechSettings
from voice_clone.settings import DecoderSettings, EncoderSettings, PromptSettings, TalkerSettings
from voice_clone_server.config_file import ConfigFile
from voice_clone_server.families.names import owner
from voice_clone_server.families.recognition import OPTIONAL, PARAMETER, families, models
from voice_clone_server.triton_server import MODELS

STAGES = {  # as the table names their models
    "prompt": PromptSettings,
    "talker": TalkerSettings,
    "code2wav": DecoderSettings,
    "encoders": EncoderSettings,
    "speaker_cache": SpeakerCacheSettings,
    "speech_whole": WholeSpeechSettings,
    "text_front_end": TextSettings,
}
OTHERS = {  # variables of optional models, and those that no settings object reads
    f"{GATEWAY_PREFIX}API_KEYS": "gateway: lines of --api-keys-file, separated by ;",
    "VOICE_CLONE_ALIGNER_CHECKPOINT_DIR": "aligner: the folder of a checkpoint in place of pocketsphinx, see "
    "[word_times.md](word_times.md#other-languages-a-checkpoint-of-qwen3-forcedaligner)",
    "VOICE_CLONE_MAX_ALIGNMENTS": "aligner: speeches aligned at once, whose pieces are awaited; default: 64",
    "VOICE_CLONE_CPU_INSTRUCTIONS": "models on a CPU: avx512bf16, avx512, avx2 or plain; default: the widest that the "
    "processor has, see [operations.md](operations.md#instructions-of-the-processor)",
    "VOICE_CLONE_SERVER": "`voice-clone`: as --url, host:port of the server's gRPC endpoint",
    "VOICE_CLONE_PROXY": "`voice-clone`: as --proxy, http://host:port of an HTTP proxy to the server",
    "VOICE_CLONE_TRITON_DIR": "tools and tests: the folder of the tritonserver to start, see "
    "[triton_faults.md](triton_faults.md#tests-and-tools-on-another-tritonserver)",
    "VOICE_CLONE_TOKEN": "`voice-clone`: as --token, the server's write token",
}


def variables_only() -> dict[str, tuple[str, str]]:
    """The settings that no config.pbtxt has: their models and meaning, by name."""
    found: dict[str, list[str]] = {}
    meanings = {}
    stages_of = {**STAGES, "aligner": AlignerSettings}  # whose other settings stand in OTHERS
    for stage, settings in stages_of.items():
        for name, each in settings.known().items():
            if each.only_variable:
                found.setdefault(name, []).append(stage)
                meanings[name] = each.meaning
    return {
        name: ("all" if len(stages) == len(stages_of) else ", ".join(sorted(stages)), meanings[name])
        for name, stages in found.items()
    }


def parameters() -> list[tuple[str, str, str, str]]:
    """(model, setting, default, meaning) of every setting, in the order of the files."""
    found = []
    optional = [OPTIONAL / stage for stage in STAGES if (OPTIONAL / stage).is_dir()]
    for model, folder in models([MODELS, *optional]).items():
        file = ConfigFile.read(folder)
        if set(file.parameters) != set(file.meanings):
            raise ValueError(f"{model}: a parameter is not on a line of its own")
        if PARAMETER in file.parameters:
            continue  # the public model of a family: its parameters say what the family is
        found += [(model, name, value, file.meanings[name]) for name, value in file.parameters.items()]
    return found


def table() -> str:
    """Markdown; settings that several models have with one default and meaning share a line.

    A model is named by its stage, and by its family, too, where the families differ.
    """
    known = families([MODELS])
    settings = []
    for model, name, default, meaning in parameters():
        family = owner(model, known)
        settings.append((family, model.removeprefix(f"{family}_"), name, default, meaning))
    variants: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for _, stage, name, default, meaning in settings:
        variants.setdefault((name, stage), set()).add((default, meaning))
    lines: dict[tuple[str, str, str], list[str]] = {}
    for family, stage, name, default, meaning in settings:
        shown = stage if len(variants[name, stage]) == 1 else f"{stage} of {family}"
        stages = lines.setdefault((name, default, meaning), [])
        stages += [] if shown in stages else [shown]
    lines = {key: sorted(stages) for key, stages in lines.items()}
    for name, (model, meaning) in variables_only().items():
        lines[name, "", meaning] = [model]
    rows = [
        f"| `{name}` | {f'`{default}`' if default else ''} | {', '.join(models)} | {meaning} |"
        for (name, default, meaning), models in sorted(lines.items())
    ]
    return "\n".join(["| setting | default | models | |", "|---|---|---|---|", *rows]) + "\n"


def gateway_table() -> str:
    """Markdown."""
    rows = []
    for each in fields(GatewaySettings):
        values = each.default if isinstance(each.default, tuple) else (each.default,)
        default = ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        choices = f": {', '.join(each.metadata['choices'])}" if each.metadata["choices"] else ""
        rows.append(f"| `{each.name}` | {f'`{default}`' if default else ''} | {each.metadata['help']}{choices} |")
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows]) + "\n"


def others_table() -> str:
    """Markdown."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in OTHERS.items()]
    return "\n".join(["| variable | |", "|---|---|", *rows]) + "\n"


def tables() -> str:
    """What stands between the document's marks."""
    variable = f"{GATEWAY_PREFIX}MAX_REQUESTS"
    gateway = (
        f"Each is an option of `voice-clone-gateway` (`--max-requests`) and a variable (`{variable}`), which, if it is "
        "empty,\ncounts as not set; an empty list is one."
    )
    return "\n".join(
        [
            "## Of the server\n",
            table(),
            f"## Of the gateway\n\n{gateway}\n",
            gateway_table(),
            "## Further variables\n",
            others_table(),
        ]
    )
