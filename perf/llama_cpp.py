"""llama.cpp's `llama-tts`, the rival on a CPU: fetched, built, fed with a checkpoint, and run.

All of it lies in a folder of the user's cache, and what is there is not made again. Sources are those of the sdist of
llama-cpp-python. Its program is not changed but in what it tells and in the number of threads: as it comes, the code
predictor and the decoder run with four threads on every machine. The converter's types are followed but for one
matrix: it keeps `ffn_down` of the code predictor in F32 in every file, so one with F16 could not hold its input.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from tools import guard
from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint, make_endless

VERSION = "0.3.36"  # of llama-cpp-python, whose sdist has llama.cpp 0.5.0
BUILD_PACKAGES = ("cmake==3.31.6", "ninja==1.13.0", "sentencepiece==0.2.1")  # the last is imported by the converter
HOME = user_cache_path("voice-clone") / "llama_cpp" / VERSION
TYPES = ("F32", "BF16", "Q8_0", "Q4_0")
CONVERTED = "F32"  # the talker's other files are made from this one
OPTIONS = {  # cmake's
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
CHANGES = {  # of tools/tts/tts.cpp
    "mtmd_params.device  = params.mmproj_device;": "mtmd_params.device  = params.mmproj_device;\n"
    "    mtmd_params.n_threads = params.cpuparams.n_threads;\n"
    "    mtmd_params.flash_attn_type = params.flash_attn_type;",
    "mtmd::bitmap_ptr speaker_bitmap;": 'LOG_INF("ready at %.6fs\\n", ggml_time_us() / 1e6);\n'
    "    mtmd::bitmap_ptr speaker_bitmap;",
    "prompt eval %.2fs + generation %.2fs + vocoder %.2fs = total": "prompt eval %.6fs + generation %.6fs + "
    "vocoder %.6fs = total",
}
TIMES = re.compile(r"prompt eval (?P<prompt>[\d.]+)s \+ generation (?P<frames>[\d.]+)s \+ vocoder (?P<decoder>[\d.]+)s")
READY = re.compile(r"ready at ([\d.]+)s")
CONTEXT = 1024  # positions
WINDOW = 72  # frames that its decoder decodes at a time; fewer are filled up

CONVERTER = """
import re, runpy, sys
sources, kind = sys.argv[1:3]
sys.argv[1:3] = []
sys.path[:0] = [sources, sources + "/gguf-py"]
import gguf
from conversion import base, qwen3tts
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"  # a random tokenizer is none that it knows
names = qwen3tts.Qwen3TTSTalkerModel._codec_token_names
def named(self):
    self._talker_config.pop("pad_token_id", None)  # a second name for the token codec_pad, which it would lose
    return names(self)
qwen3tts.Qwen3TTSTalkerModel._codec_token_names = named
inner = qwen3tts.Qwen3TTSSpeakerEncoderModel.tensor_force_quant
def force(self, name, new_name, bid, n_dims):
    if re.fullmatch(r"a\\.gen\\.code\\.(blk\\.\\d+\\.(attn_(q|k|v|out)|ffn_(gate|up|down))|head)\\.weight", new_name):
        return gguf.GGMLQuantizationType[kind]
    return inner(self, name, new_name, bid, n_dims)
qwen3tts.Qwen3TTSSpeakerEncoderModel.tensor_force_quant = force
runpy.run_path(sources + "/convert_hf_to_gguf.py", run_name="__main__")
"""


@dataclass(frozen=True)
class Times:
    """What a speech says of itself, in seconds.

    Attributes:
        ready: by the monotonic clock, when all was loaded.
        prompt, frames, decoder: of the prompt, of all frames of talker and code predictor, and of all of the decoder.
    """

    ready: float
    prompt: float
    frames: float
    decoder: float


def parse(output: str) -> Times:
    """The times in the output of `llama-tts`.

    Raises:
        ValueError: it has none.
    """
    times, ready = TIMES.search(output), READY.search(output)
    if times is None or ready is None:
        raise ValueError(f"llama-tts told no times:\n{output[-2000:]}")
    return Times(float(ready[1]), *(float(times[name]) for name in ("prompt", "frames", "decoder")))


def checkpoint(shape: str) -> Path:
    """A random checkpoint whose speech does not end."""
    made = HOME / shape / "checkpoint"
    if not made.exists():
        make_checkpoint(shape, 0, made)
    endless = HOME / shape / "endless"
    return endless if endless.exists() else make_endless(made, endless)


def speech_command(shape: str, kind: str, text: str, clip: Path, frames: int, threads: int, output: Path) -> list[str]:
    """The likeliest codes of a text, as speech in the voice of a clip: its embedding, since it knows no transcript."""
    talker, projector = files(shape, kind)
    options = ["-m", talker, "--mmproj", projector, "-p", text, "--tts-lang", "en", "--tts-speaker-file", clip]
    options += ["-n", frames, "-t", threads, "-tb", threads, "-c", CONTEXT, "--top-k", 1, "--top-p", 1, "--temp", 1]
    options += ["--repeat-penalty", 1.05, "--repeat-last-n", CONTEXT, "-fa", "on", "-o", output]
    return [str(word) for word in (programs() / "llama-tts", *options)]


def files(shape: str, kind: str) -> tuple[Path, Path]:
    """A checkpoint's talker, and its code predictor and decoder, with weights of a type of `TYPES`."""
    folder = HOME / shape
    talker, projector = folder / f"talker-{kind}.gguf", folder / f"projector-{kind}.gguf"
    if not talker.exists():
        if kind == CONVERTED:
            _convert(shape, kind, talker)
        else:
            first, _ = files(shape, CONVERTED)
            _tell(f"quantizing the talker to {kind}")
            _run(programs() / "llama-quantize", first, partial := _partial(talker), kind)
            partial.rename(talker)
    if not projector.exists():
        _convert(shape, kind, projector, "--mmproj")
    return talker, projector


def programs() -> Path:
    """The folder of the built programs."""
    build = HOME / "build"
    if not (build / "complete").exists():
        source = _sources()
        _tell("building llama.cpp, which takes minutes")
        cmake = [sys.executable, "-m", "cmake"]
        defined = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        _run(
            *cmake, "-S", source, "-B", build, "-G", "Ninja", *defined, f"-DCMAKE_MAKE_PROGRAM={_packages()}/bin/ninja"
        )
        _run(*cmake, "--build", build, "--target", "llama-tts", "llama-quantize", "-j", "2")
        (build / "complete").touch()
    return build / "bin"


def _sources() -> Path:
    source = HOME / "llama.cpp"
    if source.exists():
        return source
    HOME.mkdir(parents=True, exist_ok=True)
    _tell("downloading the sources")
    with tempfile.TemporaryDirectory(dir=HOME) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        _run(*pip, "--dest", scratch, f"llama-cpp-python=={VERSION}")
        [archive] = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        unpacked = Path(scratch) / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
        program = unpacked / "tools" / "tts" / "tts.cpp"
        text = program.read_text(encoding="utf-8")
        for old, new in CHANGES.items():
            if text.count(old) != 1:
                raise SystemExit(f"another version of llama-tts: {old!r} is not in it once")
            text = text.replace(old, new)
        program.write_text(text, encoding="utf-8")
        unpacked.rename(source)
    return source


def _packages() -> Path:
    """Tools of the build, in a folder of their own."""
    packages = HOME / "packages"
    if not packages.exists():
        _tell("installing cmake")
        partial = _partial(packages)
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, *BUILD_PACKAGES)
        partial.rename(packages)
    return packages


def _convert(shape: str, kind: str, target: Path, *options: str) -> None:
    _tell(f"converting to {target.name}")
    partial = _partial(target)
    known = "Q8_0" if kind == "Q4_0" else kind  # of what is not the code predictor; it has no Q4_0
    converter: tuple[str | Path, ...] = (sys.executable, "-c", CONVERTER, _sources(), kind)
    _run(*converter, checkpoint(shape), "--outtype", known.lower(), "--outfile", partial, *options)
    partial.rename(target)


def _partial(path: Path) -> Path:
    return path.with_name(f"partial-{path.name}")


def _run(*command: str | Path) -> None:
    path = {"PYTHONPATH": str(_packages())} if command[0] == sys.executable and "pip" not in command else {}
    done = subprocess.run(command, env={**guard.marked(), **path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed:\n{done.stdout.decode(errors='replace')[-3000:]}")


def _tell(line: str) -> None:
    print(f"llama.cpp: {line} ...", file=sys.stderr)
