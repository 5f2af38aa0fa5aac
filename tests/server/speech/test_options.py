"""Each option of `qwen3_tts` through the server against the bare networks; and that a wrong wire would be seen."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_bare import BareQwen3
from tests.support.official.phone_clips import RATE, SAMPLES
from tests.support.servers.option_checks import CHECKS, DEFAULTS, Probe, Voice
from tests.support.servers.running import running
from tools.families.qwen3_tts.checkpoint_config import GENERATION
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from tools.triton_server import MODELS

FAMILY = "qwen3_tts"
# Entries of an input_map of the ensemble that are swapped.
SWAPS = [
    ("talker", "temperature", "top_p"),
    ("talker", "temperature", "repetition_penalty"),
    ("talker", "top_p", "repetition_penalty"),
    ("talker", "top_k", "max_frames"),
    ("prompt", "text", "reference_text"),
    ("prompt", "voice", "language"),
    ("prompt", "reference_text", "language"),
    ("prompt", "x_vector_only", "cache"),
    ("prompt", "voice", "text_stream"),
]
# Entries that are left out. Triton itself refuses an input of an ensemble that no step takes, so it goes as well.
DROPS = [
    *(("prompt", name) for name in ("text_stream", "voice", "reference_audio", "reference_text", "cache")),
    *(("prompt", name) for name in ("speaker_embedding", "x_vector_only", "language")),
    *(("talker", name) for name in ("temperature", "top_p", "repetition_penalty", "top_k", "max_frames", "seed")),
    *(("talker", name) for name in ("do_sample", "non_streaming_mode")),
]


@dataclass(frozen=True)
class Miswired:
    """A fault of the repository, and the checks that find it.

    Attributes:
        name: of the fault.
        finds: some of these checks must fail.
        swap, drop: a step of the ensemble and entries of its input_map; see `SWAPS` and `DROPS`.
        code: appended to the model.py of `stage`.
    """

    name: str
    finds: tuple[str, ...]
    swap: tuple[str, str, str] | None = None
    drop: tuple[str, str] | None = None
    stage: str = ""
    code: str = ""


WIRES = [
    *(Miswired(f"{a} and {b} swapped", (a, b), swap=(step, a, b)) for step, a, b in SWAPS),
    *(Miswired(f"{name} dropped", (name,), drop=(step, name)) for step, name in DROPS),
    Miswired(  # only a request with one of the two tells
        "do_sample and non_streaming_mode swapped",
        ("generation_config.json, sampled",),
        swap=("talker", "do_sample", "non_streaming_mode"),
    ),
    Miswired("options dropped", ("subtalker_top_k",), drop=("talker", "options")),
]
DATACLASS = "from voice_clone.families.qwen3_tts.sampling import SamplingParameters as S\n"
STAGE = "from dataclasses import replace\nimport voice_clone.families.qwen3_tts.talker_stage as stage\n"
CODE = [
    Miswired(
        "defaults of the class, not of the checkpoint",
        ("generation_config.json, sampled",),
        stage="talker",
        code=DATACLASS + "S.from_defaults = classmethod(lambda cls, defaults, *, seed: cls(seed=seed))\n",
    ),
    Miswired(
        "the sub-talker's defaults from the talker's",
        ("generation_config.json, sampled",),
        stage="talker",
        code=DATACLASS
        + """from dataclasses import replace
made = S.from_defaults.__func__
S.from_defaults = classmethod(
    lambda cls, d, *, seed: replace(made(cls, d, seed=seed), subtalker_temperature=d.temperature)
)
""",
    ),
    Miswired(
        "the budget from the fall-back",
        ("generation_config.json",),
        stage="talker",
        code=STAGE + "of = stage.frame_budget\nstage.frame_budget = lambda config: replace(of(config), most=2048)\n",
    ),
    Miswired(
        "an option that is checked and forgotten",
        ("subtalker_top_p",),
        stage="talker",
        code=STAGE
        + """build = stage.build_request
stage.build_request = lambda p, knobs, options, *more: build(
    p, knobs, {name: value for name, value in options.items() if name != "subtalker_top_p"}, *more
)
""",
    ),
    Miswired(
        "a knob that no stage reads",
        ("top_k",),
        stage="talker",
        code="""import voice_clone.triton.stages.talker_call as call
call.KNOBS = tuple(name for name in call.KNOBS if name != "top_k")
""",
    ),
    Miswired(
        "the language of everybody",
        ("language",),
        stage="prompt",
        code="""import voice_clone.families.qwen3_tts.prompt_stage as stage
stage.language_id = lambda *given: None
""",
    ),
]


@pytest.fixture(scope="module")
def checkpoint(checkpoint_folder: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny one, endless, with defaults of its own."""
    assert DEFAULTS.keys() == GENERATION.keys()
    assert not [name for name in DEFAULTS if DEFAULTS[name] == GENERATION[name]]
    folder = make_endless(checkpoint_folder("tiny", 0), tmp_path_factory.mktemp("options") / "checkpoint")
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(DEFAULTS))
    return folder


@pytest.fixture(scope="module")
def voices(reference_clip: bytes, reference_text: str) -> dict[str, Voice]:
    """Two, of which one is the shipped clip and the other the same backwards."""
    other = io.BytesIO()
    soundfile.write(other, 0.5 * SAMPLES[::-1], RATE, format="WAV")
    return {
        "Harbour": Voice("Harbour", reference_clip, reference_text),
        "Second": Voice("Second", other.getvalue(), "These words belong to nobody."),
    }


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareQwen3:
    return BareQwen3(checkpoint)


@pytest.fixture(scope="module")
def probe(
    checkpoint: Path, bare: BareQwen3, voices: dict[str, Voice], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Probe]:
    """A server with the repository as it is; its ensemble with each wrong wire stands beside it, by other names."""
    folder = tmp_path_factory.mktemp("options-server")
    models = shutil.copytree(
        MODELS,
        folder / "models",
        ignore=shutil.ignore_patterns("fish_speech*", "voxtral*", "cosyvoice3*", "omnivoice*"),
    )
    for number, fault in enumerate(WIRES):
        write_wrong_ensemble(models, f"{FAMILY}_wrong{number}", fault)
    with running(checkpoint, folder, models, VOICE_CLONE_PRECISION="fp32") as server:
        probe = Probe(server, bare, voices)
        probe.register()
        yield probe


def write_wrong_ensemble(models: Path, name: str, fault: Miswired) -> None:
    """A copy of the ensemble that has this fault."""
    text = (models / FAMILY / "config.pbtxt").read_text(encoding="utf-8")
    text = text.replace(f'name: "{FAMILY}"', f'name: "{name}"', 1)
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith('parameters { key: "check'))
    step, *wires = fault.swap or fault.drop or ("",)
    head, begin, rest = text.partition(f'model_name: "{FAMILY}_{step}"')
    for wire in wires:
        assert rest.count(f'input_map {{ key: "{wire}" value: "{wire}" }}'), f"{step} has no wire {wire}"
    if fault.swap:
        a, b = wires
        rest = rest.replace(f'key: "{a}" value: "{a}"', f'key: "{a}" value: "<{b}>"', 1)
        rest = rest.replace(f'key: "{b}" value: "{b}"', f'key: "{b}" value: "{a}"', 1).replace(f"<{b}>", b)
    else:
        rest = rest.replace(f'      input_map {{ key: "{wires[0]}" value: "{wires[0]}" }}\n', "", 1)
        if f'value: "{wires[0]}"' not in head + rest:
            head = re.sub(rf'  {{ name: "{wires[0]}" .*\n', "", head, count=1)
    (models / name / "1").mkdir(parents=True)
    (models / name / "config.pbtxt").write_text(head + begin + rest, encoding="utf-8")


@pytest.mark.parametrize("check", CHECKS)
def test_an_option_does_what_it_says(probe: Probe, check: str) -> None:
    CHECKS[check](probe)


def found(probe: Probe, fault: Miswired) -> list[str]:
    """Those of the expected checks that the fault fails."""
    failed = []
    for check in fault.finds:
        try:
            CHECKS[check](probe)
        except Exception:  # an error of the server finds it as well
            failed.append(check)
    return failed


@pytest.mark.thorough
@pytest.mark.parametrize("fault", WIRES, ids=lambda fault: fault.name)
def test_a_wrong_wire_is_found(probe: Probe, fault: Miswired) -> None:
    wrong = probe.of(probe.server, f"{FAMILY}_wrong{WIRES.index(fault)}")
    assert found(wrong, fault) == list(fault.finds)


@pytest.mark.long
@pytest.mark.parametrize("fault", CODE, ids=lambda fault: fault.name)
def test_wrong_code_is_found(
    checkpoint: Path, bare: BareQwen3, voices: dict[str, Voice], tmp_path: Path, fault: Miswired
) -> None:
    models = shutil.copytree(
        MODELS,
        tmp_path / "models",
        ignore=shutil.ignore_patterns("fish_speech*", "voxtral*", "cosyvoice3*", "omnivoice*"),
    )
    with (models / f"{FAMILY}_{fault.stage}" / "1" / "model.py").open("a", encoding="utf-8") as file:
        file.write(fault.code)
    with running(checkpoint, tmp_path, models, VOICE_CLONE_PRECISION="fp32") as server:
        probe = Probe(server, bare, voices)
        probe.register()
        assert found(probe, fault) == list(fault.finds)
