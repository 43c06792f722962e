"""What rounds on a device leave of a sequence, for tests that compare it bit for bit, between rounds too."""

import torch
from fastqwen.attention import KVCache
from fastqwen.kernels import rounds

DRAFTER = "the head"


def copies(model):
    """Copies of what a DeviceModel's rounds have left, made in their turn on the device: nothing waits for them, and
    later rounds do not change them."""
    round, found = model.round, {}
    for name, layer in [*enumerate(model.state.layers), (DRAFTER, model.head_cache)]:
        if isinstance(layer, KVCache):
            found[name] = [part.clone() for part in layer.rows(0, layer.keys.numbers.shape[1])]
        else:
            found[name] = {part: tensor.clone() for part, tensor in vars(layer._state).items()}
    ring = {part: tensor.clone() for part, tensor in vars(round.ring).items()}
    return found, ring, {part: getattr(round, part).clone() for part in ("state", "tokens", "marks")}


def meaning(copied):
    """The part of `copies` that later rounds read, by name: words of the state, tokens of the last pass and of the
    reply; keys and values up to the committed length, an accepted leaf where it belongs; windows and recurrent states,
    and what of the last pass is still to be replayed; rows that wait for the head. Which of two buffers is next, and
    what is behind the ends, may differ: it depends on the replies before."""
    layers, ring, found = copied
    words = found["state"].tolist()
    old, move = 1 - words[rounds.BUFFER], words[rounds.MOVE : rounds.MOVE + 2]
    path = words[rounds.PATH : rounds.PATH + words[rounds.PENDING]]
    words[rounds.BUFFER] = 0
    kept = {"state": torch.tensor(words), "marks": found["marks"]}
    if words[rounds.SERIAL]:
        kept["tokens"] = found["tokens"]
    for name, layer in layers.items():
        if isinstance(layer, list):
            length = words[rounds.HEAD_LENGTH if name == DRAFTER else rounds.LENGTH]
            for index, part in enumerate(layer):
                rows = kept[f"{name}: keys and values, {index}"] = part[:, :length].clone()
                if name != DRAFTER and move[0] >= 0:
                    rows[:, move[1]] = part[:, move[0]]
        else:
            kept |= {f"{name}: recurrent": layer["recurrent"], f"{name}: window": layer["windows"][old]}
            kept |= {f"{name}: {part}": layer[part][old][path] for part in ("columns", "keys", "values")}
            kept[f"{name}: gates"] = layer["gates"][old][:, path]
    at = [row % rounds.RING for row in range(words[rounds.READ], words[rounds.WRITTEN])]
    kept["waiting: hidden"] = ring["hidden"][ring["rows"][at].long()]
    return kept | {f"waiting: {part}": ring[part][at] for part in ("following", "positions")}


def states(session):
    """Keys, values and DeltaNet states of a session, after what is pending is replayed."""
    session.state.flush()
    found = []
    for layer in session.state.layers:
        if hasattr(layer, "keys"):
            found += [part[:, : layer.length].clone() for part in layer.read(0, layer.length)]
        else:
            found += [layer.window.clone(), layer.recurrent.clone()]
    return found
