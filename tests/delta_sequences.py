"""Random sequences on the deferred DeltaNet step, and the same tokens decoded one at a time."""

import copy
import zlib

import torch
from fastqwen.kernels.delta_decode import (
    Weights,
    allocate,
    allocate_steps,
    control_words,
    delta_decode,
    reference,
)
from fastqwen.kernels.rows import ancestors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def generator(*key):
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def make_weights(heads, seed=0, rate=1.0):
    random = generator(seed)
    rates = -rate * (torch.rand(heads.value_heads, generator=random) + 0.5)
    taps = torch.randn(4, heads.channels, generator=random) * 0.5
    dt_bias = torch.randn(heads.value_heads, generator=random) - 2
    norm = torch.randn(heads.value_dim, generator=random)
    return Weights(heads, *(tensor.to(DEVICE) for tensor in (taps, rates, dt_bias, norm)), eps=1e-6)


class Sequence:
    """One sequence on the kernel. A token is any hashable value; its projections are random numbers of that seed."""

    def __init__(self, weights, dtype, function=delta_decode):
        self.weights, self.dtype, self.function = weights, dtype, function
        self.state = allocate(weights.heads, dtype=dtype, device=DEVICE)
        self.state.windows[0] = float("nan")  # the first pass fills it; all else that was never written is poison too
        for unwritten in (self.state.columns, self.state.keys, self.state.values, self.state.gates):
            unwritten.fill_(float("nan"))
        self.buffer, self.pending, self.parents = 0, (), ()

    def token(self, token):
        heads, random = self.weights.heads, generator("token", token)
        sizes = (heads.channels, heads.value_heads * heads.value_dim, heads.value_heads, heads.value_heads)
        return [torch.randn(size, generator=random).to(self.dtype) for size in sizes]

    def run(self, tokens, parents):
        """A pass; the path accepted before is replayed by it. Returns [8, Hv * dv]."""
        parts = zip(*map(self.token, tokens), strict=True) if tokens else [()] * 4
        sizes = [part.shape[0] for part in self.token(0)]
        inputs = []
        for part, size in zip(parts, sizes, strict=True):
            rows = torch.full((8, size + 16), float("nan"), dtype=self.dtype)  # dead slots and gaps between rows too
            for slot, row in enumerate(part):
                rows[slot, :size] = row
            inputs.append(rows.to(DEVICE)[:, :size])
        words = control_words(parents, buffer=self.buffer, pending=self.pending)
        control = torch.tensor(words, dtype=torch.int32, device=DEVICE)
        if self.function is reference:
            out = reference(inputs, self.weights, self.state, control)
        else:
            out = torch.full((8, sizes[1]), float("nan"), dtype=self.dtype, device=DEVICE)
            steps = allocate_steps(self.weights.heads, DEVICE).fill_(float("nan"))
            delta_decode(inputs, self.weights, self.state, control=control, steps=steps, out=out)
        self.buffer, self.pending, self.parents = 1 - self.buffer, (), tuple(parents)
        return out

    def accept(self, slot):
        self.pending = ancestors(self.parents, slot)

    def committed(self):
        """(window, recurrent state) after a final commit, made on a copy."""
        copied = copy.deepcopy(self)
        copied.run((), ())
        return copied.state.windows[1 - copied.buffer], copied.state.recurrent


class OneAtATime:
    """Plain decoding of any tokens, remembered by prefix."""

    def __init__(self, start):
        self.sequences, self.states = {(): (start, None)}, {}

    def after(self, tokens):
        """(the sequence with the last token pending, that token's output)."""
        if tokens not in self.sequences:
            sequence = copy.deepcopy(self.after(tokens[:-1])[0])
            out = sequence.run(tokens[-1:], (-1,))[0]
            sequence.accept(0)
            self.sequences[tokens] = sequence, out
        return self.sequences[tokens]

    def committed(self, tokens):
        if tokens not in self.states:
            self.states[tokens] = self.after(tokens)[0].committed()
        return self.states[tokens]


def relative(found, wanted):
    assert wanted.norm() > 0.1, "a bound that zeros would pass"
    return ((found.cpu().double() - wanted).norm() / wanted.norm()).item()


def definition(weights, tokens):
    """(output of the last token [Hv * dv], state [Hv, dk, dv]) in float64, from nothing, one head at a time."""
    heads = weights.heads
    keys, hv, dk, dv = heads.key_heads * heads.key_dim, heads.value_heads, heads.key_dim, heads.value_dim
    taps, rate, dt_bias, norm = (x.cpu().double() for x in (weights.taps, weights.rate, weights.dt_bias, weights.norm))
    columns = torch.zeros(3 + len(tokens), heads.channels, dtype=torch.float64)
    columns[3:] = torch.stack([token[0] for token in tokens])
    state = torch.zeros(hv, dk, dv, dtype=torch.float64)
    for at, (_, z, b, a) in enumerate(tokens):
        mixed = (columns[at : at + 4] * taps).sum(0)
        mixed = mixed * torch.sigmoid(mixed)
        q, k, v = mixed.split([keys, keys, hv * dv])
        q, k = (x.view(-1, dk) / (x.view(-1, dk).square().sum(1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        g = rate * torch.log1p(torch.exp(a.double() + dt_bias))
        beta = torch.sigmoid(b.double())
        outputs = []
        for h in range(hv):
            key, query = k[h // (hv // heads.key_heads)], q[h // (hv // heads.key_heads)] * dk**-0.5
            decayed = state[h] * g[h].exp()
            state[h] = decayed + torch.outer(key, beta[h] * (v.view(hv, dv)[h] - decayed.T @ key))
            o = state[h].T @ query
            gate = z.double().view(hv, dv)[h]
            outputs.append(o / (o.square().mean() + 1e-6).sqrt() * norm * gate * torch.sigmoid(gate))
    return torch.cat(outputs), state
