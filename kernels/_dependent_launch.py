"""Programmatic dependent launch for kernels, where the installed Triton has it. Imported only with Triton."""

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton: dependent launch is then never asked for
    import triton

    @triton.jit
    def gdc_wait():
        pass

    @triton.jit
    def gdc_launch_dependents():
        pass


__all__ = ["gdc_launch_dependents", "gdc_wait"]
