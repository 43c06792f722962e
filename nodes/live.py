"""A reply's text on its way to the browser while it is being written: in pieces, at most ten a second."""

import time

EVENT = "fastqwen.text"
INTERVAL = 0.1
DOING = {"prefill": "reading", "images": "looking", "prepare": "preparing"}


class LiveText:
    """Collects deltas and sends them on.

    `send(message)` gets {"reset", "answer", "thinking", "status"}: new text of either kind, to be put after what came
    before unless `reset` says that a new text begins, and a line with the tokens so far and their rate.
    """

    def __init__(self, send, clock=time.monotonic):
        self._send, self._clock = send, clock
        self._reset, self._break = True, False
        self._status = ""
        self._pending = {"answer": "", "thinking": ""}
        self._sent_at = None

    def next_reply(self):
        """Another reply follows in the same text."""
        self.flush()
        self._break = not self._reset

    def on_step(self, progress):
        """The engine's progress."""
        if progress.phase == "decode":
            rate = f", {progress.tokens_per_second:.1f} tokens/s" if progress.tokens_per_second else ""
            self._status = f"{progress.done} tokens{rate}"
        else:
            doing = DOING.get(progress.phase, progress.phase)
            self._status = f"{doing}: {progress.done}/{progress.total}"
        self._offer()

    def on_text(self, delta):
        """A piece of the reply."""
        if self._break:
            self._break = False
            self._pending[delta.kind] += "\n\n"
        self._pending[delta.kind] += delta.text
        self._offer()

    def flush(self):
        """Sends what is left."""
        if any(self._pending.values()):
            self._now()

    def _offer(self):
        if self._sent_at is None or self._clock() - self._sent_at >= INTERVAL:
            self._now()

    def _now(self):
        self._sent_at = self._clock()
        self._send({"reset": self._reset, "status": self._status, **self._pending})
        self._reset = False
        self._pending = dict.fromkeys(self._pending, "")
