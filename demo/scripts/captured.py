"""A training step's forward and backward pass as a CUDA graph: small networks wait for the host otherwise."""

import gc

import evaluate
import torch


class Captured:
    """`run()` -> losses (4,), the first of them minimised, as a CUDA graph where that works.

    It adds to the gradients, which must have fixed places. pool: torch.cuda.graph_pool_handle(), None for plain calls.
    """

    def __init__(self, run, device, pool):
        self.run, self.graph, self.losses = run, None, torch.zeros(4, device=device)
        if pool is None:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._add()
        torch.cuda.current_stream().wait_stream(side)
        gc.collect()  # a graph that is freed while another is captured breaks the capture
        gc.disable()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._add()
            self.graph = graph
        except RuntimeError as error:
            print(f"no CUDA graph, plain calls instead: {str(error).splitlines()[0]}", flush=True)
            torch.cuda.synchronize()
        finally:
            gc.enable()

    def _add(self):
        with evaluate.autocast(self.losses.device):
            losses = self.run()
        losses[0].backward()
        self.losses.copy_(losses.detach())

    def __call__(self) -> torch.Tensor:
        self._add() if self.graph is None else self.graph.replay()
        return self.losses
