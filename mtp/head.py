"""The checkpoint's multi-token prediction (MTP) head: one attention layer that proposes the token after next.

    x = fc [ rms_norm(embedding of token p+1) | rms_norm(trunk's final hidden at p) ]
    x -> one gated-attention decoder layer -> rms_norm -> the trunk's own head

Source: vLLM, SGLang and llama.cpp agree on the order (embedding first) and on the hidden after the final norm.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import GatedAttention, KVCache, Rotary
from ..kernels.embedding import Table
from ..kernels.rms_norm import rms_norm, rms_norm_rows
from ..kernels.rows import SLOTS
from ..model.block import read_block
from ..model.config import ModelConfig
from ..weights import Reader
from ..weights.backend import dependent_launch
from .short_head import ShortHead


class MtpHead:
    """The head's weights; embedding and output head are the trunk's. Its cache is passed in.

    pre_norm  the next level is fed what comes before the head's norm instead of what comes after it
    short     the output head cut to a shortlist, for drafts; None: all of it
    """

    def __init__(self, reader: Reader, config: ModelConfig, *, pre_norm: bool = False, short: ShortHead | None = None):
        self.pre_norm, self.short = pre_norm, short
        self.rms_eps = config.rms_eps
        self.rotary = Rotary(config.rotary, reader.device)
        self.fc = reader.projection("mtp.", ("fc",))
        self.embedding_norm = reader.vector("mtp.pre_fc_norm_embedding.weight")
        self.hidden_norm = reader.vector("mtp.pre_fc_norm_hidden.weight")
        layer = "mtp.layers.0."

        def mixer(norm):
            return GatedAttention(reader, layer + "self_attn.", config.attention, norm)

        self.block = read_block(reader, layer, mixer, config.rms_eps)
        self.norm = reader.vector("mtp.norm.weight")

    def new_cache(self, capacity: int, *, kind: str, device: torch.device, kernels: bool = True) -> KVCache:
        """An empty cache for `capacity` rows and a draft's behind them; `kernels` as in attention/layer.py."""
        return self.block.mixer.new_cache(capacity=capacity, kind=kind, device=device, kernels=kernels)

    def prefill(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, *, cache: KVCache) -> Tensor:
        """T rows whose next tokens are known; their keys and values are committed.

        embeddings  [T, H] of tokens p+1;  hidden [T, H] after the trunk's final norm at p
        positions   [3, T] rotary positions of p
        Returns [T, H], fed back in for the next level; `for_logits` of it is fed to the trunk's head.
        """
        cos, sin = self.rotary(positions)
        mixer = self.block.mixer
        kernels = cache.scratch is not None
        parts = (embeddings, self.embedding_norm), (hidden, self.hidden_norm)
        x = self.fc(self._normed(parts, kernels))[0]
        x = self.block.prefill(x, lambda row: mixer.prefill(row, cos, sin, cache=cache))
        return x if self.pre_norm else self._normed([(x, self.norm)], kernels)

    def extend(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, *, cache: KVCache):
        """`prefill` where nobody reads the outputs: keys and values alone."""
        cos, sin = self.rotary(positions)
        parts = (embeddings, self.embedding_norm), (hidden, self.hidden_norm)
        x = self.fc(self._normed(parts, cache.scratch is not None))[0]
        self.block.mixer.extend(x, cos, sin, cache=cache)

    def decode(
        self,
        embeddings: Tensor | Table,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        control: Tensor,
        cache: KVCache,
        at: Sequence[Tensor | None] = (None, None),
    ) -> Tensor:
        """`prefill` for up to eight rows whose number and place in the cache are read from `control`
        (kernels/attention_control.py) on the device, for a cache that has a scratch. Its own length is neither read
        nor changed.

        embeddings, hidden  [SLOTS, H], or more rows, of embeddings their table `as_stored` too, and `at`, int64 [SLOTS]
                            each: which of them
        cos, sin            [SLOTS, dim / 2]
        Returns [SLOTS, H], of which `feed` makes what the next level is fed.
        """
        mixer, x = self.block.mixer, self._slots(embeddings, hidden, at)
        return self.block.verify(x, SLOTS, lambda row: mixer.decode(row, cos, sin, control=control, cache=cache))

    def extend_slots(
        self,
        embeddings: Tensor | Table,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        control: Tensor,
        cache: KVCache,
        at: Sequence[Tensor | None] = (None, None),
    ):
        """`decode` where nobody reads the outputs: keys and values alone."""
        self.block.mixer.extend_slots(self._slots(embeddings, hidden, at), cos, sin, control=control, cache=cache)

    def feed(self, output: Tensor, row: Tensor, out: Tensor):
        """out [1, H] <- what the next level is fed, of row `row` (int64 [1]) of what `decode` returned."""
        if self.pre_norm:
            torch.index_select(output, 0, row, out=out)
        else:
            dependent = dependent_launch(out.device)
            rms_norm_rows([(output, self.norm)], self.rms_eps, at=(row,), out=out, dependent=dependent)

    def for_logits(self, output: Tensor, *, kernels: bool = False) -> Tensor:
        """What the trunk's head takes, of what `prefill` and `feed` give; the same tensor unless `pre_norm`.
        `kernels`: by the kernel, for rows [R, H]."""
        return self._normed([(output, self.norm)], kernels) if self.pre_norm else output

    def _slots(self, embeddings, hidden, at):
        parts = (embeddings, self.embedding_norm), (hidden, self.hidden_norm)
        normed = rms_norm_rows(parts, self.rms_eps, at=at, dependent=dependent_launch(hidden.device))
        return self.fc.verify(normed, SLOTS)[0]

    def _normed(self, parts, kernels):
        """Norms side by side. By the kernel a row's bits are its own, so a prompt's rows are those of any other cut."""
        if kernels:
            return rms_norm_rows(parts, self.rms_eps)
        return torch.cat([rms_norm(part, norm, self.rms_eps) for part, norm in parts], -1)
