"""Models whose forward() takes `*data` or `**data` are saved, loaded and exported."""

import pytest
import torch
from torch import nn

import torchleap as tl


class Stars(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 1)

    def forward(self, *data):
        return self.last(torch.cat(data, dim=1))


class Named(Stars):
    def forward(self, first, *others, **named):
        return self.last(torch.cat([first, *others, named["last"]], dim=1))


def batch(rows):
    return tuple(torch.randn(rows, 4) for _ in "abcd")


def pruned(model, *args, **kwargs):
    plugin = tl.attach(model, dict.fromkeys("abcd", 4), at="last", seed=0)
    model(*args, **kwargs)
    selection = tl.Selection(plugin.fields, (0.9, 0.1, 0.9, 0.1), (True, False, True, False))
    return plugin.plan(selection)


def test_dropped_arguments_are_listed_and_the_others_read():
    plan = pruned(Stars(), *batch(64))
    assert "No longer read: data[1], data[3]." in str(plan)


def test_a_model_with_stars_is_loaded_without_code_and_pruned_again(tmp_path):
    small = pruned(Stars(), *batch(64)).apply().eval()
    assert tl.export.save(small, tmp_path / "small").loads_without_code
    loaded = tl.export.load(tmp_path / "small").eval()
    for rows in (1, 7):
        data = batch(rows)
        assert torch.equal(loaded(*data), small(*data))
    with pytest.raises(tl.FieldError):
        loaded(*data[:2])
    plugin = tl.attach(loaded.train(), {"a": 4, "c": 4}, at="last")
    loaded(*batch(64))
    plan = plugin.plan(tl.Selection(plugin.fields, (0.9, 0.1), (True, False)))
    assert not plan.untraced
    assert "No longer read: data[2]." in str(plan)


def test_arguments_by_position_and_by_name_are_loaded(tmp_path):
    first, *others, last = batch(64)
    small = pruned(Named(), first, *others, last=last).apply().eval()
    assert tl.export.save(small, tmp_path / "small").loads_without_code
    loaded = tl.export.load(tmp_path / "small").eval()
    assert torch.equal(loaded(first, *others, last=last), small(first, *others, last=last))


def test_a_model_with_stars_is_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    small = pruned(Stars(), *batch(64)).apply().eval()
    tl.export.to_program(small, tmp_path / "small.pt2", batch(32))
    data = batch(5)
    module = torch.export.load(tmp_path / "small.pt2").module()
    torch.testing.assert_close(module(*data), small(*data))
    tl.export.to_onnx(small, tmp_path / "small.onnx", batch(32))
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    assert [entry.name for entry in session.get_inputs()] == ["data_0", "data_2"]


def test_arguments_in_another_order_than_pythons_are_refused():
    output = ["output", "output", "output", {"tuple": [{"node": "x"}]}, {"dict": []}]

    def described(*names):
        return [
            [name.strip("*"), "placeholder", name, {"tuple": []}, {"dict": []}] for name in names
        ]

    for names in (("*rest", "x"), ("x", "*one", "*two"), ("**named", "*x")):
        content = {"nodes": [*described(*names), output], "layers": {}}
        with pytest.raises(tl.SurgeryError, match="another order than Python's"):
            tl.export.loaded.from_json(content, {}, {}, "Model")


def test_settings_of_autocast_that_no_model_has_are_refused():
    x = ["x", "placeholder", "x", {"tuple": []}, {"dict": []}]
    output = ["output", "output", "output", {"tuple": [{"node": "x"}]}, {"dict": []}]
    cuda = {"tuple": ["cuda", False, {"dtype": "float16"}]}
    for first in (["cpu", True, {"dtype": "int64"}], ["xpu", True, {"dtype": "bfloat16"}], ["cpu"]):
        given = {"tuple": [{"tuple": first}, cuda]}
        node = ["a", "call_function", "torchleap.autocast", given, {"dict": []}]
        with pytest.raises(tl.SurgeryError, match="does not build"):
            tl.export.loaded.from_json({"nodes": [x, node, output], "layers": {}}, {}, {}, "Model")
