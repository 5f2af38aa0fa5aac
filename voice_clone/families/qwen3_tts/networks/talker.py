"""The talker: a Qwen3 transformer that predicts codebook 0 of the next codec frame.

qwen-tts 0.1.1, `modeling_qwen3_tts.py` (`Qwen3TTSTalkerForConditionalGeneration`). Its interleaved multimodal RoPE
(Qwen2-VL, Wang et al. 2024) picks, for each rotary dimension, one of three position axes. Here no image or video
exists and all three axes hold the same position, so the result is plain RoPE. Attribute names equal the official tensor
names below `talker.`.

It is made of torch's modules; `use_native_code` replaces them on a CPU.

The layouts of a prompt are those of `generate` and `generate_icl_prompt` there. Every position is the sum of a text
embedding (upper row) and a codec embedding (lower row):

    role   pad ... pad      pad      bos | first text token        x-vector, streaming
           think, language  speaker  pad | codec bos               (one more text token a frame follows)

    role   pad ... pad      pad      bos | text ... text eos  pad          x-vector, non-streaming
           think, language  speaker  pad | pad  ... pad  pad  codec bos

    role   pad ... pad      pad      bos | transcript and text, eos        in-context, streaming
           think, language  speaker  pad | codec bos, reference frames     (as long as the lower row; the rest
                                                                           of the text follows, or pad fills up)
    role   pad ... pad      pad      bos | transcript, text, eos  pad      ... pad                 in-context,
           think, language  speaker  pad | pad ...           pad  codec bos, reference frames      non-streaming

An open text fills its rows as it comes, in the layouts of streaming, and has its eos when it is closed. At `speaker`
there is an embedding, or a built-in speaker's codec token; a designed voice lacks this position. The tokens of an
instruction stand before the role, with no codec row below them.

Shapes: B streams, N frames or tokens, K codebooks, C hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voice_clone.autoregressive.code_head import CodeHead, NativeFirstCode, TorchFirstCode
from voice_clone.autoregressive.native_predictor import Load, layer_loader
from voice_clone.autoregressive.stack.decoder_stack import DecoderStack
from voice_clone.autoregressive.stack.native_stack import NativeStack
from voice_clone.autoregressive.stack.protocol import Stack, StackConfig
from voice_clone.autoregressive.talker import Prefix, TalkerInput
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, TalkerConfig
from voice_clone.families.qwen3_tts.networks.code_predictor import CodePredictor, native_predictor
from voice_clone.families.qwen3_tts.prompt import ROLE_LENGTH, Prompt
from voice_clone.layers.fused import empty_table
from voice_clone.layers.graphs import table_rows, to_device
from voice_clone.lru_cache import digest
from voice_clone.native.matrix.linear import NativeLinear
from voice_clone.native.matrix.weights import embedding_array, head_precision
from voice_clone.native.packed_file import NOWHERE, PackedFile
from voice_clone.native.transformer import decoder_stack
from voice_clone.settings import Precision

ROWS_AT_ONCE = 32  # text tokens that are projected together on a GPU
CONTROL_IDS = 1024  # the last ids of the talker's vocabulary are control tokens, never codes


class TextProjection(nn.Module):
    """Text embedding size -> hidden size."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1: nn.Module = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2: nn.Module = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[N, text size] -> [N, C].

        A product of torch rounds by its number of rows. So each has the same number here: a text that comes piece by
        piece gets the rows that it gets as a whole.
        """
        size = 1 if x.device.type == "cpu" else ROWS_AT_ONCE
        padded = F.pad(x, (0, 0, 0, -len(x) % size))
        return torch.cat([self.project(piece) for piece in torch.split(padded, size)])[: len(x)]

    def project(self, x: Tensor) -> Tensor:
        """Of any number of rows."""
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerModel(DecoderStack):
    """Layers and tables."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(StackConfig.of(config))
        self.codec_embedding = empty_table(config.vocab_size, config.hidden_size)
        self.text_embedding = empty_table(config.text_vocab_size, config.text_hidden_size)


class Talker(nn.Module):
    """Talker and, below it, the code predictor: a `voice_clone.autoregressive.talker.Talker`.

    Attributes:
        stack: of torch's layers, or the native one in their place.
        head: a `CodeHead`.
        embed_frames: codec frames, int64 [N, K] -> [N, C]: the sum of the K codes' embeddings.
    """

    min_frames = 2  # as qwen-tts 0.1.1 calls `generate`

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__()
        self.config = config
        talker = config.talker
        self.model = TalkerModel(talker)
        self.text_projection: nn.Module = TextProjection(talker)
        self.codec_head: nn.Module = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(talker)
        self.native_stack: Stack | None = None
        self.embed_frames: Callable[[Tensor], Tensor] = self._embed_frames
        self.head = CodeHead(
            end_code=talker.codec_eos_token_id,
            vocabulary=talker.vocab_size,
            logits=self._logits,
            first=TorchFirstCode(suppressed_ids(talker), talker.codec_eos_token_id),
            predictor=self.code_predictor,
            embed=self.embed_codec_tokens,
            codebooks=talker.num_code_groups,
        )

    @property
    def stack(self) -> Stack:
        return self.native_stack or self.model

    def check(self, prompt: Prompt) -> None:
        prompt.check(self.config)

    def prompt_length(self, prompt: Prompt) -> int:
        return prefill_length(prompt)

    def prefix(self, prompt: Prompt) -> Prefix:
        return prefix_of(prompt)

    @torch.inference_mode()
    def embed_prompt(self, prompt: Prompt) -> TalkerInput:
        config, ids, like = self.config, self.config.talker, self.stack.like
        special = (config.tts_pad_token_id, config.tts_bos_token_id)
        eos = np.array([config.tts_eos_token_id])
        before = np.concatenate([prompt.instruct_ids, prompt.role_ids])
        token_ids = np.concatenate([before, special, prompt.reference_ids, prompt.text_ids, eos])
        rows = self.embed_text(token_ids)
        role, rest = rows[: len(before)], rows[len(before) :]
        pad, bos, text = rest[:1], rest[1:2], rest[2:]  # text: transcript, text, eos
        end = text[-1] if prompt.text_open else None
        text = text[:-1] if prompt.text_open else text

        if prompt.language_id is None:
            think_ids = [ids.codec_nothink_id, ids.codec_think_bos_id, ids.codec_think_eos_id]
        else:
            think_ids = [ids.codec_think_id, ids.codec_think_bos_id, prompt.language_id, ids.codec_think_eos_id]
        control = to_device(torch.tensor([*think_ids, ids.codec_pad_id, ids.codec_bos_id]), like.device)
        codec = self.embed_codec_tokens(control)
        think, codec_pad, codec_bos = codec[:-2], codec[-2:-1], codec[-1:]
        if prompt.speaker_id is None:  # no row for a designed voice
            embedding = torch.from_numpy(prompt.speaker_embedding)
            speaker = to_device(embedding, like.device, like.dtype).reshape(-1, ids.hidden_size)
        else:
            speaker = self.embed_codec_tokens(to_device(torch.tensor([prompt.speaker_id]), like.device))
        head = torch.cat([think + pad, speaker + pad, codec_pad + bos])

        frames = codec_bos  # lower row of what follows the head
        if prompt.mode == "icl":
            codes = to_device(torch.from_numpy(prompt.reference_codes.astype(np.int64)), like.device)
            frames = torch.cat([codec_bos, self.embed_frames(codes)])

        if prompt.non_streaming_mode:
            body = torch.cat([text + codec_pad, frames + pad])
            trailing = text[:0]
            below = frames[:0]
        else:
            length = frames.shape[0]
            known = text[:length]
            if not prompt.text_open:
                known = torch.cat([known, pad.expand(length - known.shape[0], -1)])
            body, below = known + frames[: len(known)], frames[len(known) :]
            trailing = text[length:]
        return TalkerInput(torch.cat([role, head, body]), trailing, pad[0], below, end)

    def embed_codec_tokens(self, ids: Tensor) -> Tensor:
        """Codes of codebook 0 or control tokens, int64 [N] -> [N, C]."""
        rows: Tensor = self.model.codec_embedding(ids)
        return rows

    def embed_text(self, ids: npt.NDArray[np.integer[Any]]) -> Tensor:
        """As of `TextReader`."""
        projected: Tensor = self.text_projection(table_rows(self.model.text_embedding.weight, ids, self.stack.like))
        return projected

    def _embed_frames(self, codes: Tensor) -> Tensor:
        first = self.model.codec_embedding(codes[:, :1])
        return torch.cat([first, self.code_predictor.embed(codes[:, 1:])], dim=1).sum(1)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden)
        return logits


def suppressed_ids(config: TalkerConfig) -> npt.NDArray[np.bool_]:
    """The ids that codebook 0 never takes: control tokens except end of speech. bool [V]."""
    mask = np.zeros(config.vocab_size, np.bool_)
    mask[config.vocab_size - CONTROL_IDS :] = True
    mask[config.codec_eos_token_id] = False
    return mask


def prefill_length(prompt: Prompt) -> int:
    """T, the number of prefill positions of `prompt`."""
    frames = prompt.reference_codes.shape[0]
    text = prompt.reference_ids.shape[0] + prompt.text_ids.shape[0] + 1  # with eos
    if prompt.non_streaming_mode:
        return _head_length(prompt) + text + 1 + frames
    return _head_length(prompt) + 1 + frames


def voice_length(prompt: Prompt) -> int:
    """How many of the first positions depend on role, language and voice alone: those before the text."""
    transcript = prompt.reference_ids.shape[0]
    if not prompt.non_streaming_mode:
        transcript = min(transcript, 1 + prompt.reference_codes.shape[0])
    return _head_length(prompt) + transcript


def prefix_of(prompt: Prompt) -> Prefix:
    """What a prompt shares with all others in its voice."""
    language = -1 if prompt.language_id is None else prompt.language_id
    key = digest(
        prompt.role_ids,
        prompt.speaker_embedding,
        prompt.reference_ids,
        prompt.reference_codes,
        prompt.instruct_ids,
        np.array([language, prompt.non_streaming_mode, -1 if prompt.speaker_id is None else prompt.speaker_id]),
    )
    return Prefix(key, min(voice_length(prompt), prefill_length(prompt) - 1))


def _head_length(prompt: Prompt) -> int:
    think, speaker = 3 if prompt.language_id is None else 4, 0 if prompt.mode == "design" else 1
    return len(prompt.instruct_ids) + ROLE_LENGTH + think + speaker + 1  # 1: bos of the text


def use_native_code(
    talker: Talker, precision: Precision, load: Load | None = None, packed: PackedFile = NOWHERE
) -> Talker:
    """Replace the layers, heads and samplers of a talker by native code; returns it.

    Args:
        talker: in fp32, on the CPU. Its layers and heads are packed one after the other and freed.
        precision: to which the weights of all layers are rounded; those of the heads not below int8. The projection of
            the text stays fp32, because a prompt needs it once.
        load: fills a module, given its name below `talker.`; for the layers, if they are not loaded yet.
        packed: finds the packed layers and keeps them.
    """
    sizes = talker.config.talker
    talker.native_stack = NativeStack(talker.model, precision, layer_loader(load, "model"), packed.part("talker"))
    talker.head.logits = NativeLinear.of(talker.codec_head, head_precision(precision))
    del talker.codec_head
    talker.text_projection = _NativeTextProjection(talker.text_projection)
    predictor = native_predictor(talker.code_predictor, precision, load, packed)
    del talker.code_predictor  # its tables may have been rounded, so that these are not needed
    packed.keep()
    talker.head.first = NativeFirstCode(suppressed_ids(sizes), sizes.codec_eos_token_id)
    talker.head.predictor = predictor
    first, others = talker.model.codec_embedding.weight, predictor.codec_embedding
    size = sizes.code_predictor_config.vocab_size

    def embed_frames(codes: Tensor) -> Tensor:
        rows = np.empty((codes.shape[0], first.shape[1]), np.float32)
        decoder_stack.embed_frames(
            embedding_array(first), embedding_array(others), size, codes.contiguous().numpy(), rows
        )
        return torch.from_numpy(rows)

    talker.embed_frames = embed_frames
    return talker


class _NativeTextProjection(nn.Module):
    """A row does not depend on the others beside it."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        assert isinstance(projection, TextProjection)
        self.linear_fc1 = NativeLinear.of(projection.linear_fc1, "fp32")
        self.linear_fc2 = NativeLinear.of(projection.linear_fc2, "fp32")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out
