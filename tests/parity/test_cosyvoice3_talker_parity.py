"""CosyVoice3's talker against transformers' Qwen2 and, where it is there, the official code: random weights, fp32.

`tests/support/oracles/cosyvoice3.py` says where the official code is sought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from tests.support.families.cosyvoice3 import load_cosyvoice3_talker, make_cosyvoice3_talker, some_clip
from tests.support.oracles.cosyvoice3 import official_talker, source
from tests.support.pretend_gpu import pretend_gpu
from voice_clone.autoregressive.generator import Generator
from voice_clone.autoregressive.sampling import OneSampling
from voice_clone.autoregressive.talker import TalkerRequest
from voice_clone.families.cosyvoice3.config import BLANK, CODES, START, TASK, TOKENS, load_config
from voice_clone.families.cosyvoice3.family import CARD
from voice_clone.families.cosyvoice3.prompt import Prompt, Tokenizer
from voice_clone.families.cosyvoice3.talker import Talker, load_network
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings

pytestmark = [pytest.mark.thorough, pytest.mark.share("official packages")]
official = pytest.mark.skipif(source() is None, reason="VOICE_CLONE_COSYVOICE names no checkout of the official code")

FRAMES, MOST = 100, 250
RELEASED_END = 151646  # of the token that ends the prefix; the official code asserts that it is there
KINDS = [("tiny", False), ("tiny", True), pytest.param(("0.5b-2", False), marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind[0] + "-ends" * kind[1])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose speech hardly ever ends, or ends soon."""
    shape, ends = request.param
    return make_cosyvoice3_talker(
        tmp_path_factory.mktemp("ends" if ends else "goes-on") / "checkpoint", shape, ends=ends
    )


@pytest.fixture(params=["torch", "native", "graphs"])
def generator(request: pytest.FixtureRequest, folder: Path) -> Iterator[Generator[Prompt]]:
    """Streams by torch's modules, by native code, and as steps of fixed shapes, as a GPU has them."""
    if request.param != "graphs":
        yield Generator(load_cosyvoice3_talker(folder, request.param == "native"), 2, 512)
        return
    environ = {"CHECKPOINT_DIR": str(folder), "DEVICE": "cuda", "PRECISION": "fp32"}
    with pretend_gpu():
        talker = load_network(Settings({}, {f"VOICE_CLONE_{name}": value for name, value in environ.items()}))
        talker.stack.prepare(True)
        made: Generator[Prompt] = Generator(talker, 2, 512, runner=GraphRunner())
        made.prepare()
        yield made


def prompts(folder: Path) -> Iterator[Prompt]:
    """One of each mode."""
    tokenizer = Tokenizer(folder, load_config(folder))
    text, tokens = tokenizer.text_ids("Good [breath] morning, 朋友."), some_clip(40, 80)[TOKENS]
    yield Prompt(tokenizer.reference_ids("It's late, we're tired."), text, tokens)
    yield Prompt(tokenizer.reference_ids(), text, tokens[:0])
    yield Prompt(tokenizer.instruction_ids("Please whisper."), text, tokens[:0])


def spoken(generator: Generator[Prompt], request: TalkerRequest[Prompt]) -> NDArray[np.int64]:
    """The codes of a stream, until it ends."""
    generator.start(0, request)
    codes: list[int] = []
    while True:
        [frame] = generator.step([0])
        if frame.payload is not None:
            codes.append(int(frame.payload[0]))
        if frame.finish:
            generator.free(0)
            return np.array(codes)


def as_transformers(folder: Path, prompt: Prompt, frames: int) -> list[int]:
    """The likeliest codes, each of the whole sequence before it: no cache, no mask."""
    state = torch.load(folder / "llm.pt", weights_only=True)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_pretrained(folder / BLANK)).model.eval()
    prefix = "llm.model.model."
    model.load_state_dict({name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)})
    speech, words = state["speech_embedding.weight"], state[f"{prefix}embed_tokens.weight"]
    text = torch.from_numpy(np.concatenate([prompt.prefix_ids, prompt.text_ids]).astype(np.int64))
    heard = torch.from_numpy(prompt.heard_tokens.astype(np.int64))
    embeds = torch.cat([speech[[START]], words[text], speech[[TASK]], speech[heard]])
    codes: list[int] = []
    with torch.inference_mode():
        for _ in range(frames):
            hidden = model(inputs_embeds=embeds[None]).last_hidden_state[0, -1]
            codes.append(int((state["llm_decoder.weight"] @ hidden)[:CODES].argmax()))
            embeds = torch.cat([embeds, speech[codes[-1:]]])
    return codes


def test_codes_are_those_of_transformers(folder: Path, generator: Generator[Prompt]) -> None:
    for prompt in prompts(folder):
        request = TalkerRequest(prompt, OneSampling(seed=0, do_sample=False), 30, endless=True)
        assert spoken(generator, request).tolist() == as_transformers(folder, prompt, 30)


class Draws:
    """Stands in for the official draws: each takes the random numbers of our stream."""

    def __init__(self, talker: Talker, seed: int) -> None:
        self._draws = talker.head.new_draws(seed)
        self._frame, self._second = -1, False
        self.again = 0  # second draws
        self._ids = torch.zeros(0)

    def begin(self, scores: Tensor) -> None:
        """The scores of the next frame, from which the official code sorts its nucleus."""
        self._frame, self._second = self._frame + 1, False
        self._ids = scores.softmax(0).sort(descending=True, stable=True).indices

    def multinomial(self, weights: Tensor) -> Tensor:
        """The place of what is drawn; probabilities are added up in the order of ids, as ours are."""
        uniform = self._draws.of(self._frame)[int(self._second)]
        ids = torch.arange(len(weights)) if self._second else self._ids[: len(weights)]
        self.again += self._second
        self._second = True
        order = ids.argsort()
        reached = weights[order].double().cumsum(0)
        place = torch.searchsorted(reached, torch.tensor([uniform]) * reached[-1], right=True)
        return order[place]


def as_official(
    folder: Path, prompt: Prompt, tokenizer: Tokenizer, most: float, choose: Callable[[Any], None]
) -> list[int]:
    """What the official talker says; `choose` changes how it draws. `most`: frames."""
    lm = official_talker(folder)
    choose(lm)
    words, mark = lm.llm.model.model.embed_tokens, int(tokenizer.reference_ids()[-1])
    if load_config(folder).vocab_size <= RELEASED_END:  # the official code looks for its own id alone
        embed = words.forward
        words.forward = lambda ids: embed(torch.where(ids == RELEASED_END, mark, ids))

    def row(ids: NDArray[Any]) -> tuple[Tensor, Tensor]:
        found = torch.from_numpy(ids.astype(np.int32))[None]
        return torch.where(found == mark, RELEASED_END, found), torch.tensor([len(ids)], dtype=torch.int32)

    text, length = row(prompt.text_ids)
    before, before_length = row(prompt.prefix_ids)
    heard = torch.from_numpy(prompt.heard_tokens.astype(np.int32))[None]
    ratio = most / len(prompt.text_ids)
    made = lm.inference(
        text,
        length,
        before,
        before_length,
        heard,
        torch.tensor(heard.shape[1]),
        None,
        max_token_text_ratio=ratio + 1e-6,
        min_token_text_ratio=0,
    )
    return list(made)


@official
def test_greedy_codes_are_the_official_ones(folder: Path, generator: Generator[Prompt]) -> None:
    tokenizer = Tokenizer(folder, load_config(folder))

    def likeliest(lm: Any) -> None:
        lm.sampling = lambda scores, *rest: int(scores[:CODES].argmax())

    for prompt in prompts(folder):
        request = TalkerRequest(prompt, OneSampling(seed=0, do_sample=False), FRAMES, endless=True)
        ours = spoken(generator, request)
        assert len(ours) == FRAMES
        assert ours.tolist() == as_official(folder, prompt, tokenizer, FRAMES, likeliest)


@official
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sampled_codes_are_the_official_ones(
    folder: Path, generator: Generator[Prompt], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nucleus, repetition-aware sampling and the end of speech."""
    tokenizer, talker = Tokenizer(folder, load_config(folder)), generator.talker
    assert isinstance(talker, Talker)
    again, lengths = 0, []
    for prompt in prompts(folder):
        ours = spoken(generator, TalkerRequest(prompt, OneSampling(seed=seed, **CARD.knobs), MOST))
        lengths.append(len(ours))
        draws = Draws(talker, seed)

        def given(lm: Any, draws: Draws = draws) -> None:
            sample = lm.sampling

            def drawn(scores: Tensor, *rest: Any) -> int:
                draws.begin(scores)
                with monkeypatch.context() as patch:
                    patch.setattr(Tensor, "multinomial", lambda weights, *_, **__: draws.multinomial(weights))
                    return int(sample(scores, *rest))

            lm.sampling = drawn

        assert ours.tolist() == as_official(folder, prompt, tokenizer, MOST, given)
        again += draws.again
    if "ends" in folder.parent.name:
        assert max(lengths) < MOST
    else:
        assert again > 0, "no code was drawn again"
