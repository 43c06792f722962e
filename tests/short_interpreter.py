"""Leaves out what Triton's interpreter does over and over without effect: three quarters of most kernel tests' time.

No result changes: test_short_interpreter.py compares the bits. A Triton with another interpreter is left as it is.
"""

import dataclasses

import numpy as np


def shorten(monkeypatch):
    """Changes the interpreter until the monkeypatch is undone."""
    from triton.language.core import block_type, tensor
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):  # the form of Triton 3.6 to 3.9
        return
    options = interpreter.interpreter_builder.options
    if not options.debug:
        # Every integer sum and product is made again in int64, for an assertion that only debugging carries out.
        options = dataclasses.replace(options, sanitize_overflow=False)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
    monkeypatch.setattr(interpreter, "_patch_lang", _patch_once(interpreter))
    monkeypatch.setattr(block_type, "__init__", _build_once(block_type.__init__))
    monkeypatch.setattr(tensor, "__init__", _shape_once(tensor.__init__))
    monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", _xor_at_once(interpreter.ReduceOps.generic_reduce))


def _patch_once(interpreter):
    """Replaces the names of triton.language once a launch and module, not at every call of a device function."""
    patch_lang, patched = interpreter._patch_lang, set()  # modules, by the names they hold, in the launch that runs

    def patch(fn):
        names = id(fn.__globals__)
        if names in patched:
            return interpreter._LangPatchScope()
        outermost = not patched
        patched.add(names)
        scope = patch_lang(fn)
        if outermost:
            restore = scope.restore

            def restore_and_forget():
                restore()
                patched.clear()

            scope.restore = restore_and_forget
        return scope

    return patch


def _build_once(build):
    """A block's type depends on nothing but its element type and shape, and is never written to."""
    built = {}

    def init(self, element_ty, shape):
        key = str(element_ty), tuple([getattr(size, "value", size) for size in shape])
        if key not in built:
            build(self, element_ty, shape)
            built[key] = dict(self.__dict__)
        self.__dict__.update(built[key])
        self.element_ty = element_ty  # equal types have equal names, but need not be one object

    return init


def _shape_once(build):
    """A tensor's shape and number of entries are those of its type, whose shape is one object a value by now."""
    shapes = {}  # by identity, and held so that none is taken for another's

    def init(self, handle, type):
        shape = type.shape if type.is_block() else None
        if id(shape) not in shapes:
            build(self, handle, type)
            shapes[id(shape)] = shape, self.shape, self.numel
            return
        _, self.shape, self.numel = shapes[id(shape)]
        self.handle, self.type, self.dtype = handle, type, type.scalar

    return init


def _xor_at_once(reduce):
    """tl.sort swaps by exclusive or, which the interpreter reduces number by number where numpy has it."""
    from triton.language.standard import _xor_combine

    def generic_reduce(self, input):
        if self.combine_fn != _xor_combine or self.axis is None or len(input) != 1:
            return reduce(self, input)
        found = np.bitwise_xor.reduce(input[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(found, input[0].dtype)]

    return generic_reduce
