"""Sampled tokens have the same frequencies with drafts as without, every processor on.

A text does not depend on its drafts, so equal seeds prove nothing about frequencies: drafted texts are drawn at seeds
0..N-1 and plain ones at N..2N-1, and the frequencies at each place of the text are compared by a two-sample chi-square.
A place gives one observation a text, so observations are independent.

Significance: 0.001 for the whole comparison (Bonferroni over its places). Power: with 400 texts a side and 8 tokens,
18% of the mass moved at every place is found with a probability above 0.95; both are checked below on made-up counts.
Three ways to get acceptance wrong are run through the same comparison and must fail it.
"""

import dataclasses
import functools
import random

import pytest
import scripted
import torch
from fastqwen.engine import SamplingSettings, passes
from fastqwen.engine.sampling import Sampler, process
from fastqwen.mtp.acceptance import Accepted, accept
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.tree import Tree

EVERYTHING = SamplingSettings(
    temperature=0.9, top_k=7, top_p=0.97, min_p=0.02, repetition_penalty=1.5, presence_penalty=0.8
)
VOCAB, TEXTS, PLACES = 8, 400, 4
SIGNIFICANCE = 0.001
_generator = torch.Generator().manual_seed(3)
TARGET = torch.randn(2, VOCAB, VOCAB, generator=_generator)  # by the last token, and the one before it
TARGET[0] += 1.5 * torch.eye(VOCAB)  # tokens like to repeat, so that penalties matter
HEAD = TARGET + 0.6 * torch.randn(2, VOCAB, VOCAB, generator=_generator)
PROMPT = (1, 2)


def target(text):
    return 1.2 * TARGET[0][text[-1]] + 0.6 * TARGET[1][text[-2]]


def head(text):
    return 1.2 * HEAD[0][text[-1]] + 0.6 * HEAD[1][text[-2]]


def head_drafts(tree, sampler):
    """The coupled drafts of a head whose logits are near the target's."""

    def guess(tree, reply):
        text, lists = list(reply), []
        for width in tree.widths:
            logits = head((*PROMPT, *text))
            lists.append(sampler.candidates(logits, torch.tensor(text), len(text), width))
            text.append(lists[-1][0])
        return [lists[tree.depths[slot] - 1][tree.ranks[slot] - 1] for slot in range(1, tree.rows)]

    return scripted.Drafts(tree, guess)


def text_of(seed, tree=None, wrong=None, monkeypatch=None):
    sampler = Sampler(EVERYTHING, seed, VOCAB)
    session = scripted.ScriptedSession(target, capacity=len(PROMPT) + PLACES + 1)
    if wrong is not None:
        monkeypatch.setattr(passes, "accept", functools.partial(wrong, session, sampler, random.Random(seed)))
    drafter = NoDrafts() if tree is None else head_drafts(tree, sampler)
    return scripted.run(session, drafter, sampler, prompt=PROMPT, max_tokens=PLACES)[0]


def counts(texts):
    """[PLACES, VOCAB]"""
    return torch.stack([torch.bincount(place, minlength=VOCAB) for place in torch.tensor(texts).T])


@functools.cache
def plain():
    return counts([text_of(seed) for seed in range(TEXTS, 2 * TEXTS)])


def p_values(one, other):
    """Of the two-sample chi-square (equal sample sizes) at every place; cells with fewer than 10 are put together."""
    values = []
    for a, b in zip(one.double(), other.double(), strict=True):
        rare = a + b < 10
        a, b = (torch.cat([side[~rare], side[rare].sum()[None]]) for side in (a, b))
        used = a + b > 0
        statistic = ((a - b)[used] ** 2 / (a + b)[used]).sum()
        freedom = torch.tensor((int(used.sum()) - 1) / 2, dtype=torch.float64)
        values.append(torch.special.gammaincc(freedom, statistic / 2).item())
    return values


def differ(one, other):
    return min(p_values(one, other)) < SIGNIFICANCE / len(one)


TREES = [Tree.chain(3), Tree((3, 2, 1, 1))]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_drafted_texts_have_the_frequencies_of_plain_ones(tree):
    assert not differ(counts([text_of(seed, tree) for seed in range(TEXTS)]), plain())


def always(session, sampler, source, tree, tokens, draw, *, stop_ids, room):
    """Wrong: the chain is accepted as it is."""
    path = tuple(range(min(tree.depth, room - 1) + 1))
    drafted = tuple(tokens[slot] for slot in path[1:])
    return Accepted(path, (*drafted, draw(path[-1], drafted)), stop=False)


def without_ancestors(session, sampler, source, tree, tokens, draw, *, stop_ids, room):
    """Wrong: the penalties and the noise of a row do not see the tokens drafted before it."""
    return accept(tree, tokens, lambda slot, ancestors: draw(slot, ()), stop_ids=stop_ids, room=room)


def rejection(temperature, session, sampler, source, tree, tokens, draw, *, stop_ids, room):
    """Speculative sampling's rule, min(1, p / q) and the residual; right if `temperature` is the drafts' own."""
    drafts_settings = dataclasses.replace(EVERYTHING, temperature=temperature)
    before = [*session.tokens[len(PROMPT) :], tokens[0]]
    path, drawn = [0], []

    def shares(logits, settings):
        ids, scores = process(logits, torch.tensor(before + drawn), settings, VOCAB)
        return torch.zeros(VOCAB).index_put((ids,), torch.softmax(scores, 0))

    while True:
        if path[-1] == tree.depth:
            return Accepted(tuple(path), (*drawn, draw(path[-1], tuple(drawn))), stop=False)
        drafted = tokens[path[-1] + 1]
        p = shares(session.rows[path[-1]], EVERYTHING)
        q = shares(head((*PROMPT, *before, *drawn)), drafts_settings)
        if source.random() * q[drafted] < p[drafted]:
            drawn.append(drafted)
            if len(drawn) == room:
                return Accepted(tuple(path), tuple(drawn), stop=False)
            path.append(path[-1] + 1)
            continue
        rest = (p - q).clamp(min=0)
        rest = rest if rest.sum() > 0 else p
        return Accepted(tuple(path), (*drawn, source.choices(range(VOCAB), rest.tolist())[0]), stop=False)


def drafted_with(wrong, monkeypatch):
    return counts([text_of(seed, Tree.chain(3), wrong, monkeypatch) for seed in range(TEXTS)])


WRONG = {
    "accepts always": always,
    "ancestors not seen": without_ancestors,
    "rejects by another temperature": functools.partial(rejection, 2.0),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_acceptance_is_found(wrong, monkeypatch):
    assert differ(drafted_with(wrong, monkeypatch), plain())


def test_a_right_rejection_rule_is_not_taken_for_a_wrong_one(monkeypatch):
    """The wrong temperature is what was found above, not the different rule."""
    assert not differ(drafted_with(functools.partial(rejection, EVERYTHING.temperature), monkeypatch), plain())


def samples(shares, generator):
    drawn = torch.multinomial(shares.expand(PLACES, -1), TEXTS, replacement=True, generator=generator)
    return torch.stack([torch.bincount(place, minlength=VOCAB) for place in drawn])


def test_the_comparison_has_the_significance_and_the_power_that_it_claims():
    """Made-up counts: equal shares almost always pass, 18% of the mass moved at all places is almost always found."""
    generator = torch.Generator().manual_seed(9)
    shares = torch.full((VOCAB,), 1 / VOCAB)
    moved = shares + 0.18 / 4 * torch.tensor([1.0, -1.0] * 4)
    alarms = sum(differ(samples(shares, generator), samples(shares, generator)) for _ in range(300))
    found = sum(differ(samples(moved, generator), samples(shares, generator)) for _ in range(100))
    assert alarms <= 3  # 0.3 expected; more than 3 has a probability below 0.0003
    assert found >= 0.95 * 100


def test_drafts_are_accepted_and_rejected_in_the_compared_texts():
    lengths = set()
    for seed in range(40):
        sampler = Sampler(EVERYTHING, seed, VOCAB)
        drafter = head_drafts(Tree.chain(3), sampler)
        session = scripted.ScriptedSession(target, capacity=len(PROMPT) + PLACES + 1)
        scripted.run(session, drafter, sampler, prompt=PROMPT, max_tokens=PLACES)
        lengths |= {len(path) - 1 for path in drafter.paths[:1]}
    assert lengths == {0, 1, 2}  # the reply's last token is not fed
