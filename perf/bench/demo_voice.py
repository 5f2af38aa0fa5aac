"""How well the demo's checkpoint speaks in each way that a voice can come about: words heard, and the right speaker.

All ways say the same sentences in the same voices with the same seeds. The judges are those of
tools/demo_voice/evaluate.

    source                the synthesiser itself: what the judges make of the best that could be
    fp32 bf16 int8 int4   a server with this precision of the talker, streamed; the clip is sent along
    restored              a server that was restarted: the voices are registered, and read from disk
    whole                 without a server: native code makes all codes, torch decodes them in one piece
    eager                 the same, and torch computes the talker, too
    official              the official package, qwen-tts 0.1.1, fp32; it draws other random numbers

    WER      words wrong: where each is one of 20; with the recogniser's own language model; 95 % interval
    right    how often the right one of the eight held-out speakers is found
    odd      speeches of a length that cannot be: cut off, or a runaway
    clicks   borders of chunks that are 1.5 times as sharp as the sharpest corner around them
    equal    speeches whose samples are those of `whole`, within 1e-3 of their RMS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from voice_clone_client import Client

from perf.bench import report
from tools.demo_voice.clicks import sharpest_border
from tools.demo_voice.dataset import make_data
from tools.demo_voice.evaluation import MODES, PARTS, Evaluation, Score, Voice
from tools.demo_voice.options import Options
from tools.demo_voice.qwen3_tts.bare_engine import BareEngine
from tools.demo_voice.served import ServedVoice, as_file
from tools.demo_voice.synthesis import SAMPLE_RATE
from tools.demo_voice.train import WORK
from voice_clone_server.demo import SHIPPED
from voice_clone_server.triton_server import TritonServer

Samples = NDArray[np.float32]
SOURCE = "source"
CLICK = 1.5
EQUAL = 1e-3


class RegisteredVoice(ServedVoice):
    """A server whose voices are registered under a name that their clip determines."""

    def register(self, clip: Samples, transcript: str | None) -> None:
        """Make a voice of a clip."""
        self.client.upload(_name(clip, transcript), as_file(clip), reference_text=transcript, wait=True)

    def say(self, text: str, clip: Samples, transcript: str | None, seed: int) -> Samples:
        """As `ServedVoice`, by the voice's name."""
        return self.read(self.client.speak(text, voice=_name(clip, transcript), seed=seed))


def _name(clip: Samples, transcript: str | None) -> str:
    return hashlib.blake2b(clip.tobytes() + (transcript or "").encode(), digest_size=12).hexdigest()


class OfficialVoice:
    """The official package."""

    sample_rate = SAMPLE_RATE

    def __init__(self, folder: Path) -> None:
        from perf.bench.official.qwen_tts import load_official, official_speech  # here, since it takes long and prints

        self._model, self._speech = load_official(folder), official_speech

    def say(self, text: str, clip: Samples, transcript: str | None, seed: int) -> Samples:
        """Speak `text` in the voice of `clip`; in context with its transcript, else by its embedding."""
        torch.manual_seed(seed)
        samples, _, _ = self._speech(self._model, (clip, SAMPLE_RATE), transcript, text, "Auto", MOST_FRAMES)
        return np.asarray(samples, np.float32)


MOST_FRAMES = 191  # that a server grants a sentence of this length


@contextmanager
def _served(**environment: str) -> Iterator[Voice]:
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder), environment) as server:
        with Client(server.url) as client:
            yield ServedVoice(client)
        server.kill()


@contextmanager
def _restored(evaluation: Evaluation) -> Iterator[Voice]:
    with tempfile.TemporaryDirectory() as folder:
        with _server(Path(folder), {}) as server, Client(server.url) as client:
            for case in evaluation.cases:
                for mode in MODES:
                    RegisteredVoice(client).register(case.reference.utterance.samples, case.transcript(mode))
        with _server(Path(folder), {}) as server, Client(server.url) as client:
            yield RegisteredVoice(client)
            extractions = client.stats()["extractions"]
            assert extractions == 0, f"{extractions} voices were not restored"
            server.kill()


def _server(folder: Path, environment: dict[str, str]) -> TritonServer:
    return TritonServer(SHIPPED, folder / "voices", log=folder / "log", environment=environment)


class Watched:
    """A voice whose speeches are compared with those of another one, and whose borders are looked at.

    Args:
        voice: what is watched.
        expected: says what it should say; None: nothing is compared.

    Attributes:
        equal, spoken, clicks, borders: counts.
    """

    def __init__(self, voice: Voice, expected: Voice | None) -> None:
        self._voice, self._expected = voice, expected
        self.equal = self.spoken = self.clicks = self.borders = 0

    @property
    def sample_rate(self) -> int:
        """Hz."""
        return self._voice.sample_rate

    def say(self, text: str, clip: Samples, transcript: str | None, seed: int) -> Samples:
        """As the voice."""
        samples = self._voice.say(text, clip, transcript, seed)
        if self._expected is not None:
            self.spoken += 1
            self.equal += _equal(samples, self._expected.say(text, clip, transcript, seed))
        borders = getattr(self._voice, "borders", [])
        self.borders += len(borders)
        self.clicks += sum(sharpest_border(samples, [border]) > CLICK for border in borders)
        return samples


def _equal(samples: Samples, expected: Samples) -> bool:
    if len(samples) != len(expected):
        return False
    return not len(samples) or float(np.abs(samples - expected).max()) <= EQUAL * float(expected.std())


@dataclass(frozen=True)
class Way:
    """How a voice comes about; `exact`: it should say what the bare engine says, sample by sample."""

    open: Callable[[Evaluation], AbstractContextManager[Voice]]
    exact: bool = False


WAYS = {
    "fp32": Way(lambda _: _served(VOICE_CLONE_PRECISION="fp32"), exact=True),
    "bf16": Way(lambda _: _served(VOICE_CLONE_PRECISION="bf16")),
    "int8": Way(lambda _: _served(VOICE_CLONE_PRECISION="int8")),
    "int4": Way(lambda _: _served(VOICE_CLONE_PRECISION="int4")),
    "restored": Way(_restored, exact=True),
    "whole": Way(lambda _: nullcontext(BareEngine(SHIPPED))),
    "eager": Way(lambda _: nullcontext(BareEngine(SHIPPED, eager=True)), exact=True),
    "official": Way(lambda _: nullcontext(OfficialVoice(SHIPPED))),
}


def measure(evaluation: Evaluation, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the table: one for each way and mode."""
    for name in names:
        if name == SOURCE:
            yield _row(name, "", evaluation.source(), None)
            continue
        way = WAYS[name]
        expected = BareEngine(SHIPPED) if way.exact else None
        with way.open(evaluation) as voice:
            for mode in MODES:
                watched = Watched(voice, expected)
                yield _row(name, mode, evaluation.scores(watched, mode), watched)


def _row(way: str, mode: str, scores: Iterator[tuple[str, Score]], watched: Watched | None) -> dict[str, Any]:
    row: dict[str, Any] = {"way": way, "mode": mode}
    parts = dict(scores)
    for judge in ("grammar", "open"):
        for part, score in parts.items():
            errors, (low, high) = score.errors(judge), score.interval(judge)
            row[f"{judge} {part}"] = {**asdict(errors), "low": round(low, 4), "high": round(high, 4)}
    row["right"] = parts["held_out"].right
    row["odd"] = [sum(score.odd for score in parts.values()), sum(len(score.heard) for score in parts.values())]
    if watched is not None:
        row["clicks"] = [watched.clicks, watched.borders]
        row["equal"] = [watched.equal, watched.spoken]
    return row


def _words(errors: Mapping[str, float]) -> str:
    rate = errors["wrong"] / errors["words"]
    return f"{100 * rate:.0f} % ({100 * errors['low']:.0f} to {100 * errors['high']:.0f})"


def _share(counts: Sequence[int] | None) -> str:
    return f"{counts[0]} of {counts[1]}" if counts and counts[1] else ""


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a reader."""
    judged = [f"{judge} {part}" for judge in ("grammar", "open") for part in PARTS]
    counted = ("right", "odd", "clicks", "equal")
    columns = ["way", "voice", *(name.replace("_", "-") for name in judged), *counted]
    return report.table(
        columns,
        [
            [row["way"], row["mode"], *(_words(row[name]) for name in judged), *(_share(row.get(n)) for n in counted)]
            for row in rows
        ],
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/demo_voice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=64, help="of each kind of speakers (default: %(default)s)")
    known = [SOURCE, *WAYS]
    parser.add_argument("--ways", default=",".join(known), help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the training's data (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the rows; those of other ways in it are kept")
    arguments = parser.parse_args()
    names = arguments.ways.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"there is no way {', '.join(sorted(unknown))}; the ways are {', '.join(known)}")
    torch.set_num_threads(1)
    options = Options()
    for done in make_data(arguments.work, options.seed, 0, options.shard_size, options.jobs):
        print(f"made {done}", file=sys.stderr)
    evaluation = Evaluation(arguments.work, arguments.sentences)
    rows: list[dict[str, Any]] = []
    if arguments.output and arguments.output.exists():
        rows = json.loads(arguments.output.read_text(encoding="utf-8"))["rows"]
    for row in measure(evaluation, names):
        rows = [each for each in rows if (each["way"], each["mode"]) != (row["way"], row["mode"])] + [row]
        rows.sort(key=lambda each: known.index(each["way"]))
        report.write(arguments.output, {"sentences": arguments.sentences, "rows": rows})
        print(table([row]), flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
