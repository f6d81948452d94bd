"""A model that needs its code is rebuilt from a new instance of its class, without a batch."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, WIDTH, ids_by_name
from torchleap.export import files
from torchleap.surgery.trial.stand_in import stand_in

FIELDS = dict.fromkeys(NAMES, WIDTH)


class Halved(nn.Module):
    """A submodule that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        return self.linear(x) / 2


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(12, WIDTH) for name in NAMES})
        self.join = nn.Identity()
        self.first = nn.Linear(len(NAMES) * WIDTH, 6)
        self.scale = torch.rand(6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 1)

    def joined(self, batch):
        columns = [table(batch[name]) for name, table in self.tables.items()]
        return self.join(torch.cat(columns, dim=1))


class Unlisted(Tables):
    """Traced and cut, but with a function outside the closed list."""

    def forward(self, batch):
        x = torch.special.entr(torch.sigmoid(self.first(self.joined(batch)))) * self.scale
        return self.last(self.norm(x)).squeeze(1)


class Opaque(Tables):
    """Traced and cut in front of a submodule that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.own = Halved()

    def forward(self, batch):
        x = self.own(self.first(self.joined(batch)))
        return {"score": self.last(self.norm(x)).squeeze(1), "hidden": [x, 3]}


class Deciding(Tables):
    """Fed constants: forward() decides by values; tables of dropped fields are removed."""

    def forward(self, batch):
        x = self.first(self.joined(batch))
        if x.sum() > 1e9:
            x = -x
        return self.last(self.norm(x)).squeeze(1)


class Hooked(Tables):
    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, batch):
        return self.last(torch.tanh(self.first(self.joined(batch)))).squeeze(1)


class Plain(nn.Module):
    """Two arguments, gates at the input of a submodule, two sites."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(8, 6)
        self.right = nn.Linear(12, 6)

    def forward(self, x, y):
        x = self.left(x) + self.right(y)
        return torch.special.entr(x.sigmoid()).sum(1)


class Wide(Tables):
    """A field that arrives at two places, with one gate."""

    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleDict({name: nn.Embedding(12, 1) for name in NAMES[:2]})

    def forward(self, batch):
        x = torch.special.entr(torch.sigmoid(self.first(self.joined(batch))))
        wide = [table(batch[name]) for name, table in self.wide.items()]
        return self.last(self.norm(x)).squeeze(1) + torch.cat(wide, 1).sum(1)


def columns(rows=32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=rng), torch.randn(rows, 12, generator=rng)


CASES = {
    "unlisted": (Unlisted, {"at": "join", "side": "output"}, ids_by_name),
    "opaque": (Opaque, {"at": "join", "side": "output"}, ids_by_name),
    "deciding": (Deciding, {"at": "join", "side": "output"}, ids_by_name),
    "hooked": (Hooked, {"at": "join", "side": "output"}, ids_by_name),
    "two places": (
        Wide,
        {
            "at": {
                tl.Place("join", side="output"): FIELDS,
                tl.Place("wide.user", side="output"): {"user": 1},
                tl.Place("wide.item", side="output"): {"item": 1},
            }
        },
        ids_by_name,
    ),
    "two sites": (Plain, {"at": ["left", "right"]}, columns),
}


def called(model, batch):
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def pruned(name, share=0.6, **settings):
    torch.manual_seed(0)
    build, place, make = CASES[name]
    model = build()
    fields = None if isinstance(place["at"], dict) else FIELDS
    plugin = tl.attach(model, fields, **place, **settings)
    for step in range(3):
        called(model.train(), make(seed=step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    small = plugin.prune(plugin.select(share=share))
    with torch.no_grad():
        for parameter in small.parameters():
            parameter += 0.1  # fine-tuned
    return small.eval(), plugin, make


def saved(small, folder):
    with pytest.warns(UserWarning, match=r"Load it with .*load\(folder, model=MyModel\(\)\)"):
        return tl.export.save(small, folder)


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("settings", [{}, {"per_dimension": True}])
def test_a_model_is_rebuilt_from_code_without_a_batch(name, settings, tmp_path):
    small, _, make = pruned(name, **settings)
    saved(small, tmp_path / "model")
    torch.manual_seed(7)
    plain = CASES[name][0]()
    before = copy.deepcopy(plain.state_dict())
    again = tl.export.load(tmp_path / "model", plain)
    assert not again.training
    assert list(again.state_dict()) == list(small.state_dict())
    for rows in (1, 5, 32):
        batch = make(rows=rows, seed=rows)
        with torch.no_grad():
            assert_equal(called(again, batch), called(small, batch))
    assert plain.training
    assert not plain._forward_hooks
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, before[key])


def test_the_reason_why_a_model_needs_its_code_is_named(tmp_path):
    result = saved(pruned("deciding")[0], tmp_path / "model")
    reason = "Deciding.forward: it decides by the result of gt()"
    assert result.in_the_way == (f"a forward() that could not be traced ({reason})",)


def test_a_model_that_has_gates_already_keeps_them(tmp_path):
    small, _, make = pruned("deciding")
    saved(small, tmp_path / "model")
    plain = Deciding()
    plugin = tl.attach(plain, FIELDS, at="join", side="output")
    again = tl.export.load(tmp_path / "model", plain)
    batch = make(seed=9)
    assert_equal(again(batch), small(batch))
    assert set(plugin.scores().values()) == {plugin.scores()["user"]}
    assert tl.attached(plain).model is plain


def test_a_pruned_model_gets_the_weights_itself(tmp_path):
    small, plugin, make = pruned("deciding")
    saved(small, tmp_path / "model")
    other = plugin.prune(plugin.select(share=0.6))
    assert tl.export.load(tmp_path / "model", other) is other
    batch = make(seed=9)
    assert torch.equal(other(batch), small(batch))
    with pytest.raises(tl.SurgeryError, match="holds another model: "):
        tl.export.load(tmp_path / "model", plugin.prune(plugin.select(share=0.8)))


def test_another_model_is_refused(tmp_path):
    small, _, _ = pruned("unlisted")
    saved(small, tmp_path / "model")

    class Other(Unlisted):
        def forward(self, batch):
            return super().forward(batch) + 1

    class Wider(Unlisted):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(6, 2)

        def forward(self, batch):
            return torch.special.entr(self.last(self.first(self.joined(batch))).sigmoid())

    with pytest.raises(tl.SurgeryError, match="differs from the saved one by 1 on the batch"):
        tl.export.load(tmp_path / "model", Other())
    with pytest.raises(tl.SurgeryError, match="holds another model"):
        tl.export.load(tmp_path / "model", Wider())
    with pytest.raises(tl.TorchleapError, match="no submodule"):
        tl.export.load(tmp_path / "model", nn.Linear(3, 3))


class Rows:
    def __init__(self, ids):
        self.ids = ids


class OfObjects(Tables):
    def forward(self, batch):
        x = self.first(self.joined(batch.ids))
        return self.last(x if x.sum() < 1e9 else -x).squeeze(1)


def test_a_batch_of_a_class_of_its_own_is_given_as_an_example(tmp_path):
    torch.manual_seed(0)
    model = OfObjects()
    plugin = tl.attach(model, FIELDS, at="join", side="output")
    for seed in range(2):
        model(Rows(ids_by_name(seed=seed)))
    selection = tl.Selection(plugin.fields, (0.1, 0.2, 0.9, 0.9, 0.9), (False, False, *[True] * 3))
    small = plugin.prune(selection).eval()
    saved(small, tmp_path / "model")
    with pytest.raises(tl.SurgeryError, match=r"holds no batch.* example=batch\)"):
        tl.export.load(tmp_path / "model", OfObjects())
    batch = Rows(ids_by_name(seed=5))
    again = tl.export.load(tmp_path / "model", OfObjects(), example=batch)
    assert_equal(again(batch), small(batch))


def test_the_folder_holds_none_of_the_rows(tmp_path):
    model = nn.Sequential(nn.Linear(20, 6), Halved(), nn.Linear(6, 1))
    plugin = tl.attach(model, FIELDS)
    rows = torch.randn(16, 20)
    for _ in range(2):
        model(rows)
    small = plugin.prune(tl.Selection(plugin.fields, (0.1, *[0.9] * 4), (False, *[True] * 4)))
    saved(small, tmp_path / "model")
    held = load_file(tmp_path / "model" / "rebuild.safetensors")
    assert held["batch.0"].shape == (8, 20)
    assert not torch.isin(held["batch.0"], rows).any()


def test_a_description_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    model = nn.Sequential(nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 1))
    plugin = tl.attach(model, FIELDS)
    model(torch.randn(16, 20))
    small = plugin.prune(tl.Selection(plugin.fields, (0.1, *[0.9] * 4), (False, *[True] * 4)))
    assert tl.export.save(small, tmp_path / "model").loads_without_code
    loaded = files.from_json

    def other(*arguments):
        trial = loaded(*arguments)
        trial.register_forward_hook(lambda *call: call[2] + 1)
        return trial

    monkeypatch.setattr(files, "from_json", other)
    with pytest.warns(UserWarning, match="that computes something else when it is loaded"):
        assert not tl.export.save(small, tmp_path / "model").loads_without_code


def test_a_stand_in_has_the_form_of_the_example():
    call = (
        (
            {
                "ids": torch.tensor([[3, 70], [5, 90], [4, 80]]),
                "floats": torch.tensor([[3.0], [5.0]]),
                "offsets": torch.tensor([0, 2, 2, 5]),
                "empty": torch.zeros(0, 3),
                "mask": torch.ones(3, 2, dtype=torch.bool),
                "none": None,
            },
            [torch.randn(4, 2, dtype=torch.float16), 3],
        ),
        {"flag": True},
    )
    (batch, others), named = stand_in(call)
    assert named == {"flag": True}
    assert others[1] == 3
    assert others[0].dtype == torch.float16
    assert ((batch["ids"] >= torch.tensor([3, 70])) & (batch["ids"] <= torch.tensor([5, 90]))).all()
    assert torch.equal(batch["floats"], batch["floats"].round())
    assert batch["offsets"][0] == 0
    assert (batch["offsets"].diff() >= 0).all()
    assert batch["empty"].shape == (0, 3)
    assert batch["mask"].dtype == torch.bool
    assert stand_in(((Rows(1),), {})) is None


def test_a_batch_that_is_given_by_name_is_too(tmp_path):
    model = Plain()
    plugin = tl.attach(model, FIELDS, at=["left", "right"])
    for seed in range(2):
        x, y = columns(seed=seed)
        model(y=y, x=x)
    small = plugin.prune(tl.Selection(plugin.fields, (0.1, *[0.9] * 4), (False, *[True] * 4)))
    saved(small, tmp_path / "model")
    x, y = columns(seed=5)
    assert_equal(tl.export.load(tmp_path / "model", Plain())(x, y=y), small.eval()(x, y))
