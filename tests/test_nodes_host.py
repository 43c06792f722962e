"""The adapter to ComfyUI, against stand-ins for the few functions it calls, and the way from widgets to a request."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from fastqwen.engine import GREEDY, Delta, FastQwenError, Progress, resolve_path
from fastqwen.nodes import host
from fastqwen.nodes.live import LiveText
from fastqwen.nodes.options import LoadOptions
from fastqwen.nodes.request import request_from_inputs

INPUTS = {
    "prompt": "a (red:1.2) {x|y} // z",
    "max_length": 12,
    "sampling_mode": "on",
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "seed": 2**64 - 1,
}


class Interrupted(BaseException):
    """ComfyUI's interrupt is no Exception either."""


@pytest.fixture
def comfy(monkeypatch, tmp_path):
    """Modules with ComfyUI's names; `bars` holds every progress bar's updates, `interrupt` asks to stop."""
    state = SimpleNamespace(
        bars=[], interrupt=False, emptied=[], sent=[], text_encoders=tmp_path / "comfy" / "text_encoders"
    )

    class ProgressBar:
        def __init__(self, total):
            self.updates = []
            state.bars.append((total, self.updates))

        def update_absolute(self, value, total=None):
            self.updates.append((value, total))

    def throw_exception_if_processing_interrupted():
        if state.interrupt:
            raise Interrupted

    server = SimpleNamespace(client_id="browser", send_sync=lambda *message: state.sent.append(message))
    state.server = server
    modules = {
        "comfy": {"__path__": []},
        "comfy.utils": {"ProgressBar": ProgressBar},
        "comfy.model_management": {
            "get_torch_device": lambda: "cpu",
            "throw_exception_if_processing_interrupted": throw_exception_if_processing_interrupted,
            "soft_empty_cache": lambda: state.emptied.append(1),
        },
        "comfy.text_encoders": {"__path__": [str(state.text_encoders)]},
        "comfy_execution": {"__path__": []},
        "comfy_execution.utils": {"get_executing_context": lambda: SimpleNamespace(node_id="5:2")},
        "server": {"PromptServer": SimpleNamespace(instance=server)},
        "folder_paths": {"get_user_directory": lambda: str(tmp_path)},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    return state


def test_the_bar_fills_once_per_phase_and_moves_ten_times_a_second(comfy):
    now = [5.0]
    watch = host.Watch(clock=lambda: now[0])
    for phase, done, total in (("prefill", 5, 9), ("prefill", 7, 9), ("prefill", 9, 9)):
        assert watch.on_step(Progress(phase, done, total)) is None
    for done in range(1, 10):  # the first one at once, the end as soon as it is there
        watch.on_step(Progress("decode", done, 9))
        now[0] += 0.04
    assert comfy.bars == [(9, [(5, 9), (9, 9)]), (9, [(1, 9), (4, 9), (7, 9), (9, 9)])]


def test_every_step_asks_for_an_interrupt(comfy):
    watch = host.Watch()
    watch.on_step(Progress("decode", 1, 4))
    comfy.interrupt = True
    with pytest.raises(Interrupted):
        watch.on_step(Progress("decode", 2, 4))


def test_loading_moves_the_bar_and_can_be_interrupted(comfy):
    watch = host.Watch()
    watch(10, 100)
    watch(100, 100)
    assert comfy.bars == [(100, [(10, 100), (100, 100)])]
    comfy.interrupt = True
    with pytest.raises(Interrupted):
        watch(100, 100)


def test_the_engine_is_loaded_on_comfyuis_device_with_its_tokenizer(comfy, monkeypatch):
    calls = []

    def load(path, on_load, **options):
        on_load(1, 1)
        calls.append((path, options))

    monkeypatch.setattr(host, "load", load)
    host.load_engine(("first", LoadOptions()))
    folder = comfy.text_encoders / "qwen35_tokenizer"
    folder.mkdir(parents=True)
    host.load_engine(("second", LoadOptions("w4a8", "bf16", 4096)))
    assert calls == [
        ("first", {"device": "cpu", "comfy_tokenizer_folder": None}),
        (
            "second",
            {"device": "cpu", "comfy_tokenizer_folder": str(folder), "quantize": "w4a8", "kv": "bf16", "context": 4096},
        ),
    ]


def test_text_goes_to_the_browser_that_asked_in_pieces_named_with_the_node(comfy):
    watch = host.Watch()
    watch.on_step(Progress("prefill", 5, 9))
    for text in ("a", "b"):
        watch.on_text(Delta("answer", text))
    watch.flush()
    assert comfy.sent == [
        ("fastqwen.text", dict(node="5:2", reset=True, status="reading: 5/9", answer="", thinking=""), "browser"),
        ("fastqwen.text", dict(node="5:2", reset=False, status="reading: 5/9", answer="ab", thinking=""), "browser"),
    ]
    comfy.server.client_id = None
    watch.on_text(Delta("answer", "c"))
    watch.next_reply()
    assert len(comfy.sent) == 2


def test_live_text_is_sent_at_most_ten_times_a_second_and_loses_nothing():
    now, sent = [0.0], []
    live = LiveText(sent.append, clock=lambda: now[0])
    for step in range(100):
        now[0] += 0.01
        live.on_step(Progress("decode", step + 1, 100, 50.0))
        live.on_text(Delta("thinking" if step < 50 else "answer", f"{step} "))
    live.next_reply()
    live.on_text(Delta("answer", "end"))
    live.flush()
    assert len(sent) <= 13
    assert "".join(message["thinking"] for message in sent).split() == [str(step) for step in range(50)]
    answer = "".join(message["answer"] for message in sent)
    assert answer.split() == [*(str(step) for step in range(50, 100)), "end"] and answer.endswith("99 \n\nend")
    assert [message["reset"] for message in sent] == [True] + [False] * (len(sent) - 1)
    assert sent[-1]["status"] == "100 tokens, 50.0 tokens/s"


def test_unloading_empties_the_allocators_cache_and_presets_lie_in_the_users_folder(comfy, tmp_path):
    assert host.unload(SimpleNamespace(shared=SimpleNamespace(unload=lambda: True))) == 1
    assert comfy.emptied == [1]
    assert host.preset_folder() == str(tmp_path / "fastqwen" / "presets")


def test_room_is_made_on_a_gpu_before_a_model_is_read_and_one_too_large_gets_a_budget(comfy, monkeypatch):
    order, total, management = [], [2**40], sys.modules["comfy.model_management"]
    monkeypatch.setattr(management, "get_torch_device", lambda: "cuda:1")
    monkeypatch.setattr(management, "get_total_memory", lambda device: total[0], raising=False)
    monkeypatch.setattr(management, "free_memory", lambda *asked: order.append(asked), raising=False)
    monkeypatch.setattr(host, "load", lambda path, **options: order.append((options["device"], options["vram_budget"])))
    size = resolve_path("demo").stat().st_size
    host.load_engine(("demo", LoadOptions()))
    [(needed, device), (loaded_on, budget)] = order
    assert str(device) == loaded_on == "cuda:1" and budget is None
    assert 0.9 * size < needed < 1.2 * size
    order.clear()
    total[0] = size
    host.load_engine(("demo", LoadOptions()))
    [(needed, _), (_, budget)] = order
    assert needed == budget == int(0.8 * size)


def test_widget_values_become_the_engines_arguments():
    request = request_from_inputs(
        INPUTS | {"presence_penalty": 0.3, "thinking": True, "use_default_template": False, "mtp": "3"}
    )
    assert (request.prompt, request.max_tokens, request.seed) == (INPUTS["prompt"], 12, 2**64 - 1)
    assert (request.thinking, request.template, request.mtp, request.system) == (True, False, "3", None)
    settings = request.settings
    assert (settings.temperature, settings.top_k, settings.top_p, settings.min_p) == (0.5, 3, 0.9, 0.1)
    assert (settings.repetition_penalty, settings.presence_penalty, settings.greedy) == (1.2, 0.3, False)


def test_optional_inputs_may_be_missing():
    request = request_from_inputs(INPUTS)
    assert (request.thinking, request.template, request.mtp, request.system) == (False, True, "auto", None)
    assert request.settings.presence_penalty == 0.0


def test_sampling_off_is_greedy_and_ignores_the_settings():
    assert request_from_inputs(INPUTS | {"sampling_mode": "off", "repetition_penalty": 0.0}).settings == GREEDY


@pytest.mark.parametrize("text,system", [("Be brief.", "Be brief."), ("", None), (None, None)])
def test_an_empty_system_prompt_is_none(text, system):
    assert request_from_inputs(INPUTS | {"system_prompt": text}).system == system


@pytest.mark.parametrize(
    "name,value", [("repetition_penalty", 0.0), ("top_p", 0.0), ("mtp", "9"), ("sampling_mode", "maybe")]
)
def test_a_refused_value_is_named(name, value):
    with pytest.raises(FastQwenError, match=name):
        request_from_inputs(INPUTS | {name: value})
