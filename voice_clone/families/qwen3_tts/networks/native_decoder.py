"""The codec decoder as native code. Used on a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from voice_clone.families.qwen3_tts.networks.codec_decoder import (
    CodecDecoder,
    ConvNeXtBlock,
    DecoderBlock,
    ResidualUnit,
    TransformerLayer,
)
from voice_clone.layers.convolution import CausalConv1d, CausalConvTranspose1d
from voice_clone.layers.rvq import DecoderCodebook, ResidualDecoder
from voice_clone.layers.snake import SnakeBeta
from voice_clone.layers.streaming import StreamState
from voice_clone.native.codec.chain import Chain
from voice_clone.native.codec.chain_builder import Activation, ChainBuilder, Residual, Snake
from voice_clone.native.matrix.weights import Array

PIECE_FRAMES = 24  # decoded at once, of all streams together: more would take more memory and be no faster


class NativeCodecDecoder:
    """As `CodecDecoder`, as far as streams need it; fp32.

    A stream's samples are the same, bit for bit, in chunks of any size and beside any other streams.

    Args:
        decoder: on the CPU. Its weights are packed one after the other and given up.
    """

    @torch.no_grad()
    def __init__(self, decoder: CodecDecoder) -> None:
        self.memory = decoder.memory
        self._first, self._rest = _codebooks(decoder.quantizer.rvq_first), _codebooks(decoder.quantizer.rvq_rest)
        self._latent = _latent(decoder)
        self._waveform = _waveform(decoder)

    @property
    def device(self) -> torch.device:
        """Where codes are expected and states lie."""
        return torch.device("cpu")

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._latent.nbytes + self._waveform.nbytes

    @property
    def multiplications(self) -> int:
        """Of a frame, in products; less than the layers' definition has, by those that Winograd convolutions save."""
        return self._latent.multiplications + self._waveform.multiplications

    @torch.inference_mode()
    def new_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first frame."""
        position = torch.zeros(batch, dtype=torch.int64)
        return StreamState(position, [self._latent.new_state(batch), self._waveform.new_state(batch)])

    @torch.inference_mode()
    def decode_chunk(self, codes: Tensor, state: StreamState) -> Tensor:
        """int64 [B, K, n] and the streams' state, which moves on -> [B, n * 1920]; as `CodecDecoder.decode_chunk`."""
        return self._decode(codes, state, codes.shape[-1])

    @torch.inference_mode()
    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Move fresh streams on over frames whose audio is not wanted; as `CodecDecoder.prime`."""
        self._decode(codes, state, self.memory)

    def _decode(self, codes: Tensor, state: StreamState, kept: int) -> Tensor:
        """The samples of the last `kept` frames."""
        latent, past = state.buffers
        x, latent = self._latent(self._vectors(codes), latent, state.position)
        samples = []
        for piece in torch.split(x[:, -kept:], max(1, PIECE_FRAMES // len(x)), dim=1):
            waveform, past = self._waveform(piece, past, state.position)
            samples.append(waveform[..., 0].clamp(-1, 1))
        state.position, state.buffers = state.position + codes.shape[-1], [latent, past]
        return torch.cat(samples, dim=-1)

    def _vectors(self, codes: Tensor) -> Tensor:
        """[B, K, n] -> the sums of the codes' vectors, of both quantisers side by side: [B, n, C]."""
        books, sums = iter(codes.numpy().transpose(1, 0, 2)), []
        for vectors in (self._first, self._rest):
            total = vectors[0][next(books)]
            for others in vectors[1:]:
                total += others[next(books)]
            sums.append(total)
        return torch.from_numpy(np.concatenate(sums, axis=-1))


def _codebooks(quantizer: ResidualDecoder) -> list[Array]:
    """The vectors of each codebook's codes, [size, D]."""
    vectors = []
    for layer in quantizer.vq.layers:
        [book] = layer.children()
        assert isinstance(book, DecoderCodebook)
        vectors.append(book(torch.arange(len(book.cluster_usage))).numpy())
    return vectors


def _latent(decoder: CodecDecoder) -> Chain:
    """From the quantisers' vectors to the latent."""
    quantizers = decoder.quantizer.rvq_first, decoder.quantizer.rvq_rest
    weight = torch.cat([_take(each.output_proj)[0] for each in quantizers], dim=1)[..., 0]
    transformer = decoder.pre_transformer
    config = transformer.config
    chain = ChainBuilder(weight.shape[1])
    chain.linear(weight)
    _convolution(chain, decoder.pre_conv)
    _linear(chain, transformer.input_proj, residual="set")
    for layer in transformer.layers:
        assert isinstance(layer, TransformerLayer)
        attention, mlp = layer.self_attn, layer.mlp
        chain.norm(layer.input_layernorm.weight, layer.input_layernorm.eps)
        parts = [_take(each) for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
        biases = [bias for _, bias in parts if bias is not None]
        chain.linear(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None)
        chain.attention(
            config.num_attention_heads, config.num_key_value_heads, config.sliding_window, config.rope_theta
        )
        _linear(chain, attention.o_proj, layer.self_attn_layer_scale.scale, residual="added")
        chain.norm(layer.post_attention_layernorm.weight, layer.post_attention_layernorm.eps)
        _linear(chain, mlp.gate_up_proj)
        chain.gate()
        _linear(chain, mlp.down_proj, layer.mlp_layer_scale.scale, residual="added")
    chain.norm(transformer.norm.weight, transformer.norm.eps)
    _linear(chain, transformer.output_proj)
    return chain.build()


def _waveform(decoder: CodecDecoder) -> Chain:
    """From the latent to samples."""
    chain = ChainBuilder(decoder.pre_transformer.config.latent_dim)
    for upsampled in decoder.upsample:
        upsample, block = upsampled.children()
        assert isinstance(block, ConvNeXtBlock)
        _transposed(chain, upsample, residual="set")
        weight, bias = _take(block.dwconv.conv)
        assert bias is not None
        chain.depthwise(weight, bias, block.norm.weight, block.norm.bias, block.norm.eps)
        _linear(chain, block.pwconv1, activation="gelu")
        _linear(chain, block.pwconv2, block.gamma, residual="added")
    first, *rest, snake, last = decoder.decoder
    blocks = [block.block for block in rest if isinstance(block, DecoderBlock)]
    snakes = [*(block[0] for block in blocks), snake]
    _convolution(chain, first, snakes[0])
    for block, following in zip(blocks, snakes[1:], strict=True):
        units = [unit for unit in block if isinstance(unit, ResidualUnit)]
        _transposed(chain, block[1], units[0].act1, residual="set")
        for unit, after in zip(units, [*(unit.act1 for unit in units[1:]), following], strict=True):
            _convolution(chain, unit.conv1, unit.act2)
            _convolution(chain, unit.conv2, after, residual="added")
    _convolution(chain, last)
    return chain.build()


def _convolution(
    chain: ChainBuilder, module: nn.Module, snake: nn.Module | None = None, residual: Residual = "untouched"
) -> None:
    assert isinstance(module, CausalConv1d)
    [dilation] = module.conv.dilation
    chain.convolution(*_take(module.conv), dilation, activation=_snake(snake), residual=residual)


def _transposed(
    chain: ChainBuilder, module: nn.Module, snake: nn.Module | None = None, residual: Residual = "untouched"
) -> None:
    assert isinstance(module, CausalConvTranspose1d)
    [stride] = module.conv.stride
    chain.transposed(*_take(module.conv), stride, activation=_snake(snake), residual=residual)


def _linear(
    chain: ChainBuilder,
    module: nn.Module,
    scale: Tensor | None = None,
    residual: Residual = "untouched",
    activation: Activation = None,
) -> None:
    """A linear layer whose outputs are scaled."""
    weight, bias = _take(module)
    if scale is not None:
        weight = scale[:, None] * weight
        bias = None if bias is None else scale * bias
    chain.linear(weight, bias, activation=activation, residual=residual)


def _take(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Remove a layer's weight and bias from it, so that they are not in memory twice."""
    weight, bias = module.weight, module.bias
    del module.weight, module.bias
    assert isinstance(weight, Tensor)
    return weight, bias if isinstance(bias, Tensor) else None


def _snake(module: nn.Module | None) -> Snake | None:
    if module is None:
        return None
    assert isinstance(module, SnakeBeta)
    return Snake(module.alpha.exp(), 1.0 / (module.beta.exp() + 1e-9))
