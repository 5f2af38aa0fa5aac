"""The files for AIPerf: what its template endpoint makes of them is a request that the gateway takes."""

from __future__ import annotations

import json

import jinja2
from tokenizers import Tokenizer
from voice_clone_gateway.schemas import SpeechRequest

from voice_clone_server.triton_server import ROOT

FOLDER = ROOT / "perf" / "aiperf"


def test_the_body_of_a_request() -> None:
    template = jinja2.Environment(autoescape=True).from_string((FOLDER / "speech.json.jinja").read_text())
    lines = (FOLDER / "texts.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    for text in (*texts, '"Quoted", isn\'t it? <b>&amp;\nZürich'):
        body = json.loads(template.render(model="tts-1", text=text))
        request = SpeechRequest.model_validate({**body, "voice": "Ada"})
        assert request.input == text and request.events and request.check() is None


def test_the_tokenizer_counts_words() -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "words" / "tokenizer.json"))
    assert len(tokenizer.encode("The boats lay still.").ids) == 4 and not tokenizer.encode("").ids
