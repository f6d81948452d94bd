"""The gates as a module: seeds, masks, devices, dtypes, copies and checkpoints."""

import copy
import io
import math
import pickle
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from torchleap import Field, FieldError, LeAP
from torchleap.selection import select


def test_masks_nest():
    gates = LeAP({"a": 1, "b": 2}, init=0.1, seed=0)
    x = torch.randn(50, 3)
    gates(x)
    with gates.eval().masked(["a"]):
        outer = gates(x)
        with gates.masked(["b"]):
            torch.testing.assert_close(gates(x), gates.means().expand(50, 3))  # kept by neither
        assert torch.equal(gates(x), outer)


def test_a_copy_made_under_a_mask_is_not_masked():
    gates = LeAP({"a": 1, "b": 2}, init=0.1, seed=0)
    x = torch.randn(50, 3)
    gates(x)
    plain = gates.eval()(x)
    with gates.masked(["a"]):
        twin = copy.deepcopy(gates)
    assert torch.equal(twin(x), plain)


def test_masking_needs_means():
    with pytest.raises(FieldError, match="no training batch has passed"), LeAP({"a": 1}).masked([]):
        pass


def test_warm_up_in_a_checkpoint_goes_on():
    gates = LeAP({"a": 1}, warmup=4, init=0.0, seed=0)
    x = torch.randn(8, 1)
    for _ in range(2):
        gates(x)
    other = LeAP({"a": 1}, warmup=4, init=0.0, seed=0)
    for _ in range(9):
        other(x)
    other.load_state_dict(gates.state_dict())
    assert torch.equal(other(x), x)


def test_the_seed_alone_decides():
    x = torch.randn(32, 3)
    first = LeAP({"a": 1, "b": 2}, seed=5, init=0.0)
    torch.manual_seed(123)
    second = LeAP({"a": 1, "b": 2}, seed=5, init=0.0)
    before = torch.get_rng_state()
    assert torch.equal(first(x), second(x))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(
        LeAP({"a": 1, "b": 2}, seed=6, init=0.0)(x), LeAP({"a": 1, "b": 2}, seed=5, init=0.0)(x)
    )


def test_without_a_seed_the_global_one_decides_but_is_not_drawn_from():
    x = torch.randn(32, 3)
    torch.manual_seed(11)
    first = LeAP({"a": 3}, init=0.0)
    torch.rand(5)
    assert torch.equal(first(x), LeAP({"a": 3}, init=0.0)(x))
    torch.manual_seed(12)
    assert not torch.equal(LeAP({"a": 3}, init=0.0)(x), LeAP({"a": 3}, seed=11, init=0.0)(x))


def train_some(gates, optimizer, steps, first=0):
    outputs = []
    for step in range(first, first + steps):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        output = gates(x)
        (output[:, 0].square().mean() + gates.penalty()).backward()
        optimizer.step()
        outputs.append(output.detach())
    return torch.stack(outputs)


def test_a_state_dict_resumes_bit_for_bit():
    gates = LeAP({"a": 1, "b": 4}, alpha=0.1, warmup=2, seed=9)
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.05)
    train_some(gates, optimizer, 5)
    file = io.BytesIO()
    torch.save({"gates": gates.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train_some(gates, optimizer, 5, first=5)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = LeAP({"a": 1, "b": 4}, alpha=0.1, warmup=2, seed=0)
    resumed_optimizer = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(saved["gates"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(train_some(resumed, resumed_optimizer, 5, first=5), expected)
    for name, tensor in gates.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_checkpoint_of_other_fields_is_refused():
    saved = LeAP({"a": 1, "b": 4}).state_dict()
    for other in ({"b": 4, "a": 1}, {"a": 1, "b": 4, "c": 1}, {"a": 4, "b": 1}):
        with pytest.raises(RuntimeError, match="The checkpoint's gates belong to"):
            LeAP(other).load_state_dict(saved)


def test_gates_without_fields_take_them_from_a_checkpoint():
    gates = LeAP({"a": 1, "b": 4}, seed=1)
    gates(torch.randn(8, 5))
    late = LeAP(None)
    assert late.penalty().item() == 0
    late.load_state_dict(gates.state_dict())
    assert late.fields == gates.fields
    assert torch.equal(late(x := torch.randn(8, 5)), gates(x))


def test_copies_and_pickles_go_on_alike():
    gates = LeAP({"a": 1, "b": 2}, init=0.0, seed=0)
    gates(torch.randn(8, 3))
    twins = [copy.deepcopy(gates), pickle.loads(pickle.dumps(gates))]
    x = torch.randn(8, 3)
    expected = gates(x)
    for twin in twins:
        assert torch.equal(twin(x), expected)
        assert twin.theta is not gates.theta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_come_out_as_they_went_in(dtype):
    gates = LeAP({"a": 1, "b": 16}, init=0.0, seed=0)
    x = torch.randn(32, 17).to(dtype).requires_grad_()
    output = gates(x)
    output.float().square().sum().backward()
    assert output.dtype == x.grad.dtype == dtype
    assert gates.eval()(x).dtype == dtype
    assert gates.theta.grad.isfinite().all()


@pytest.mark.parametrize(
    "convert", [nn.Module.bfloat16, nn.Module.half, lambda m: m.to(torch.bfloat16)]
)
def test_gates_stay_in_float32_when_the_model_does_not(convert):
    model = nn.Sequential(nn.Linear(2, 2), LeAP({"a": 2}))
    convert(model)
    assert model[0].weight.dtype in (torch.bfloat16, torch.float16)
    assert {t.dtype for t in model[1].state_dict().values() if t.is_floating_point()} == {
        torch.float32
    }
    assert model.double()[1].theta.dtype == torch.float64


def test_autocast():
    layer, gates = nn.Linear(4, 6), LeAP({"a": 6}, init=0.0, seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = gates(layer(torch.randn(16, 4)))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert gates.theta.grad.dtype == torch.float32


def test_gates_can_be_made_on_another_device():
    with torch.device("meta"):
        gates = LeAP({"a": 2, "b": 1})
    assert gates.theta.device.type == "meta"


def test_any_device_that_takes_tensors():
    gates = LeAP({"a": 2, "b": 1}).to("meta")
    assert gates(torch.empty(8, 3, device="meta")).device.type == "meta"
    assert {t.device.type for t in (*gates.parameters(), *gates.buffers())} == {"meta"}


def test_numpy_numbers_are_settings():
    gates = LeAP({"a": 1}, seed=np.int64(3), alpha=np.float32(0.5), warmup=np.int32(2))
    selection = select(gates.known_fields(), gates.scores(), settings=asdict(gates.settings))
    assert (
        selection.settings["seed"],
        selection.settings["alpha"],
        selection.settings["warmup"],
    ) == (3, 0.5, 2)


def test_averaged_models_average_gates_too():
    model = nn.Sequential(LeAP([Field("a", 1), Field("b", 1, protected=True)]))
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(3):
        model(torch.randn(8, 2))
        average.update_parameters(model)
    assert average.module[0].free.tolist() == [1.0, 0.0]


def test_questions_before_the_first_batch_are_answered_or_refused():
    gates = LeAP(None)
    assert "first batch" in repr(gates)
    with pytest.raises(FieldError, match="none has come"):
        gates.scores()
    assert "2 fields, 3 dimensions" in repr(LeAP({"a": 1, "b": 2}))
    assert "adaptive=False" in repr(LeAP({"a": 1}, adaptive=False))


def test_the_defaults_are_those_of_the_documentation():
    gates = LeAP({"a": 1}, seed=3)
    assert asdict(gates.settings) == {
        **{
            "alpha": 1e-3,
            "temperature": 0.2,
            "momentum": 0.99,
            "adaptive": True,
            "divergence": "rms",
        },
        **{"normalize": False, "clip": (1e-6, 1e4), "init": 1.0, "warmup": 0, "floor": 0.0},
        **{"shuffle": "uniform", "per_dimension": False, "sync_every": 1, "seed": 3},
    }
    assert float(gates.gate()) == pytest.approx(1 / (1 + math.exp(-5)))


def test_the_warm_up_of_a_loaded_state_is_reported_even_after_one_has_ended():
    early, late = (LeAP({"a": 1}, warmup=2, seed=0) for _ in range(2))
    early(torch.randn(8, 1))
    for _ in range(5):
        late(torch.randn(8, 1))
    assert not late.warming_up
    late.load_state_dict(early.state_dict())
    assert late.warming_up


@pytest.mark.parametrize("seed", [0, 1, 11])
def test_without_a_seed_the_global_one_is_taken_and_every_given_seed_is_itself(seed):
    torch.manual_seed(11)
    assert int(LeAP({"a": 1}).seed) == 11
    assert int(LeAP({"a": 1}, seed=seed).seed) == seed
    torch.manual_seed(12)
    assert int(LeAP({"a": 1}, seed=seed).seed) == seed


def test_protected_gates_and_rounding_do_not_count_as_moved():
    gates = LeAP([Field("a", 1, protected=True), Field("b", 1)], init=0.3)
    with torch.no_grad():
        gates.theta[0] = -2.0
    assert not gates.moved
    assert not gates.double().moved  # 0.3 of float32 is not 0.3 of float64
    with torch.no_grad():
        gates.theta[1] = 0.31
    assert gates.moved


@pytest.mark.parametrize("training", [True, False])
def test_a_field_outside_the_mask_may_have_any_values(training):
    gates = LeAP({"a": 2, "b": 1}, alpha=0.1, seed=0)
    first = torch.randn(8, 3)
    gates(first)
    gates.train(training)
    x = torch.randn(8, 3)
    x[:, 2] = torch.nan
    x.requires_grad_()
    with gates.masked(["a"]):
        output = gates(x)
    assert torch.allclose(output[:, 2], first[:, 2].mean().expand(8), atol=1e-6)
    output.sum().backward()
    assert bool(torch.isfinite(gates.theta.grad).all())
    assert x.grad[:, 2].abs().max() == 0
