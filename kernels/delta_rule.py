"""The gated delta rule, one token at a time and in chunks.

State S [heads, key_dim, value_dim] float32; per token and head: key k, query q, value v, log decay g <= 0, beta:

    S <- exp(g) S
    d  = beta (v - k^T S)
    S <- S + k d^T
    o  = q^T S                        (read after the write)

In a chunk with inclusive sums G_i of g and D_ij = exp(G_i - G_j) for j <= i, the writes d solve a unit
lower-triangular system and everything else is a matrix product:

    (I + tril(beta_i D_ij (k_i.k_j), -1)) d = beta (V - exp(G) K S0)
    o = exp(G) Q S0 + tril(D_ij (q_i.k_j)) d
    S = exp(G_T) S0 + (exp(G_T - G) K)^T d

Source: Gated Delta Networks (arXiv 2412.06464), chunk form after arXiv 2406.06484.
"""

import torch
from torch import Tensor

CHUNK = 64


def step(state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The state after one token. state [H, dk, dv], k [H, dk], v [H, dv], g and beta [H], all float32.

    Elementwise products and one fixed-shape sum over keys, so a token's bits never depend on other rows.
    """
    decayed = state * torch.exp(g)[:, None, None]
    predicted = (decayed * k[:, :, None]).sum(1)
    write = (v - predicted) * beta[:, None]
    return decayed + k[:, :, None] * write[:, None, :]


def read(state: Tensor, q: Tensor) -> Tensor:
    """o = q^T S for every head: state [H, dk, dv], q [H, dk] -> [H, dv], float32."""
    return (state * q[:, :, None]).sum(1)


def chunked(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Runs T tokens from `state`. q and k [T, H, dk], v [T, H, dv], g and beta [T, H], all float32.

    Returns (outputs [T, H, dv], new state [H, dk, dv]); `state` is not changed. Chunks start at multiples of
    CHUNK from the first token given.
    """
    outputs = []
    for start in range(0, q.shape[0], CHUNK):
        parts = (tensor[start : start + CHUNK].transpose(0, 1) for tensor in (q, k, v, g, beta))
        output, state = _chunk(state, *parts)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs), state


def _chunk(state, q, k, v, g, beta):
    total = g.cumsum(-1)  # [H, T]
    # Masked before exp: above the diagonal the difference is positive and could overflow.
    causal = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).tril()
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(~causal, float("-inf")).exp()
    from_start = total.exp()[:, :, None]

    system = (beta[:, :, None] * decay * (k @ k.mT)).tril(-1)
    right = beta[:, :, None] * (v - from_start * (k @ state))
    writes = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    output = from_start * (q @ state) + (decay * (q @ k.mT)) @ writes
    to_end = (total[:, -1:] - total).exp()[:, :, None]
    return output, state * from_start[:, -1:, :] + (to_end * k).mT @ writes
