"""What an engine keeps on its device: weights, and what its replies share. All of it can be given up and taken back.

Weights are tensors of many shapes and owners (packed records, norms, tables). They are found by walking the model's
objects, and move as whole storages under the tensors that use them, so no owner has to know and views stay views.
"""

import gc
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ..attention import cache_bytes, capacity_class, tokens_within
from ..model.family import FULL
from ..model.trunk import Trunk
from ..mtp.estimates import Costs
from ..mtp.head import MtpHead
from ..weights import FastQwenError
from .device_check import round_kernels
from .device_model import DeviceModel

# Of the free memory of a GPU that keys and values may take: a prompt's chunks and workspaces need the rest.
FREE_SHARE = 0.8
_PACKAGE = __name__.removesuffix(".engine.memory")


def full_memory(error: BaseException) -> str | None:
    """Whose memory was full, "GPU" or "RAM", where that is what the error says; None for any other."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "GPU"
    # A CPU's allocator has no error of its own: these are its words on Linux and macOS, and on Windows.
    words = ("can't allocate memory", "not enough memory")
    told = isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    return "RAM" if told or isinstance(error, MemoryError) else None


def objects_of(*roots: object) -> Iterator[object]:
    """Everything that objects of this package hold, each once: through attributes, lists, tuples and dictionaries."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += _parts(value)


def tensors_of(*roots: object) -> list[Tensor]:
    """The tensors among `objects_of`."""
    return [value for value in objects_of(*roots) if isinstance(value, Tensor)]


def _parts(value) -> Iterable:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    module = type(value).__module__
    return vars(value).values() if module.startswith(_PACKAGE + ".") and hasattr(value, "__dict__") else ()


def by_storage(tensors: Iterable[Tensor], device: torch.device) -> list[list[Tensor]]:
    """The tensors of `device` in groups of those that share memory."""
    groups: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.device == device:
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return list(groups.values())


def bytes_of(groups: Iterable[list[Tensor]]) -> int:
    """Bytes of the memory behind groups of `by_storage`."""
    return sum(group[0].untyped_storage().nbytes() for group in groups)


def move(groups: Iterable[list[Tensor]], device: torch.device):
    """Copies each group's memory to `device` and puts it under the group's tensors: the same objects, the same bytes.

    One group is copied at a time. Whoever captured an address must capture again.
    """
    for group in groups:
        storage = group[0].untyped_storage()
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        there = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).copy_(flat).untyped_storage()
        del storage, flat
        for tensor in group:
            put(tensor, there, tensor.storage_offset(), tensor.size(), tensor.stride())


def put(tensor: Tensor, storage: torch.UntypedStorage, offset: int, size: torch.Size, stride: tuple[int, ...]):
    """Has a tensor lie in other memory. It stays an inference tensor or a normal one: torch refuses to use a mixture,
    and ComfyUI loads models in inference mode and unloads them outside of it."""
    with torch.inference_mode(tensor.is_inference()):
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(storage, offset, size, stride)


class EngineMemory:
    """An engine's memory on the trunk's device.

    vocab    how many ids can be drawn
    graphs   capture passes (engine/device_model.py)
    context  the most tokens that a sequence may have
    costs    told what captured passes cost
    spare    gives up what else can be where keys and values find no room; whether there was any
    epoch    counts how often weights were given up: what was made before is then void
    """

    def __init__(
        self, trunk: Trunk, head: MtpHead | None, *, vocab: int, graphs: bool, context: int, costs: Costs,
        spare: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._trunk, self._head, self._vocab, self._graphs = trunk, head, vocab, graphs
        self._context, self._costs, self._spare = context, costs, spare
        self.device = trunk.norm.device  # with its index, which trunk.device may lack
        self._model: DeviceModel | None = None
        self._shared_bytes = 0
        self._on_device = trunk.device.type == "cuda"
        self._away: list[list[Tensor]] | None = None  # weights in RAM, in the groups they had
        self.weight_bytes = bytes_of(self._weights())
        self.epoch = 0

    @property
    def resident(self) -> bool:
        """Whether the weights are where they are used."""
        return self._away is None

    @property
    def is_shared(self) -> bool:
        """Whether there is something that replies share."""
        return self._model is not None

    @property
    def bytes(self) -> int:
        """Bytes on the device of weights and of what replies share; what captured graphs keep to themselves and a pass'
        workspaces come on top."""
        return (self.weight_bytes if self.resident else 0) + self._shared_bytes

    def model_for(self, capacity: int, on_part: Callable[[int, int], object]) -> DeviceModel | None:
        """What a GPU's replies share, for at least `capacity` tokens; None where some operation has no kernel. Raises
        FastQwenError where keys and values do not fit, which a reply by itself has to allocate as well."""
        self._on_device = self._on_device and round_kernels(self.device)[0]
        if self._on_device and (self._model is None or self._model.capacity < capacity):
            self._drop_model()  # first given back, then made larger
            model = DeviceModel(
                self._trunk, self._head, capacity=self.room_for(capacity), vocab=self._vocab, graphs=self._graphs,
                on_part=on_part,
            )  # fmt: skip
            self._on_device = model.usable
            if model.failure is not None:  # nor would such a kernel run alone, launched by the host
                self._trunk.pass_kernels = False
                model.release()
            self._model = model if model.usable else None
            # Once: ComfyUI asks for it many times a reply.
            self._shared_bytes = bytes_of(by_storage(tensors_of(*model.shared), self.device)) if model.usable else 0
            if {"verify", "first", "next"} <= model.seconds.keys():
                self._costs.expect(
                    verify_seconds=model.seconds["verify"], first_seconds=model.seconds["first"],
                    next_seconds=model.seconds["next"],
                )  # fmt: skip
        if self._model is None and self.device.type == "cuda":
            self.room_for(capacity)
        return self._model

    def room_for(self, capacity: int) -> int:
        """The class of sizes to allocate for, or what fits of it. Raises FastQwenError where `capacity` does not."""
        empty_cache(self.device)
        free = torch.cuda.mem_get_info(self.device)[0]
        room = capacity_class(capacity, self._context)
        if self._cache_bytes(room) > free * FREE_SHARE:
            room = tokens_within(int(free * FREE_SHARE), self._cache_bytes, room)
        if room < capacity and self._spare():
            return self.room_for(capacity)
        if room < capacity:
            raise FastQwenError(
                f"{capacity} tokens of prompt and reply need {self._cache_bytes(capacity) / 2**20:.0f} MiB of keys and "
                f"values; {free / 2**20:.0f} MiB are free on {self.device}, enough for about {room} tokens: lower "
                "max_tokens (max_length on a node), shorten the prompt, or choose int8 keys and values."
            )
        return room

    def reply_bytes(self, tokens: int) -> int:
        """About what a reply of `tokens`, its prompt included, allocates beside what is there already."""
        config = self._trunk.config
        wide = 8 * config.intermediate_size + 16 * config.hidden_size  # numbers a row at the widest place of a layer
        needed = min(tokens, self._trunk.chunk) * wide * self._trunk.dtype.itemsize
        if self._model is None or self._model.capacity < tokens:
            delta = config.deltanet
            state = 4 * delta.value_heads * delta.key_dim * delta.value_dim
            layers = sum(kind != FULL for kind in config.layer_kinds)
            needed += layers * state + self._cache_bytes(capacity_class(min(tokens, self._context), self._context))
        return needed

    def free(self):
        """Gives up what replies share: captured graphs, keys and values, states, workspaces."""
        self._drop_model()
        empty_cache(self.device)

    def offload(self):
        """`free`, and then the weights: they go to RAM. A reply that is under way cannot go on."""
        self._drop_model()
        if self.resident:
            self.epoch += 1
            gc.collect()  # replies that were interrupted are held by their own traceback
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self._away = list(self._weights())
            if self.device.type != "cpu":
                move(self._away, torch.device("cpu"))
        empty_cache(self.device)

    def restore(self):
        """Brings the weights back, the same bytes. Raises FastQwenError where they do not fit; after torch's own
        out-of-memory error they are in RAM as before."""
        if self.resident:
            return
        if self.device.type != "cpu":
            self._check_room()
            try:
                move(self._away, self.device)
            except BaseException:
                move(
                    (group for group in self._away if group[0].device == self.device), torch.device("cpu")
                )  # fmt: skip
                empty_cache(self.device)
                raise
        self._away = None

    def _check_room(self):
        empty_cache(self.device)
        free = torch.cuda.mem_get_info(self.device)[0]
        if self.weight_bytes > free:
            raise FastQwenError(too_big(self.weight_bytes, free, self.device))

    def _weights(self) -> list[list[Tensor]]:
        return by_storage(tensors_of(self._trunk, self._head), self.device)

    def _cache_bytes(self, tokens: int) -> int:
        """Of keys and values of all layers, the head's too."""
        config = self._trunk.config
        layers = sum(kind == FULL for kind in config.layer_kinds) + (self._head is not None)
        heads, dim = config.attention.kv_heads, config.attention.head_dim
        return layers * cache_bytes(heads, dim, capacity=tokens, kind=self._trunk.kv)

    def _drop_model(self):
        if self._model is not None:
            self._model.release()
            self._model, self._shared_bytes = None, 0


def empty_cache(device: torch.device):
    """Gives memory that torch keeps for later back to the device.

    By torch alone, not ComfyUI's `soft_empty_cache`: the engine also runs where ComfyUI is not.
    """
    if device.type in ("cuda", "xpu", "mps"):
        torch.get_device_module(device).empty_cache()


def too_big(needed: int, free: int, device: torch.device) -> str:
    """What to say of weights that do not fit."""
    return (
        f"The weights need {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free on {device}: close what else "
        "uses the GPU, take a smaller or more quantised checkpoint, or set a VRAM budget below that, which is slower."
    )
