"""Whether rounds run on a device: decided once, by a check of the kernels that connect passes."""

import functools

import torch

from ..kernels import rounds, sampling
from ..kernels.embedding import Table
from ..kernels.rms_norm import rms_norm, rms_norm_rows
from ..mtp.acceptance import accept
from ..mtp.tree import Tree
from ..weights.backend import decide
from .device_model import write_settings
from .sampling import GREEDY, Sampler, SamplingSettings

_SEED, _REPLY = 12345, (7, 9, 100)
_SETTINGS = (
    GREEDY,
    SamplingSettings(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.3),
)


@functools.cache
def round_kernels(device: torch.device) -> tuple[bool, str]:
    """(whether rounds run on the device, why). A failure is logged once and the host takes over."""
    return decide(device, "sampling and acceptance", wrong_result)


def wrong_result(device: torch.device, vocab: int = 2000) -> str | None:
    """Runs the kernels on small random data; what differs from the reference, or None."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(8, 640, generator=generator).to(device), torch.randn(640, generator=generator).to(device)
    both = rms_norm_rows([(x, weight), (x.flip(0), weight)], 1e-6)
    wanted = torch.cat([rms_norm(part, weight, 1e-6) for part in (x, x.flip(0))], 1)
    if not bool(((both - wanted).abs() <= 1e-5 * (1 + wanted.abs())).all()):
        return "norms differ"
    tree, table = Tree((2, 2)), Table(torch.randn(vocab, 64, generator=generator).to(device))
    logits = (torch.randn(8, vocab, generator=generator) * 3).to(device)
    for settings in _SETTINGS:
        round = rounds.allocate(vocab, 64, torch.float32, torch.ones(4, device=device))
        words = rounds.shape_words(tree.parents, [max(rank - 1, 0) for rank in tree.ranks])
        round.shape.copy_(torch.tensor(words, dtype=torch.int32))
        state = rounds.state_words(
            length=20, position=20, buffer=0, pending=(), root=_REPLY[-1], reply=len(_REPLY), limit=100, capacity=100,
            stops=(),
        )  # fmt: skip
        round.state.copy_(torch.tensor(state, dtype=torch.int32))
        round.marks[list(_REPLY)] = 1
        sampler = Sampler(settings, _SEED, vocab)

        def drawn(slot, above, sampler=sampler):
            history = torch.tensor([*_REPLY, *above], device=device)
            return sampler.draw(logits[slot], history, len(history))

        chain = drawn(0, ())
        drafts = [chain, drawn(1, (chain,)) + 1, chain ^ 1, drawn(1, (chain,))]  # slots 1 to 4: a leaf is accepted
        for level, (first, second) in enumerate(((drafts[0], drafts[2]), (drafts[1], drafts[3]))):
            round.lists[level, 0], round.lists[level, 1] = first, second
        embedded = rounds.begin_pass(round, table=table, out=torch.empty(8, 64, device=device))
        if not torch.equal(embedded, table.weight[round.tokens]):
            return "embeddings differ"
        found = sampling.new_settings(device)
        write_settings(found, settings, _SEED)
        workspace = sampling.allocate(vocab, device)
        sampling.draw(
            logits, found, round.seen, workspace, vocab=vocab, tokens=round.drawn, errors=round.errors,
            live=round.live,
        )  # fmt: skip
        rounds.accept(round)
        wanted_path = accept(tree, (_REPLY[-1], *drafts), drawn, stop_ids=(), room=80)
        record = round.record.tolist()
        if record[8 : 8 + record[1]] != list(wanted_path.path) or record[16 : 16 + record[2]] != list(
            wanted_path.tokens
        ):
            return "accepted tokens differ"
    return None
