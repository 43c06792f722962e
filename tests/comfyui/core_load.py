"""Loads a text encoder file through ComfyUI's own loader and says what came of it. Run as a program, never imported.

    python core_load.py COMFYUI FILE SIZES RESULT [LAYER ...]

COMFYUI  folder of a ComfyUI with Qwen3.5
FILE     checkpoint, hidden size none of those that ComfyUI knows: such a file it takes for the 2B
SIZES    JSON: the sizes that take the place of the 2B's, since ComfyUI reads none from a file
RESULT   file to write, safetensors: each LAYER's weight in float32, a quantised one decoded by ComfyUI's own layout.
         Decoding to the compute dtype, as it does by itself, rounds half-way results too.
The last line printed is JSON: class, layout of each LAYER's weight, missing and unexpected keys, and what ComfyUI
warned of in the meantime: of a missing weight of a layer that could be quantised it only warns.
"""

import dataclasses
import json
import logging
import sys


def main(comfy, file, sizes, result, *layers):
    sys.path.insert(0, comfy)
    sys.argv = [sys.argv[0], "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd
    import comfy.text_encoders.qwen35 as qwen35
    import torch
    from safetensors.torch import save_file

    qwen35.QWEN35_MODELS["qwen35_2b"] = json.loads(sizes)
    keys = []
    load_sd = comfy.sd.CLIP.load_sd

    def recorded(self, *args, **kwargs):
        missing, unexpected = load_sd(self, *args, **kwargs)
        keys.append((list(missing), list(unexpected)))
        return missing, unexpected

    comfy.sd.CLIP.load_sd = recorded
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    clip = comfy.sd.load_clip([file], clip_type=comfy.sd.CLIPType.STABLE_DIFFUSION)
    [(missing, unexpected)] = keys
    transformer = clip.cond_stage_model.qwen35_2b.transformer
    decoded, layouts = {}, {}
    for layer in layers:
        weight = transformer.get_submodule(layer).weight
        layouts[layer] = getattr(weight, "_layout_cls", None)
        if layouts[layer] is not None:
            weight._params = dataclasses.replace(weight._params, orig_dtype=torch.float32)
            weight = weight.dequantize()
        decoded[layer] = weight.detach().float().contiguous()
    save_file(decoded, result)
    said = {"class": type(transformer).__mro__[1].__name__, "missing": missing, "unexpected": unexpected}
    print(json.dumps(said | {"layouts": layouts, "warnings": warnings}))


if __name__ == "__main__":
    main(*sys.argv[1:])
