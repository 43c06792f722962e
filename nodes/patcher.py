"""An engine as one unit of ComfyUI's memory management: loaded, counted, evicted and brought back as a whole.

ComfyUI's own way of moving single layers would break captured addresses and packed records, so a request for some
memory is answered with what replies share (captured graphs, keys and values) if that is enough, else with everything.
A patcher belongs to a SharedEngine, which outlives no handle; nothing here keeps an engine alive.
"""

import weakref

import comfy.model_management
import comfy.model_patcher
import torch

EVICTED = torch.device("cpu")


class FastQwenModel(torch.nn.Module):
    """What ComfyUI takes for the model: no parameters, the engine has its own. One per SharedEngine."""

    def __init__(self, shared, device):
        super().__init__()
        self._shared, self._device = weakref.ref(shared), device

    @property
    def shared(self):
        """The SharedEngine, or None once its last handle is gone."""
        return self._shared()

    @property
    def engine(self):
        """The engine if it is loaded."""
        shared = self._shared()
        return None if shared is None else shared.loaded

    @property
    def device(self):
        """Where the weights are now."""
        engine = self.engine
        return self._device if engine is not None and engine.memory.resident else EVICTED

    def get_dtype(self):
        """Asked for by ComfyUI; nothing is cast by it."""
        return torch.bfloat16


class EnginePatcher(comfy.model_patcher.ModelPatcher):
    """Answers ComfyUI's calls about a FastQwenModel. Its clones are made by ComfyUI and share the module."""

    def make_room(self, reply):
        """Before a reply (engine.Reply): room for its keys and values, and the engine back if it was evicted."""
        self.bring_in(reply.bytes_needed)

    def bring_in(self, working_bytes=0):
        """Has ComfyUI load this model, which may evict others, with so much free beside it."""
        comfy.model_management.load_models_gpu([self], memory_required=working_bytes, force_full_load=True)

    def is_dynamic(self):
        return False

    def model_size(self):
        engine = self.model.engine
        return 0 if engine is None else max(engine.memory.weight_bytes, self.loaded_size())

    def loaded_size(self):
        engine = self.model.engine
        return engine.bytes_on_device() if engine is not None and engine.memory.resident else 0

    def lowvram_patch_counter(self):
        return 0

    def partially_load(self, device_to, extra_memory=0, force_patch_weights=False, **options):
        """All of it or nothing; what the engine raises passes through, and then nothing is there."""
        before, shared = self.loaded_size(), self.model.shared
        if shared is None:
            raise RuntimeError("This model's last handle is gone: run its loader again.")
        with shared.lock:
            shared.get().restore()
        self._run_callbacks(comfy.model_patcher.CallbacksMP.ON_LOAD, device_to, 0, force_patch_weights, True)
        return self.loaded_size() - before

    def partially_unload(self, device_to, memory_to_free=0, *arguments, **options):
        """What replies share; they make it again. Where that is too little ComfyUI goes on to `detach`."""
        shared, before = self.model.shared, self.loaded_size()
        if before and before - self.model.engine.memory.weight_bytes >= memory_to_free:
            with shared.lock:
                self.model.engine.memory.free()
        return before - self.loaded_size()

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        shared = self.model.shared
        if unpatch_weights and self.model.engine is not None:
            with shared.lock:
                self.model.engine.offload()

    def detach(self, unpatch_all=True):
        """unpatch_all False only forgets this patcher, as before a clone of it is loaded."""
        if unpatch_all:
            self.unpatch_model(self.offload_device)
        self._run_callbacks(comfy.model_patcher.CallbacksMP.ON_DETACH, unpatch_all)
        return self.model

    def patch_model(self, device_to=None, *arguments, **options):
        return self.model

    def load(self, *arguments, **options):
        raise RuntimeError("An engine's weights are not loaded layer by layer; call partially_load.")

    def unpin_all_weights(self):
        """Nothing of this is pinned by ComfyUI."""

    def _run_callbacks(self, kind, *arguments):
        for callback in self.get_all_callbacks(kind):
            callback(self, *arguments)


def attach(shared):
    """Gives a SharedEngine its patcher, on the device that ComfyUI computes on, unless it has one."""
    with shared.lock:
        if shared.patcher is None:
            device = comfy.model_management.get_torch_device()
            # The size is asked for by `model_size`; a size of 0 would have ComfyUI add up parameters here.
            shared.patcher = EnginePatcher(FastQwenModel(shared, device), device, EVICTED, size=1)
