"""Side effects of a module: the pruned model has them too, or refuses the batch."""

import copy
import os
import pickle
import random
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, exact_or_refused, pruned

LOG = []
STATE = {"hot": False}
HOT = False
SCALE = 1.0


class Odd(nn.Module):
    """Decides by the data, so that it is not followed; what it does besides is up to the test."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.hot = False
        self.seen = []
        self.state = {"hot": False}
        self.box = SimpleNamespace(hot=False)

    def forward(self, x, batch=None):
        if x.shape[0] > 20 or x.sum() < -1e9:  # never on the example
            self.act(self, x, batch)
        return x * 2 if x.sum() > -1e9 else x


class SettingAFlag(Odd):
    def forward(self, x, batch=None):
        self.hot = bool(x.shape[0] > 20)
        return x * 2


class Appending(Odd):
    def forward(self, x, batch=None):
        if x.sum() > -1e9 and x.shape[0] > 20:
            self.seen.append(1)
        return x * 2


class Clamping(Odd):
    def forward(self, x, batch=None):
        if x.max() > 2.5:
            x.clamp_(max=0.5)
        return x * 2


class ChangingAGlobal(Odd):
    def forward(self, x, batch=None):
        global HOT
        HOT = bool(x.shape[0] > 20)
        return x * 2


class ChangingAGlobalSometimes(Odd):
    def forward(self, x, batch=None):
        if x.sum() > -1e9 and x.shape[0] > 20:
            STATE["hot"] = True
        return x * 2


class ChangingTheBatch(Odd):
    def forward(self, x, batch=None):
        if x.sum() > -1e9 and x.shape[0] > 20:
            batch["extra"] = torch.ones(len(x))
        return x * 2


class FillingABox(Odd):
    def forward(self, x, batch=None):
        if x.sum() > -1e9 and x.shape[0] > 20:
            self.box.hot = True
        return x * 2


CHANNELS = {
    "a flag": (SettingAFlag, lambda m, b: m.odd.hot),
    "a list": (Appending, lambda m, b: len(m.odd.seen) > 0),
    "its input": (Clamping, lambda m, b: False),
    "a global variable": (ChangingAGlobal, lambda m, b: HOT),
    "an entry of a global dict": (ChangingAGlobalSometimes, lambda m, b: m.reads_state()),
    "an entry of the batch": (ChangingTheBatch, lambda m, b: "extra" in b),
    "an attribute of an object": (FillingABox, lambda m, b: m.odd.box.hot),
}


class Channelled(Ranker):
    def __init__(self, kind, read):
        super().__init__()
        self.odd = kind(None)
        self.read = read

    def reads_state(self):
        return STATE["hot"]

    def forward(self, batch):
        x = self.embed(batch)
        y = self.odd(x, batch)
        y = self.deep(x + y)
        return -y if self.read(self, batch) else y


@pytest.mark.parametrize("name", CHANNELS)
def test_what_a_module_passes_on_besides_its_result_is_not_lost(name):
    torch.manual_seed(0)
    plugin, selection, small = pruned(Channelled(*CHANNELS[name]))
    for rows, seed in ((7, 9), (1, 3), (50, 5), (4, 6), (50, 8)):
        batches = ids_by_name(rows, seed), ids_by_name(rows, seed)
        STATE["hot"] = False
        plugin.model.odd.seen.clear()
        small.odd.seen.clear()
        plugin.model.odd.box.hot = small.odd.box.hot = False
        with torch.no_grad(), plugin.masked(selection):
            expected = plugin.model.eval()(batches[0])
        STATE["hot"] = False
        try:
            found = small(batches[1])
        except tl.FieldError as error:
            assert "to leave its input unchanged" in str(error)
            continue
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_module_that_changes_its_input_on_other_batches_only_is_caught():
    class Late(Odd):
        def forward(self, x, batch=None):
            if x.sum() > -1e9 and x.shape[0] > 20:
                x.clamp_(max=0.1)
            return x * 2

    _, _, small = pruned(Channelled(Late, lambda m, b: False))
    assert FED not in str(tl.plan_of(small))
    small(ids_by_name(7, 9))
    for model in (small, copy.deepcopy(small)):
        with pytest.raises(
            tl.FieldError,
            match="Expected Late to leave its input unchanged, .* Prune with example=",
        ):
            model(ids_by_name(50, 9))


class Remembering(nn.Module):
    """A layer that keeps what it computes, for others to look at later."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x):
        self.kept = self.linear(x)
        return self.kept


class Remembered(Ranker):
    def __init__(self, used):
        super().__init__()
        self.layer = Remembering()
        self.used = used

    def forward(self, batch):
        x = self.embed(batch)
        y = self.layer(x)
        return self.deep(y if self.used else x)


@pytest.mark.parametrize("used", [True, False])
def test_what_a_layer_keeps_for_later_is_kept_by_the_pruned_model(used):
    torch.manual_seed(0)
    plugin, selection, small = pruned(Remembered(used))
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    torch.testing.assert_close(small.layer.kept, plugin.model.layer.kept)


class Counting(Ranker):
    def forward(self, batch):
        LOG.append(len(LOG))
        return self.deep(self.embed(batch)) * (1.0 if len(LOG) < 100 else 2.0)


class CountingOnItsClass(Ranker):
    calls = 0

    def forward(self, batch):
        type(self).calls += 1
        return self.deep(self.embed(batch)) * (1.0 if self.calls < 10**6 else 2.0)


class WritingTheBatch(Ranker):
    def forward(self, batch):
        batch["score"] = self.deep(self.embed(batch))
        return batch["score"] * 2


@pytest.mark.parametrize("kind", [Counting, CountingOnItsClass, WritingTheBatch])
def test_forward_that_changes_what_lies_outside_the_model_keeps_its_own_python(kind):
    LOG.clear()
    plugin, selection, small = pruned(kind())
    assert FED in str(tl.plan_of(small))
    batch = ids_by_name(7, 9)
    assert not exact_or_refused(plugin, selection, small, batch)
    if kind is WritingTheBatch:
        batch = ids_by_name(7, 9)
        small(batch)
        assert "score" in batch
    if kind is Counting:
        LOG.extend([0] * 200)
        assert not exact_or_refused(plugin, selection, small, ids_by_name(7, 9))


@pytest.mark.parametrize(
    "draw", [random.random, lambda: time.perf_counter() % 1, lambda: float(torch.rand(()))]
)
def test_numbers_that_differ_from_call_to_call_are_never_constants(draw):
    class Drawing(Ranker):
        def forward(self, batch):
            return self.deep(self.embed(batch)) * (1 + draw())

    with pytest.raises(tl.SurgeryError, match="Is the model deterministic"):
        pruned(Drawing())


def test_numbers_that_differ_in_training_alone_are_drawn_by_the_pruned_model():
    class Noisy(Ranker):
        def forward(self, batch):
            x = self.embed(batch)
            return self.deep(x + torch.rand(20) if self.training else x)

    plugin, selection, small = pruned(Noisy())
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    assert not torch.equal(small.train()(ids_by_name(7, 9)), small(ids_by_name(7, 9)))


def test_a_pruned_model_with_such_a_module_is_pickled_compiled_and_pruned_again():
    plugin, selection, small = pruned(Channelled(Appending, lambda m, b: False))
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    again = pickle.loads(pickle.dumps(Plain.of(small)))
    assert torch.equal(again(ids_by_name(7, 9)), small(ids_by_name(7, 9)))
    fields = dict.fromkeys(selection.kept, 4)
    plugin, selection, twice = pruned(small, fields=fields)
    assert FED not in str(tl.plan_of(twice))
    assert_same(plugin, selection, twice, ids_by_name(7, 9))


class Plain:
    """Takes the lambda off a model, which pickle refuses."""

    @staticmethod
    def of(model):
        model = copy.deepcopy(model)
        model.read = None
        return model


class Scaled(Ranker):
    def forward(self, batch):
        return self.deep(self.embed(batch)) * SCALE


def test_a_global_variable_that_forward_reads_may_not_change(tmp_path, monkeypatch):
    plugin, selection, small = pruned(Scaled())
    assert tl.plan_of(small).assumptions == ("the global variable SCALE stays 1.0",)
    tl.export.save(small, tmp_path / "model")
    loaded = tl.export.load(tmp_path / "model")
    for model in (small, loaded):
        assert_same(plugin, selection, model, ids_by_name(7, 9))
    torch.compile(small, fullgraph=True, backend="eager")(ids_by_name(7, 9))
    before = loaded(ids_by_name(7, 9))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    with pytest.raises(
        tl.FieldError,
        match="Expected the global variable .*SCALE to be 1.0, .* found 2.0, .* prune again",
    ):
        small(ids_by_name(7, 9))
    assert torch.equal(
        loaded(ids_by_name(7, 9)), before
    )  # it has the value of its own time, and none of the code


def test_what_depends_on_the_environment_keeps_its_own_python(monkeypatch):
    class Configured(Ranker):
        def forward(self, batch):
            return self.deep(self.embed(batch)) * float(os.environ.get("TORCHLEAP_SCALE", "1"))

    class OfTheDefault(Ranker):
        def forward(self, batch):
            return self.deep(self.embed(batch)) * (
                2 if torch.get_default_dtype() == torch.float64 else 1
            )

    class OfTheType(Ranker):
        def forward(self, batch):
            return self.deep(self.embed(batch)) * (
                2 if isinstance(batch["user"], torch.IntTensor) else 1
            )

    for kind in (Configured, OfTheDefault, OfTheType):
        plugin, selection, small = pruned(kind())
        assert FED in str(tl.plan_of(small))
        monkeypatch.setenv("TORCHLEAP_SCALE", "2")
        assert_same(plugin, selection, small, ids_by_name(7, 9))
        assert_same(
            plugin, selection, small, {name: ids.int() for name, ids in ids_by_name(7, 9).items()}
        )
        monkeypatch.delenv("TORCHLEAP_SCALE")


def test_precision_that_is_switched_within_another_is_not_lost():
    class Cast(Ranker):
        def forward(self, batch):
            x = self.embed(batch)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.deep(x)
            return y.float()

    with torch.autocast("cpu", dtype=torch.float16):
        plugin, selection, small = pruned(Cast())
        assert FED in str(tl.plan_of(small))
        batch = ids_by_name(7, 9)
        with plugin.masked(selection):
            expected = plugin.model.eval()(batch)
    with torch.autocast("cpu", dtype=torch.float16):  # the inner one counts: bfloat16
        torch.testing.assert_close(small.eval()(batch), expected, rtol=0.02, atol=0.02)
