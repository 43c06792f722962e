"""From a row of logits to a token: penalties, temperature, top-k, min-p, top-p, and a seeded draw.

A draw is a pure function of the logits row, the set of reply tokens before it, the seed, the token's index and the
settings. It takes the argmax of (processed logit + Gumbel noise), where the noise depends on (seed, index, id) alone:
that is an exact sample of the softmax (the Gumbel-max trick), and whatever else was drawn or dropped cannot change it.

The order of the processors is that of ComfyUI's own text node, and so are their inputs: penalties see the reply's
tokens, not the prompt's. Three things differ on purpose: penalties also act when greedy, the token that crosses the
top-p limit stays, and every tie has a rule.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch

from ..kernels.philox import gumbel_noise
from ..weights.errors import FastQwenError

_MASS_SCALE = 2.0**40


def _require_number(name: str, value: object, low: float, high: float, hint: str, *, open_below: bool = False) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= high or (open_below and value == low):
        lower = f"above {low}" if open_below else f"at least {low}"
        raise FastQwenError(f"{name} is {value!r}; set a number {lower} and at most {high} ({hint}).")


@dataclass(frozen=True)
class SamplingSettings:
    """How to choose a token from the logits.

    greedy: take the most likely token; temperature and the filters are then not used, penalties are.
    temperature: 0 to 10, divides the logits; 0 means greedy.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: above 0, at most 1; keep the most likely tokens until their probability reaches top_p; 1 keeps all.
    min_p: 0 to 1; keep tokens at least min_p times as likely as the most likely one.
    repetition_penalty: above 0, at most 5; divides positive and multiplies negative logits of tokens in the reply.
    presence_penalty: -5 to 5; subtracted from the logits of tokens in the reply.
    Raises FastQwenError for a value out of its range, a NaN, or a value of another type (a bool is no number here).
    """

    greedy: bool = False
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.greedy, bool):
            raise FastQwenError(f"greedy is {self.greedy!r}; set it to True or False.")
        if type(self.top_k) is not int or self.top_k < 0:
            raise FastQwenError(f"top_k is {self.top_k!r}; set a whole number of tokens, or 0 to keep all.")
        _require_number("temperature", self.temperature, 0, 10, "0 is greedy")
        _require_number("top_p", self.top_p, 0, 1, "1 keeps all tokens", open_below=True)
        _require_number("min_p", self.min_p, 0, 1, "0 keeps all tokens")
        _require_number("repetition_penalty", self.repetition_penalty, 0, 5, "1 is none", open_below=True)
        _require_number("presence_penalty", self.presence_penalty, -5, 5, "0 is none")

    @property
    def is_greedy(self) -> bool:
        """Whether the settings leave nothing to chance: `greedy`, or temperature 0."""
        return self.greedy or self.temperature == 0


GREEDY = SamplingSettings(greedy=True)


class Sampler:
    """Draws the tokens of one text.

    seed: any whole number, NumPy's too; its low 64 bits count. vocab_size: ids from 0 to vocab_size - 1 can be drawn.
    Raises FastQwenError for a seed that is no whole number or a vocab_size below 1.
    """

    def __init__(self, settings: SamplingSettings, seed: int, vocab_size: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            raise FastQwenError(f"seed is {seed!r}; set a whole number.")
        if vocab_size < 1:
            raise FastQwenError(f"The vocabulary has {vocab_size} tokens; a model needs at least 1.")
        self.settings = settings
        self.seed = int(seed)  # NumPy's have no bits above their own
        self.vocab_size = vocab_size

    def draw(self, logits: torch.Tensor, history: torch.Tensor, index: int) -> int:
        """The token at `index` of the text.

        logits: float32 [V], V >= vocab_size; entries from vocab_size on are padding and cannot be drawn.
        history: int64 [n], the reply's tokens before this one, ancestors in the draft included; any order, repeats
            allowed, n may be 0, each below vocab_size.
        index: the token's index in the text, 0 <= index < 2^64.
        Score ties go to the lower id. Raises what `process` raises, and ValueError for an index out of range.
        """
        ids, scores = process(logits, history, self.settings, self.vocab_size)
        if len(ids) > 1:
            scores = scores + gumbel_noise(self.seed, index, ids)
        # torch.argmax documents that the first of equal maxima is returned, and ids ascend.
        return int(ids[torch.argmax(scores)])

    def candidates(self, logits: torch.Tensor, history: torch.Tensor, index: int, count: int) -> list[int]:
        """`count` distinct tokens, the most promising first, for a draft head's row at `index` of the text.

        The first is what `draw` would draw from this row. When sampling, the others are the next best under the same
        noise, from the 4 top_k most likely tokens (at least 64) without top-p and min-p: the target's distribution
        differs a little, and its noise is the same, so what it draws is mostly near the top of this list. When greedy
        they are the next most likely. Arguments as for `draw`, count at most vocab_size. Where `draw` would raise for
        what the row holds, the lowest ids: a draft is free to be wrong, and must not end a reply that goes on without.
        Source: Gumbel coupling of drafts, arXiv 2408.07978; lists of them, 2506.05632.
        """
        row = logits[: self.vocab_size]
        try:
            first = self.draw(logits, history, index)
        except FastQwenError:
            return list(range(count))
        if count == 1:
            return [first]
        scores = _penalise(row, history, self.settings)
        if self.settings.is_greedy:
            ids = torch.topk(scores, min(count, len(scores))).indices
        else:
            wide = min(len(scores), max(64, 4 * self.settings.top_k, count))
            ids = torch.topk(scores, wide).indices
            noisy = scores[ids] / self.settings.temperature + gumbel_noise(self.seed, index, ids)
            ids = ids[torch.topk(noisy, min(count, wide)).indices]
        others = [int(token) for token in ids.tolist() if token != first]
        return [first, *others[: count - 1]]


def process(
    logits: torch.Tensor, history: torch.Tensor, settings: SamplingSettings, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that the settings leave, and their logits after penalties and temperature.

    logits: float32 [V], V >= vocab_size, not changed. history: int64 [n], ids below vocab_size; only its set counts.
    Returns ids int64 [m], ascending, and scores float32 [m], on the logits' device; m >= 1, and 1 when greedy.
    The next token's distribution is softmax(scores).

    In this order, in float32 unless said: over the set of history, l * r where l < 0 and l / r elsewhere, r being the
    repetition penalty; minus the presence penalty; if greedy, the argmax (lower id on a tie) and no more; divided by
    the temperature; top-k; min-p; top-p. Filters order tokens by (score descending, id ascending).
    Raises FastQwenError when the row holds NaN or +inf, or nothing that is finite, or when dividing by the temperature
    overflows; ValueError for a row of another shape or dtype. -inf entries are allowed: they are never drawn.
    """
    if logits.dtype != torch.float32 or logits.dim() != 1 or logits.shape[0] < vocab_size:
        raise ValueError(
            f"logits are {logits.dtype} {tuple(logits.shape)}; sampling needs float32 [V] with V >= {vocab_size}."
        )
    scores = _penalise(logits[:vocab_size], history, settings)
    best = torch.argmax(scores)
    peak = float(scores[best])  # NaN when any entry is: argmax counts NaN as the greatest
    if not math.isfinite(peak):
        raise FastQwenError(
            f"The model's highest logit after the penalties is {peak}, so no token can be drawn; the weights are "
            "damaged or overflow in this precision, or the repetition penalty is too small: check the file, or try "
            "another dtype."
        )
    if settings.is_greedy:
        return best[None], scores[best][None]
    # By a tensor on the device: given a Python number, CUDA multiplies with its reciprocal where a CPU divides.
    scores = scores / scores.new_tensor(settings.temperature)
    if not math.isfinite(float(scores[best])):
        raise FastQwenError(
            f"Temperature {settings.temperature} is too small to divide a logit of {peak}; use 0 for greedy."
        )
    ids, scores = _keep_top_k(scores, settings.top_k)
    ids, scores = _keep_min_p(ids, scores, settings.min_p)
    return _keep_top_p(ids, scores, settings.top_p)


def _penalise(logits: torch.Tensor, history: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Penalties, each seen token once. Repeats in history write one value, computed from the unchanged row."""
    if len(history) == 0 or (settings.repetition_penalty == 1 and settings.presence_penalty == 0):
        return logits
    history = history.to(logits.device)
    seen = logits[history]
    penalty = logits.new_tensor(settings.repetition_penalty)
    seen = torch.where(seen < 0, seen * penalty, seen / penalty) - settings.presence_penalty
    return logits.index_put((history,), seen)


def _keep_top_k(scores: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Exactly top_k tokens of a full row; 0, or more than there are, keeps all. At the limit the lower id stays."""
    if not 0 < top_k < len(scores):
        return torch.arange(len(scores), device=scores.device), scores
    # torch.topk leaves open which of equal values it returns, so only its smallest value is used.
    limit = torch.topk(scores, top_k, sorted=False).values.min()
    ids = torch.nonzero(scores >= limit)[:, 0]
    if len(ids) > top_k:
        order = torch.sort(scores[ids], descending=True, stable=True).indices
        ids = torch.sort(ids[order[:top_k]]).values
    return ids, scores[ids]


def _keep_min_p(ids: torch.Tensor, scores: torch.Tensor, min_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with p >= min_p * (the largest p), p being the float64 softmax of what is left."""
    if min_p == 0:
        return ids, scores
    probabilities = torch.softmax(scores.to(torch.float64), dim=0)
    kept = probabilities >= min_p * probabilities.max()
    return ids[kept], scores[kept]


def _keep_top_p(ids: torch.Tensor, scores: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens up to and including the one whose mass reaches top_p of all the mass.

    A token's mass is the integer round(p * 2^40), p being the float64 softmax of what is left. In the order of
    (score descending, id ascending) a token stays when the sum of the masses before it is below
    top_p * (the sum of all masses), that product in float64. So the token that crosses the limit stays, the first one
    always does, and no order of summation can move the limit: sums of integers are exact, and below 2^53.
    """
    if top_p == 1:
        return ids, scores
    order = torch.sort(scores, descending=True, stable=True).indices  # ids ascend, so a stable sort keeps ties so
    probabilities = torch.softmax(scores.to(torch.float64), dim=0)[order]
    mass = torch.round(probabilities * _MASS_SCALE).to(torch.int64)
    before = torch.cumsum(mass, dim=0) - mass
    kept = order[before.to(torch.float64) < top_p * mass.sum().to(torch.float64)]
    kept = torch.sort(kept).values
    return ids[kept], scores[kept]
