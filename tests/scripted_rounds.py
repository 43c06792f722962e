"""A GPU's rounds without a GPU or a model: what a DeviceModel, a Session and a planner are to DevicePasses."""

from types import SimpleNamespace

import torch
from fastqwen.kernels import rounds

CPU = torch.device("cpu")
TEXT = [(7 * n + n // 5) % 40 + 3 for n in range(60)]  # the token at every index of the reply


class Event:
    """A CUDA event where everything runs as it is called."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0


class Scripted:
    """A DeviceModel whose target writes TEXT; its drafts are right at every index that is no multiple of `wrong`."""

    def __init__(self, wrong, text=TEXT):
        self.wrong, self.text, self.user, self.parts = wrong, text, None, []
        self.trunk, self.head_cache = SimpleNamespace(device=CPU), SimpleNamespace(adopt=lambda *_: None, length=2)
        self.round = rounds.allocate(64, 8, torch.float32, torch.ones(2))
        self.shown: list[int] = []  # what a shortlist for drafts is told of the reply
        self.broken = None  # an index at which nothing can be drawn

    def set_tree(self, tree):
        places = [max(rank - 1, 0) for rank in tree.ranks]
        self.round.shape.copy_(torch.tensor(rounds.shape_words(tree.parents, places), dtype=torch.int32))

    def set_sampling(self, settings, seed):
        pass

    def draw_first(self, logits):
        return TEXT[0], True

    def run(self, part):
        self.parts.append(part)
        round, reply = self.round, int(self.round.state[rounds.REPLY])
        if part == "verify":
            rounds.begin_pass(round)
            for slot in range(8):
                index = reply + int(round.shape[rounds.DEPTH + slot])
                round.drawn[slot] = self.text[min(index, len(self.text) - 1)]
                round.errors[slot] = int(index == self.broken)
            rounds.accept(round)
        else:
            if part != "next":
                rounds.begin_head(round, keep=int(part == "catch up"))
            level = int(round.state[rounds.LEVEL])
            round.state[rounds.LEVEL] += 1  # as the draw of a list does
            right = self.text[min(reply + level - 1, len(self.text) - 1)]
            place = 1 if (reply + level) % self.wrong == 0 else 0  # a wrong first choice, and the right one behind it
            round.lists[level - 1] = torch.arange(50, 58)
            round.lists[level - 1, place] = right

    def draft(self, depth):
        for level in range(depth):
            self.run("next" if level else "first")


class Halves(Scripted):
    """The same with "verify" in two parts: the target's logits at every index of the reply, and acceptance."""

    def __init__(self, wrong, text, logits):
        super().__init__(wrong, text)
        self.target, self.logits, self.vocab = logits, None, logits.shape[1]

    def run(self, part):
        round = self.round
        if part == "rows":
            rounds.begin_pass(round)
            depth = round.shape[rounds.DEPTH : rounds.DEPTH + 8].long()
            self.logits = self.target[(int(round.state[rounds.REPLY]) + depth).clamp(max=len(self.target) - 1)]
        elif part == "accept":
            rounds.accept(round)
        else:
            super().run(part)


class Session:
    """The committed tokens, and what they are told at the end."""

    def __init__(self, capacity):
        self.tokens, self.capacity, self.valid, self.adopted = [], capacity, True, None
        self.logits = torch.zeros(64)
        self.state = SimpleNamespace(length=0, next_position=0, buffer=0, adopt=self.adopt)

    @property
    def room(self):
        return self.capacity - len(self.tokens)

    def prefill(self, ids, on_chunk, on_hidden, pictures):
        on_hidden(torch.zeros(len(ids), 8), torch.zeros(len(ids), 8), torch.arange(len(ids)).expand(3, -1))
        self.tokens += ids
        self.state.length = self.state.next_position = len(ids)
        return self.logits

    def adopt(self, **state):
        self.adopted = state


class Turns:
    def __init__(self, trees):
        self.trees, self.seen, self.cuts, self.passes = trees, [], [], 0

    def tree(self):
        self.passes += 1
        return self.trees[(self.passes - 1) % len(self.trees)]

    def observe(self, tree, accepted, **measured):
        self.seen.append((tree, len(accepted.path)))
        self.cuts.append(measured["cut"])

    def scores(self):
        return {}
