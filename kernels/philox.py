"""Philox4x32-10 in int64 arithmetic, and the Gumbel noise that sampling adds to logits.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the known-answer
vectors of its Random123 library are in the tests.

The generator maps a counter (c0, c1, c2, c3) and a key (k0, k1) of 32-bit words to four 32-bit words. One round:

    (h0, l0) = the high and low 32 bits of 0xD2511F53 * c0
    (h1, l1) = the high and low 32 bits of 0xCD9E8D57 * c2
    (c0, c1, c2, c3) = (h1 ^ c1 ^ k0,  l1,  h0 ^ c3 ^ k1,  l0)

Ten rounds are made, and between two rounds k0 grows by 0x9E3779B9 and k1 by 0xBB67AE85, modulo 2^32.
Only integers are involved, so the words are the same on every device and in every order of evaluation.
"""

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW32 = 0xFFFFFFFF
_LOW64 = 0xFFFFFFFFFFFFFFFF

Word = torch.Tensor | int


def philox_words(
    counter: tuple[Word, Word, Word, Word], key: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four pseudo-random words for every counter.

    counter: four int64 tensors or ints, each value in [0, 2^32), broadcast against each other; tensors share a device.
    key: two ints in [0, 2^32).
    Returns four int64 tensors of the broadcast shape, values in [0, 2^32), on the tensors' device (CPU for ints alone).
    Raises ValueError for a tensor that is not int64.
    """
    c0, c1, c2, c3 = _as_tensors(counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _KEY_STEPS[0]) & _LOW32
        k1 = (k1 + _KEY_STEPS[1]) & _LOW32
    return c0, c1, c2, c3


def gumbel_noise(seed: int, index: int, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of vocabulary entries at one position of a text.

    seed: any int; only its low 64 bits count, so -1 and 2^64 - 1 are the same seed, and so are 0 and 2^64.
    index: the token's index in the text, 0 <= index < 2^64.
    ids: int64 of any shape, 0 <= id < 2^34 (not checked: that would wait for the device).
    Returns float32 of the shape and device of `ids`. An id's noise depends on (seed, index, id) alone, never on
    which other ids are asked for.

    The words of an id come from counter (id >> 2, index low, index high, 0) and key (seed low, seed high), and the
    id's own is number id & 3. v = (word + 0.5) * 2^-32 is exact in float64 and lies strictly between 0 and 1;
    the noise is -log(-log(v)), computed in float64 and rounded once to float32: from -3.13 to 22.88.
    Raises ValueError for an index out of range or ids that are not int64.
    """
    if not 0 <= index <= _LOW64:
        raise ValueError(f"index is {index}, but a token's index in the text lies in [0, 2^64).")
    if ids.dtype != torch.int64:
        raise ValueError(f"ids has dtype {ids.dtype}, but vocabulary ids must be int64.")
    seed &= _LOW64
    words = philox_words((ids >> 2, index & _LOW32, index >> 32, 0), (seed & _LOW32, seed >> 32))
    lane = ids & 3
    word = torch.where(lane < 2, torch.where(lane == 0, words[0], words[1]), torch.where(lane == 2, words[2], words[3]))
    uniform = (word.to(torch.float64) + 0.5) * 2.0**-32
    return (-torch.log(-torch.log(uniform))).to(torch.float32)


def _multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and low 32 bits of an unsigned 32 x 32 bit product.

    The product can pass 2^63 and then turns negative in int64, but its 64 bits are right. The arithmetic shift fills
    the upper half with copies of the sign bit, which the mask removes.
    """
    product = word * factor
    return (product >> 32) & _LOW32, product & _LOW32


def _as_tensors(counter: tuple[Word, Word, Word, Word]) -> list[torch.Tensor]:
    tensors = [word for word in counter if isinstance(word, torch.Tensor)]
    for tensor in tensors:
        if tensor.dtype != torch.int64:
            raise ValueError(f"a counter word has dtype {tensor.dtype}, but Philox counters must be int64.")
    device = tensors[0].device if tensors else torch.device("cpu")
    return [
        word if isinstance(word, torch.Tensor) else torch.full((), word, dtype=torch.int64, device=device)
        for word in counter
    ]
