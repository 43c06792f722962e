"""Which part of a verified draft becomes text.

At every node the target's own token is drawn; a candidate is accepted when it equals that token. So the text is what
plain decoding would have drawn, whatever the draft held, and the draft only decides how many draws one pass yields.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..weights.errors import FastQwenError
from .tree import Tree


@dataclass(frozen=True)
class Accepted:
    """The outcome of one verify pass.

    path: the slots whose tokens are fed for good, root first: what the model's state commits.
    tokens: the new tokens of the reply in order. The last one is not in the path: it is the next pass's root.
    stop: a stop token was drawn after them; it is neither emitted nor committed, and there is no next root.
    len(tokens) is len(path), or one less when `stop`.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    stop: bool


def accept(
    tree: Tree,
    tokens: Sequence[int],
    draw: Callable[[int, tuple[int, ...]], int],
    *,
    stop_ids: Collection[int],
    room: int,
) -> Accepted:
    """Walk the tree from the root along the tokens that the target draws.

    tokens: the token of every slot, tokens[0] the root's; entries past tree.rows are dead slots and not read.
    draw: (slot, ancestors) -> the target's token after `slot`; `ancestors` are the tokens between the root
        (exclusive) and the slot (inclusive). It is called once per slot of the path, in order, and never elsewhere.
    stop_ids: the tokens that end the text.
    room: how many new tokens the reply may take, at least 1; once they are drawn nothing more is.
    Of siblings with the same token the lowest rank wins.
    A slot behind the root whose draw raises FastQwenError is left to the next pass, whose root has the same row: plain
    decoding too emits what was drawn before, and may end the reply there.
    State and text are those of plain decoding, one token at a time: the path ends before a stop token, and the token
    that fills `room` is emitted but not fed.
    Raises FastQwenError for fewer tokens than the tree has slots and for room below 1; other errors of `draw` pass
    through.
    """
    if len(tokens) < tree.rows:
        raise FastQwenError(f"{len(tokens)} draft tokens were given, but {tree} has {tree.rows} slots.")
    if room < 1:
        raise FastQwenError(f"A verify pass was asked for {room} new tokens; it needs room for at least 1.")
    path = [0]
    drawn: list[int] = []
    while True:
        try:
            token = draw(path[-1], tuple(drawn))
        except FastQwenError:
            if not drawn:
                raise
            return Accepted(tuple(path[:-1]), tuple(drawn), stop=False)
        if token in stop_ids:
            return Accepted(tuple(path), tuple(drawn), stop=True)
        drawn.append(token)
        child = next((slot for slot in tree.children(path[-1]) if tokens[slot] == token), None)
        if child is None or len(drawn) == room:
            return Accepted(tuple(path), tuple(drawn), stop=False)
        path.append(child)
