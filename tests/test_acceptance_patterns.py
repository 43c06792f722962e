"""Every acceptance pattern of every tree, through the real loop: text, state and ending are plain decoding's.

What test_acceptance.py proves of one walk is proved here of whole replies, whose passes follow one another.
"""

import functools
import itertools

import pytest
import scripted
import torch
from fastqwen.engine import GREEDY, SamplingSettings
from fastqwen.engine.sampling import Sampler
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.tree import OFF, Tree, all_shapes

TREES = [OFF, *(Tree.chain(length) for length in range(1, 6)), *all_shapes()]
PROMPT = (3, 1, 2)
CHOICES, LENGTH = 8, 40
VOCAB = CHOICES * LENGTH
EVERYTHING = SamplingSettings(
    temperature=1.0, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3
)


def logits_after(text):
    """Eight likely tokens, which belong to the place in the text and occur nowhere else; which is best, all before say.

    A wrong ancestor, a token left out or one too many therefore changes every later row.
    """
    place = len(text) - len(PROMPT)
    turn = sum((at + 2) * token for at, token in enumerate(text)) * 5 % 11
    row = torch.full((VOCAB,), -20.0)
    for choice in range(CHOICES):
        row[place * CHOICES + choice] = (choice * 3 + turn) % 11 / 4
    return row


def accepted_paths(tree):
    """Every way to be accepted: ranks per level, of which all but the last are 1."""
    yield ()
    for level, width in enumerate(tree.widths, 1):
        for rank in range(1, width + 1):
            yield (1,) * (level - 1) + (rank,)


@functools.cache
def plain(settings, max_tokens, capacity, stop):
    session = scripted.ScriptedSession(logits_after, capacity)
    text, why = scripted.run(
        session, NoDrafts(), Sampler(settings, 5, VOCAB), prompt=PROMPT, max_tokens=max_tokens, stop_ids=stop
    )
    return text, session.tokens, why


def drafted(settings, tree, hits, wanted, *, max_tokens, capacity, stop):
    """The same with a draft that holds `wanted` at the ranks `hits` of its levels and other tokens everywhere else."""

    def guess(tree, reply):
        tokens = []
        for slot in range(1, tree.rows):
            level, place = tree.depths[slot], len(reply) + tree.depths[slot] - 1
            right = level <= len(hits) and tree.ranks[slot] == hits[level - 1] and place < len(wanted)
            likely = range(place * CHOICES, (place + 1) * CHOICES)
            others = [token for token in likely if [token] != wanted[place : place + 1]]
            tokens.append(wanted[place] if right else others[tree.ranks[slot] - 1])
        return tokens

    session, drafter = scripted.ScriptedSession(logits_after, capacity), scripted.Drafts(tree, guess)
    text, why = scripted.run(
        session, drafter, Sampler(settings, 5, VOCAB), prompt=PROMPT, max_tokens=max_tokens, stop_ids=stop
    )
    # A limit ended the last walk, so its end is no miss of the head's; the others ended by the draft.
    assert drafter.cuts == [False] * (len(drafter.paths) - 1) + [True]
    return (text, session.tokens, why), drafter.paths


ROOMY = len(PROMPT) + LENGTH


@pytest.mark.parametrize("settings", [GREEDY, EVERYTHING], ids=["greedy", "everything_on"])
def test_every_accepted_path_of_every_tree_pass_after_pass(settings):
    wanted = plain(settings, 20, ROOMY, ())
    for tree in TREES if settings is GREEDY else TREES[::3]:
        for hits in accepted_paths(tree):
            limits = dict(max_tokens=20, capacity=ROOMY, stop=())
            found, paths = drafted(settings, tree, hits, wanted[0], **limits)
            assert found == wanted
            path = (0, *(tree.slot(level, rank) for level, rank in enumerate(hits, 1)))
            assert set(paths[:-1]) <= {path} and paths[-1] == path[: len(paths[-1])]  # the last may be cut


def cut_at_each_place(tree):
    """(accepted ranks, place in the second pass's draft): every candidate as the last one, and the row after it."""
    for hits in accepted_paths(tree):
        # Earlier places of a longer path are the last ones of a shorter path.
        yield from ((hits, place) for place in {max(len(hits) - 1, 0), len(hits)})


@pytest.mark.parametrize("settings", [GREEDY, EVERYTHING], ids=["greedy", "everything_on"])
@pytest.mark.parametrize("limit", ["stop token", "max_tokens", "capacity"])
def test_every_limit_at_every_place_of_a_draft(settings, limit):
    whole, *_ = plain(settings, LENGTH - 8, ROOMY, ())
    trees = TREES if settings is GREEDY else TREES[::6]
    endings = set()
    for tree in trees:
        for hits, place in cut_at_each_place(tree):
            end = 1 + len(hits) + 1 + place  # the prompt's token, a whole pass, then the token at `place`
            limits = dict(max_tokens=LENGTH - 8, capacity=ROOMY, stop=())
            limits |= {
                "stop token": dict(stop=(whole[end],)),
                "max_tokens": dict(max_tokens=end + 1),
                "capacity": dict(capacity=len(PROMPT) + end),
            }[limit]
            wanted = plain(settings, *limits.values())
            found, paths = drafted(settings, tree, hits, whole, **limits)
            assert found == wanted
            assert len(wanted[0]) == end + (limit != "stop token")
            assert len(paths[-1]) - 1 == place
            endings.add(wanted[2])
    assert endings == {"stop token" if limit == "stop token" else "length"}


def test_a_tree_that_changes_every_pass_writes_the_same_text():
    wanted = plain(GREEDY, LENGTH - 8, ROOMY, ())
    for shift in range(0, len(TREES), 7):
        session = scripted.ScriptedSession(logits_after, ROOMY)
        turns = itertools.cycle(TREES[shift:] + TREES[:shift])

        def guess(tree, reply):
            known = wanted[0] + [0] * 8
            # Right at rank 1 or 2, by the length: leaves end paths in some passes, chains go on in others.
            return [
                known[len(reply) + tree.depths[slot] - 1] if tree.ranks[slot] == 1 + (len(reply) % 2) else 0
                for slot in range(1, tree.rows)
            ]

        drafter = scripted.Drafts(OFF, guess)
        drafter.tree = lambda turns=turns: next(turns)
        text, why = scripted.run(
            session, drafter, Sampler(GREEDY, 5, VOCAB), prompt=PROMPT, max_tokens=LENGTH - 8, stop_ids=()
        )
        assert (text, session.tokens, why) == wanted
