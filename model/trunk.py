"""The hybrid trunk: embedding, layers, final norm, head."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..attention import DecodeScratch, GatedAttention, Rotary
from ..deltanet import GatedDeltaNet
from ..kernels import delta_prefill, rounds
from ..kernels.rms_norm import rms_norm, rms_norm_rows
from ..kernels.rounds import Round
from ..kernels.rows import SLOTS, depths, each_row
from ..weights import Projection, Reader
from ..weights.backend import dependent_launch
from .block import Block, read_block
from .config import ModelConfig
from .family import FULL
from .state import TrunkState

# Prompts are run in chunks that start at absolute multiples of this many tokens, whatever memory is free, so
# that a reused prefix gives the same bits. A multiple of the delta rule's own chunk. A GPU wants many rows at once:
# with 2048 a packed matrix is unpacked a quarter as often, and attention has a block for every multiprocessor.
CHUNKS = {"cpu": 512}
GPU_CHUNK = 2048
# Where every operation of a prompt is a kernel that gives a row the same bits in any pass, a chunk may be cut at
# multiples of the delta rule's own chunk too.
GRAIN = delta_prefill.CHUNK


class Trunk:
    """The text model's weights. All sequence state is in a TrunkState that is passed in.

    device, dtype   where it computes and in what; linear weights and hidden states have `dtype`
    kv              how keys and values are kept: a key of attention.KINDS
    chunk           prompts are run in chunks at absolute multiples of this many tokens
    """

    def __init__(
        self, reader: Reader, config: ModelConfig, kv: str, *, place: Callable[[Block], Block] = lambda block: block
    ):
        """place: given every layer as soon as it is read; what it returns takes the layer's place."""
        self.config, self.device, self.dtype, self.kv = config, reader.device, reader.dtype, kv
        self.pass_kernels = True  # False: keys, values and states of new sequences are used by plain torch
        self.captures = True  # False: a capture of passes over these weights failed
        self.chunk = CHUNKS.get(reader.device.type, GPU_CHUNK)
        self.rotary = Rotary(config.rotary, reader.device)
        self.embedding = reader.linear("embed_tokens")
        self.blocks = [place(self._block(reader, index, kind)) for index, kind in enumerate(config.layer_kinds)]
        self.norm = reader.vector("norm.weight")
        head = self.embedding if config.tied_head else reader.linear("lm_head")
        self.head = Projection([(head, (config.vocab_size,))])
        parts = [part for block in self.blocks for part in (block.mixer, block.mlp)]
        groups = [value for part in parts for value in vars(part).values() if isinstance(value, Projection)]
        self._batch_invariant = self.device.type == "cuda" and all(group.batch_invariant for group in groups)

    def _block(self, reader, index, kind):
        prefix, config = f"layers.{index}.", self.config

        def mixer(norm):
            if kind == FULL:
                return GatedAttention(reader, prefix + "self_attn.", config.attention, norm)
            return GatedDeltaNet(reader, prefix + "linear_attn.", config.deltanet, norm)

        return read_block(reader, prefix, mixer, config.rms_eps)

    def new_state(self, capacity: int) -> TrunkState:
        """An empty state for up to `capacity` tokens."""
        layers, scratch, steps = [], DecodeScratch(), {}
        for block in self.blocks:
            if isinstance(block.mixer, GatedAttention):
                cache = block.mixer.new_cache(
                    capacity=capacity, kind=self.kv, device=self.device, scratch=scratch, kernels=self.pass_kernels
                )
                layers.append(cache)
            else:
                state = block.mixer.new_state(
                    dtype=self.dtype, device=self.device, scratch=steps, kernels=self.pass_kernels
                )  # fmt: skip
                layers.append(state)
        return TrunkState(layers, capacity)

    def grain(self, state: TrunkState) -> int:
        """A prompt's passes into `state` may end at any multiple of so many tokens without other bits in the state, in
        hidden states or in logits, as long as no pass has SLOTS tokens or fewer that would be more without the cut.

        GRAIN where all of a prompt runs by kernels that give a row its own bits: embedding rows are looked up exactly;
        activations are prepared a row a program; packed products are sums of integers; the few plain rows beside them
        have kernels/float_gemm.py; a convolution reads the columns before a token, wherever they are kept; the delta
        rule's chunks start at multiples of GRAIN and hand a float32 state on; attention's tiles of keys lie at absolute
        multiples, and one that a row does not see adds nothing; norms are a row a program; what is left is elementwise.
        Else `chunk`: libraries take another path for another number of rows. That is so on a CPU, for plain weights
        (cuBLAS), and where a kernel is missing or failed its check.
        """
        return math.gcd(GRAIN, self.chunk) if self._rows_have_own_bits(state) else self.chunk

    def _rows_have_own_bits(self, state):
        return self._batch_invariant and state.prompts_by_kernels

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token ids -> embeddings [T, H]."""
        return self.embedding.weight_rows(torch.tensor(ids, dtype=torch.long, device=self.device), self.dtype)

    def prefill(self, embeddings: Tensor, state: TrunkState, positions: Tensor | None = None) -> Tensor:
        """Commits the next T prompt tokens, which must not cross a multiple of `chunk`.

        embeddings  [T, H], of text or of images
        positions   [3, T] rotary positions (time, height, width); default: text, one after another
        Returns the hidden states after the final norm, [T, H].
        """
        tokens = embeddings.shape[0]
        if state.length // self.chunk != (state.length + tokens - 1) // self.chunk:
            raise ValueError(f"{tokens} tokens from {state.length} cross a multiple of {self.chunk}")
        if positions is None:
            start = state.next_position
            positions = torch.arange(start, start + tokens, device=self.device).expand(3, -1)
        cos, sin = self.rotary(positions)
        x = embeddings.to(self.dtype)
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x = block.prefill(x, _prefill_mixer(block.mixer, layer, cos, sin))
        state.length += tokens
        state.next_position = int(positions.max()) + 1
        if self._rows_have_own_bits(state):
            return rms_norm_rows([(x, self.norm)], self.config.rms_eps)
        return rms_norm(x, self.norm, self.config.rms_eps)

    def verify(self, tokens: Sequence[int], parents: Sequence[int], state: TrunkState) -> tuple[Tensor, Tensor]:
        """One pass over up to eight tree rows. Stages their keys, values and DeltaNet rows; commits nothing.

        tokens   the row's token ids: the root (the token after the committed text), then drafts
        parents  the slot each row follows, -1 for the root (kernels/rows.py)
        Returns hidden [SLOTS, H] after the final norm and logits [SLOTS, V] float32; dead slots are zero.
        """
        depth = depths(parents)
        if len(tokens) != len(parents):
            raise ValueError(f"{len(tokens)} tokens for {len(parents)} rows")
        rows = len(tokens)
        positions = torch.tensor(depth + (0,) * (SLOTS - rows), device=self.device) + state.next_position
        cos, sin = each_row(self._angles, rows, positions)
        x = torch.zeros(SLOTS, self.config.hidden_size, dtype=self.dtype, device=self.device)
        x[:rows] = self.embed(tokens)
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x = block.verify(x, rows, _verify_mixer(block.mixer, layer, cos, sin, tuple(parents)))
        hidden = each_row(lambda row: rms_norm(row, self.norm, self.config.rms_eps), rows, x)
        return hidden, self.head.verify(hidden, rows)[0].float()

    def decode(self, round: Round, state: TrunkState) -> Tensor:
        """`verify` with everything that differs between passes read on the device (kernels/rounds.py), from the layout
        of the pass on, for a state of which `runs_on_device` holds. The hidden states go to the round's ring. Returns
        logits [SLOTS, V] in the compute dtype; rows of dead slots mean nothing."""
        dependent, table = dependent_launch(self.device), self.embedding.table
        if table is None:
            rounds.begin_pass(round, dependent=dependent)
            x = self.embedding.embed(round.tokens, self.dtype)
        else:
            room = torch.empty(SLOTS, self.config.hidden_size, dtype=self.dtype, device=self.device)
            x = rounds.begin_pass(round, table=table, out=room, dependent=dependent)
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x = block.verify(x, SLOTS, _decode_mixer(block.mixer, layer, round))
        also = round.ring.hidden, round.ring.index
        hidden = rms_norm_rows([(x, self.norm)], self.config.rms_eps, also=also, dependent=dependent)
        return self.head.verify(hidden, SLOTS)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] after the final norm -> [..., V] float32."""
        return self.head(hidden)[0].float()

    def _angles(self, position):
        cos, sin = self.rotary(position.expand(3, 1))
        return cos[0], sin[0]


def _prefill_mixer(mixer, layer, cos, sin):
    if isinstance(mixer, GatedAttention):
        return lambda x: mixer.prefill(x, cos, sin, cache=layer)
    return lambda x: mixer.prefill(x, state=layer)


def _decode_mixer(mixer, layer, round):
    if isinstance(mixer, GatedAttention):
        return lambda x: mixer.decode(x, round.cos, round.sin, control=round.attention, cache=layer)
    return lambda x: mixer.decode(x, control=round.delta, state=layer)


def _verify_mixer(mixer, layer, cos, sin, parents):
    if isinstance(mixer, GatedAttention):
        return lambda x: mixer.verify(x, cos, sin, parents=parents, cache=layer)
    return lambda x: mixer.verify(x, parents=parents, state=layer)
