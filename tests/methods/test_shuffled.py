"""A shuffled field gives the outputs of a full pass, for every backbone and kind of column."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchleap as tl
from tests.data.frames import log
from torchleap import models
from torchleap.methods import Permutation, shuffled
from torchleap.methods.base import put_before_net
from torchleap.methods.shuffled import ShuffledOutputs, reader_of

KINDS = ("user", "city", "price", "age", "tags", "vector")


def every_kind(width=4):
    """Return a task with ids, numbers that may be missing, a list, a vector, and groups."""
    ids = {"kind": "categorical", "width": width}
    columns = {
        "user": ids,
        "city": ids,
        "tags": {"kind": "list", "width": 8},
        "vector": {"kind": "vector"},
    }
    return tl.data.read(
        log(), label="click", time="time", group="user", columns=columns, only=KINDS
    )


WIDTHS = {width: every_kind(width) for width in (3, 8)}


def with_large_weights(model, seed):
    """Return the model with weights and running statistics that let every field matter."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng))
    return model.eval()


def fully_shuffled(model, task, rows, name, order):
    """Return the outputs of a full pass over rows whose one column has values of other rows."""
    inputs = [tensor.clone() for tensor in rows.inputs]
    for tensor, ids in zip(inputs, (True, False), strict=True):
        if name in task.slots(ids=ids):
            tensor[:, task.slots(ids=ids)[name]] = tensor[order][:, task.slots(ids=ids)[name]]
    with torch.no_grad():
        return model(*inputs)


BACKBONES = st.builds(
    lambda name, hidden, norm: models.named(name, {"hidden": hidden, "batch_norm": norm}),
    st.sampled_from(list(models.BACKBONES)),
    st.sampled_from([(), (5,), (16, 8)]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    BACKBONES,
    st.sampled_from(list(WIDTHS)),
    st.sets(st.sampled_from(KINDS), min_size=2),
    st.integers(1, 3),
    st.sampled_from([1.0, 0.4]),
    st.sampled_from([1, 7, 4096]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_a_shuffled_field_gives_the_log_odds_of_a_full_pass(
    backbone, width, names, repeats, fraction, rows_at_once, held, memory, seed
):
    task = WIDTHS[width].only(names)
    model = with_large_weights(models.build(backbone, task), seed)
    sample, orders = Permutation(repeats=repeats, fraction=fraction).draw(len(task.valid), seed)
    rows = task.valid.all().take(sample)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffled, "ROWS", rows_at_once)
        patch.setattr(shuffled, "HELD", shuffled.HELD if held else 0)
        patch.setattr(shuffled, "IN_MEMORY", shuffled.IN_MEMORY if memory else 0)
        outputs = ShuffledOutputs(model, task, sample, orders)
        assert (outputs.held is not None) == held
        for place, name in enumerate(task.fields.names):
            expected = torch.stack(
                [fully_shuffled(model, task, rows, name, order) for order in orders]
            )
            size = expected.abs().max().clamp_min(1)
            assert ((outputs.of(place) - expected).abs().max() / size).item() < 1e-5
        with torch.no_grad():
            assert torch.allclose(outputs.unshuffled, model(*rows.inputs), atol=1e-5 * size.item())


@pytest.mark.parametrize("at", ["net", "net.deep.0", "before"])
def test_layers_before_the_network_and_hooks_in_it_are_not_skipped(at):
    task = WIDTHS[3]
    model = with_large_weights(models.build("wide_deep", task), 0)
    if at == "before":
        put_before_net(model, torch.nn.Softsign())
    else:
        model.get_submodule(at).register_forward_pre_hook(lambda module, inputs: (inputs[0].sin(),))
    sample, orders = Permutation(repeats=2).draw(len(task.valid), 0)
    outputs = ShuffledOutputs(model, task, sample, orders)
    expected = fully_shuffled(model, task, task.valid.all(), "vector", orders[1])
    assert torch.allclose(outputs.of(task.fields.index("vector"))[1], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "wide_deep", "dcn"])
def test_only_a_part_without_a_first_linear_layer_sees_the_input_again(name):
    """A slower way would give the same numbers."""
    task = WIDTHS[3]
    model = with_large_weights(models.build(name, task), 0)
    sample, orders = Permutation().draw(len(task.valid), 0)
    outputs = ShuffledOutputs(model, task, sample, orders)
    seen = []
    for part in model.net.children():
        part.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    outputs.of(0)
    assert seen == ([task.fields.dims] if name == "dcn" else [])
    assert outputs.held[1].shape[1] == (task.fields.dims if name == "dcn" else 0)


def test_a_reader_of_one_column_has_no_tables_of_its_own():
    task = WIDTHS[8]
    inputs = models.build("mlp", task).inputs
    x = inputs(*task.valid.all().inputs)
    shared = {id(weight) for weight in inputs.parameters()}
    for place, name in enumerate(task.fields.names):
        reader = reader_of(inputs, place)
        assert {id(weight) for weight in reader.parameters()} <= shared
        own = reader(*task.only([name]).valid.all().inputs)
        assert torch.equal(own, x[:, task.fields.columns(name)])
