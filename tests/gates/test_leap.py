"""The equations of LeAP against their definitions, in training and in evaluation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.slow import bias_corrected_average, mixed_row_by_row
from torchleap import Field, FieldError, LeAP
from torchleap.mix import Draw, streams

from .helpers import fields_of, set_gates

WIDTHS = st.lists(st.sampled_from([1, 2, 5, 16]), min_size=1, max_size=5)


# The equations


@given(WIDTHS, st.integers(2, 10), st.integers(0, 1000), st.floats(0, 0.5))
def test_training_mixes_as_the_definition_says(widths, rows, seed, floor):
    gates = LeAP(fields_of(widths), seed=seed, floor=floor).double()
    values = torch.linspace(0.1, 0.9, len(widths)).tolist()
    set_gates(gates, values)
    x = torch.randn(rows, sum(widths), dtype=torch.float64)
    order = Draw(streams(gates.seed, gates.steps)).permutations(rows)
    shares = [floor + (1 - floor) * value for value in values]
    expected, _, _ = mixed_row_by_row(x, widths, shares, order)
    torch.testing.assert_close(gates(x), expected, rtol=1e-6, atol=1e-6)


def test_cyclic_shifts_mix_as_the_definition_says():
    gates = LeAP(fields_of([1, 4]), shuffle="cyclic", seed=3, init=-20.0)
    x = torch.randn(16, 5)
    order = Draw(streams(gates.seed, gates.steps), "cyclic").permutations(16)
    mixed = gates(x)
    torch.testing.assert_close(mixed[:, :1], x[order[0], :1])
    torch.testing.assert_close(mixed[:, 1:], x[order[1], 1:])
    assert gates.settings.shuffle == "cyclic"


def test_gate_is_the_sigmoid_of_theta_over_temperature():
    gates = LeAP({"a": 1, "b": 2}, temperature=0.5, init=0.3)
    assert gates.scores()["b"] == pytest.approx(1 / (1 + math.exp(-0.3 / 0.5)))


@given(
    WIDTHS, st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.99]), st.sampled_from(["mean", "rms"])
)
def test_divergence_is_the_bias_corrected_average_of_the_batches(widths, steps, momentum, form):
    gates = LeAP(fields_of(widths), momentum=momentum, divergence=form, seed=1).double()
    seen = []
    for _ in range(steps):
        x = torch.randn(8, sum(widths), dtype=torch.float64)
        order = Draw(streams(gates.seed, gates.steps)).permutations(8)
        _, distance, square = mixed_row_by_row(x, widths, [0.0] * len(widths), order)
        seen.append(distance if form == "mean" else square)
        gates(x)
    for i, found in enumerate(gates.divergences().tolist()):
        average = bias_corrected_average([step[i] for step in seen], momentum)
        assert found == pytest.approx(average if form == "mean" else math.sqrt(average), rel=1e-5)


@pytest.mark.parametrize("form", ["mean", "rms"])
def test_penalty_is_the_sum_of_alpha_times_divergence_times_gate(form):
    gates = LeAP(fields_of([1, 4, 16]), alpha=0.02, divergence=form, seed=0)
    gates(torch.randn(64, 21))
    set_gates(gates, [0.2, 0.5, 0.9])
    divergence = gates.divergences()
    expected = sum(0.02 * float(d) * g for d, g in zip(divergence, [0.2, 0.5, 0.9], strict=True))
    assert gates.penalty().item() == pytest.approx(expected, rel=1e-5)


def test_base_penalty_is_the_same_for_every_gate():
    gates = LeAP(fields_of([1, 64]), alpha=0.02, adaptive=False)
    gates(torch.randn(64, 65))
    torch.testing.assert_close(gates.weights(), torch.tensor([0.02, 0.02]))


def test_wide_dense_and_sparse_fields_are_priced_as_the_theory_says():
    """RMS: the roots of width and active fraction. Mean: the fraction itself.

    E|N(0, 1)| = 0.798 and E|N(0, 2)| = 1.128.
    """
    rows = 20_000
    sparse = torch.randn(rows, 1) * (torch.rand(rows, 1) < 0.01)
    x = torch.cat([torch.randn(rows, 1), torch.randn(rows, 64), sparse], 1)
    cases = {"mean": (math.sqrt(128) / 1.128, 0.02 * 0.798 / 1.128), "rms": (8, math.sqrt(0.01))}
    for form, (width_ratio, share) in cases.items():
        gates = LeAP({"narrow": 1, "wide": 64, "sparse": 1}, divergence=form, seed=0)
        gates(x)
        narrow, wide, thin = gates.divergences().tolist()
        assert wide / narrow == pytest.approx(width_ratio, rel=0.03)
        assert thin / narrow == pytest.approx(share, rel=0.2)


def test_penalty_sends_gradient_to_the_gates_alone():
    gates = LeAP({"a": 3, "b": 1}, alpha=0.1, seed=0)
    x = torch.randn(16, 4, requires_grad=True)
    gates(x)
    gates.penalty().backward()
    assert x.grad is None
    g = gates.gate().detach()
    torch.testing.assert_close(
        gates.theta.grad, gates.weights() * g * (1 - g) / gates.settings.temperature
    )


def test_the_shuffled_copy_sends_no_gradient():
    gates = LeAP({"a": 2}, seed=0)
    set_gates(gates, [0.25])
    x = torch.randn(9, 2, requires_grad=True)
    weight = torch.randn(9, 2)
    (gates(x) * weight).sum().backward()
    torch.testing.assert_close(x.grad, 0.25 * weight)


def test_normalized_divergence_ignores_scale_and_shift_but_not_width_and_sparsity():
    rows = 4_000
    dense, sparse = torch.randn(rows, 16), torch.randn(rows, 16) * (torch.rand(rows, 1) < 0.02)
    x = torch.cat([dense, 1e-4 * dense, 50 * dense + 1000, dense[:, :1], sparse, 300 * sparse], 1)
    names = {"dense": 16, "small": 16, "shifted": 16, "narrow": 1, "sparse": 16, "loud": 16}
    for form in ("mean", "rms"):
        gates = LeAP(names, normalize=True, divergence=form, seed=0)
        for chunk in x.split(500):
            gates(chunk)
        d = dict(zip(names, gates.divergences().tolist(), strict=True))
        assert d["small"] == pytest.approx(d["dense"], rel=0.05)
        assert d["shifted"] == pytest.approx(d["dense"], rel=0.05)
        assert d["loud"] == pytest.approx(d["sparse"], rel=0.4)
        assert d["narrow"] == pytest.approx(d["dense"] / 4, rel=0.25)
        assert d["sparse"] < 0.4 * d["dense"]
    assert d["dense"] == pytest.approx(math.sqrt(2 * 16), rel=0.1)


def test_a_constant_field_is_priced_and_a_wild_one_bounded():
    gates = LeAP({"constant": 4, "usual": 1, "wild": 1}, alpha=1.0, clip=(1e-3, 10.0), seed=0)
    gates(torch.cat([torch.ones(512, 4), torch.randn(512, 1), 1e6 * torch.randn(512, 1)], 1))
    constant, usual, wild = gates.weights().tolist()
    assert gates.divergences()[0] == 0
    assert constant == pytest.approx(usual)
    assert wild == pytest.approx(10 * usual)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_constant_field_closes_whatever_the_scale_of_the_others(scale):
    gates = LeAP({"constant": 1, "dense": 8}, alpha=1e-3, seed=0)
    optimizer = torch.optim.Adam(gates.parameters(), lr=2e-2)
    for _ in range(120):
        optimizer.zero_grad()
        gates(torch.cat([torch.ones(32, 1), scale * torch.randn(32, 8)], 1))
        gates.penalty().backward()
        optimizer.step()
    assert gates.scores()["constant"] < 0.1


def test_constants_up_to_rounding_close_and_do_not_cheapen_the_others():
    x = torch.cat([3 + 1e-7 * torch.randn(256, 8), torch.randn(256, 64)], 1)
    gates = LeAP({**{f"nearly{i}": 1 for i in range(8)}, "wide": 64}, alpha=1.0, seed=0)
    gates(x)
    prices = gates.weights().tolist()
    assert prices[-1] == pytest.approx(float(gates.divergences()[-1]))
    assert prices[:8] == pytest.approx([prices[-1]] * 8)


@pytest.mark.parametrize("form", ["mean", "rms"])
def test_wide_fields_pay_in_full_where_most_fields_are_sparse_and_narrow(form):
    rows = 4000
    sparse = torch.randn(rows, 60) * (torch.rand(rows, 60) < 0.01)
    x = torch.cat([sparse, torch.randn(rows, 1 + 64 + 1024)], 1)
    gates = LeAP(
        {**{f"s{i}": 1 for i in range(60)}, "one": 1, "wide": 64, "wider": 1024},
        alpha=1.0,
        divergence=form,
        seed=0,
    )
    gates(x)
    torch.testing.assert_close(gates.weights(), gates.divergences())


def test_base_needs_no_statistics_for_its_price():
    assert LeAP(
        {"a": 1, "b": 1}, alpha=1.0, adaptive=False, init=0.0
    ).penalty().item() == pytest.approx(1.0)
    assert (
        LeAP({"a": 1, "b": 1}, alpha=1.0, adaptive=False, init=0.0, warmup=1).penalty().item()
        == 0.0
    )
    assert LeAP({"a": 1, "b": 1}, alpha=1.0, init=0.0).penalty().item() == 0.0


def test_all_fields_constant_still_close():
    gates = LeAP({"a": 1, "b": 2})
    gates(torch.ones(8, 3))
    assert (gates.weights() > 0).all()


# Protected fields and groups


def test_a_protected_field_stays_open_and_free():
    gates = LeAP([Field("a", 2, protected=True), Field("b", 2)], seed=0)
    with torch.no_grad():
        gates.theta.fill_(-10)
    x = torch.randn(32, 4)
    mixed = gates(x)
    assert torch.equal(mixed[:, :2], x[:, :2])
    assert not torch.equal(mixed[:, 2:], x[:, 2:])
    assert gates.scores()["a"] == 1.0
    assert gates.weights()[0] == 0


def test_a_group_shares_gate_permutation_and_price():
    gates = LeAP([Field("a", 1, group="g"), Field("b", 1), Field("c", 2, group="g")], seed=0)
    with torch.no_grad():
        gates.theta.copy_(torch.tensor([-20.0, -20.0]))
    x = torch.arange(40.0)[:, None].repeat(1, 4)
    mixed = gates(x)
    assert torch.equal(mixed[:, 0], mixed[:, 2])
    assert not torch.equal(mixed[:, 0], mixed[:, 1])
    assert gates.theta.shape == (2,)
    assert gates.divergences()[0] == pytest.approx(
        float(gates.divergences()[1]) * math.sqrt(3), rel=0.3
    )
    assert gates.scores()["a"] == gates.scores()["c"]


def test_one_protected_field_protects_its_group():
    gates = LeAP(
        [Field("a", 1, group="g", protected=True), Field("b", 1, group="g"), Field("c", 1)]
    )
    assert gates.free.tolist() == [0.0, 1.0]


# train and eval


def test_eval_mixes_with_the_running_mean_and_is_deterministic():
    gates = LeAP({"a": 1, "b": 2}, momentum=0.5, seed=0)
    batches = [torch.randn(16, 3) + i for i in range(3)]
    for batch in batches:
        gates(batch)
    mean = torch.stack(
        [
            torch.tensor(bias_corrected_average([b[:, c].mean().item() for b in batches], 0.5))
            for c in range(3)
        ]
    )
    set_gates(gates, [0.3, 0.8])
    gates.eval()
    x = torch.randn(5, 3)
    g = torch.tensor([0.3, 0.8, 0.8])
    torch.testing.assert_close(gates(x), g * x + (1 - g) * mean.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(gates(x), gates(x))
    assert gates(x[:1]).shape == (1, 3)
    assert gates.steps.tolist() == [3, 3]


def test_eval_before_any_batch_changes_nothing():
    gates = LeAP({"a": 2}, init=0.0).eval()
    x = torch.randn(3, 2)
    assert torch.equal(gates(x), x)


@pytest.mark.parametrize("training", [True, False])
def test_open_gates_pass_the_input_bit_for_bit(training):
    gates = LeAP({"a": 2, "b": 3}, init=10.0, floor=0.1, seed=0)
    gates(torch.randn(8, 5))
    x = torch.randn(64, 5)
    assert torch.equal(gates.train(training)(x), x)


def test_masked_fields_are_their_mean_and_kept_ones_as_in_eval():
    gates = LeAP({"a": 1, "b": 2}, init=0.1, seed=0)
    gates(torch.randn(50, 3) + 5)
    x = torch.randn(4, 3)
    steps = gates.steps.clone()
    plain = gates.eval()(x)
    for training in (True, False):
        with gates.train(training).masked(["a"]):
            output = gates(x)
        assert torch.equal(output[:, :1], plain[:, :1])
        torch.testing.assert_close(output[:, 1:], gates.means()[1:].expand(4, 2))
    assert torch.equal(gates.steps, steps)
    with pytest.raises(FieldError, match="no field 'z'"), gates.masked(["z"]):
        pass
    assert torch.equal(gates.eval()(x), plain)
    x[0, 2] = float("nan")
    with gates.masked(["a", "b"]), gates.masked(["a"]):
        assert gates(x).isfinite().all()  # a dropped field is not read at all


def test_fields_by_width_are_flattened():
    gates, flat = LeAP({"a": 4, "b": 4}, seed=3), LeAP({"a": 4, "b": 4}, seed=3)
    x = torch.randn(10, 2, 4)
    assert torch.equal(gates(x), flat(x.flatten(1)).reshape(10, 2, 4))


# Warm-up and floor


def test_warm_up_holds_the_gates_at_1_and_measures():
    gates = LeAP({"a": 1, "b": 4}, warmup=3, init=0.0, seed=0)
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.1)
    for step in range(5):
        x = torch.randn(32, 5)
        output = gates(x)
        assert torch.equal(output, x) == (step < 3)
        optimizer.zero_grad()
        (output.square().sum() + gates.penalty()).backward()
        optimizer.step()
        assert gates.moved == (step >= 3)
        assert (gates.divergences() > 0).all()
        assert gates.warming_up == (step < 3)
        assert torch.equal(gates.eval()(x), x) == (step < 3)
        gates.train()
    assert float(optimizer.state[gates.theta]["step"]) == 2  # Adam has not counted the warm-up


def test_each_step_permutes_anew_and_each_field_by_itself():
    gates = LeAP({"a": 1, "b": 1}, init=-20.0, seed=0)
    x = torch.arange(50.0)[:, None].repeat(1, 2)
    first, second = gates(x), gates(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])


def test_non_contiguous_input():
    gates, same = LeAP({"a": 2, "b": 3}, seed=0, init=0.0), LeAP({"a": 2, "b": 3}, seed=0, init=0.0)
    x = torch.randn(5, 20).T
    assert torch.equal(gates(x), same(x.contiguous()))


def test_sparsity_is_the_share_at_the_most_common_value():
    x = torch.zeros(1000, 3)
    x[:, 0] = torch.randn(1000)
    x[::100, 1] = torch.randn(10)
    x[:, 2] = 7.0
    gates = LeAP({"dense": 1, "sparse": 1, "constant": 1}, seed=0)
    for chunk in x[torch.randperm(1000)].split(250):
        gates(chunk)
    assert gates.sparsity().tolist() == pytest.approx([0.0, 0.99, 1.0], abs=0.01)


def test_a_thousand_columns_in_one_field():
    gates = LeAP({"wide": 1024, "narrow": 1}, seed=0)
    gates(torch.randn(256, 1025))
    wide, narrow = gates.divergences().tolist()
    assert wide / narrow == pytest.approx(32, rel=0.15)


def test_a_misspelt_setting_is_an_error():
    with pytest.raises(TypeError, match="alhpa"):
        LeAP({"a": 1}, alhpa=1e-3)


def test_a_price_is_charged_after_the_warm_up_and_not_in_its_last_batch():
    for adaptive in (True, False):
        gates = LeAP({"a": 1, "b": 2}, alpha=1.0, warmup=2, adaptive=adaptive)
        charged = []
        for _ in range(4):
            gates(torch.randn(16, 3))
            charged.append(bool(gates.penalty() > 0))
        assert charged == [False, False, True, True]


def test_a_constant_with_a_large_mean_is_priced_as_the_median_although_rounding_moves_it():
    gates = LeAP({"a": 1, "b": 1, "c": 1}, alpha=1.0)
    x = torch.randn(512, 3) * torch.tensor([1.0, 1.0, 1e-3]) + torch.tensor([0.0, 0.0, 1e4])
    gates(x)
    price = gates.weights()
    assert float(price[2]) == pytest.approx(float(price[:2].min()))  # the lower of two medians


def test_a_probe_opens_closed_gates_and_collects_the_gradient_of_all_shares():
    gates = LeAP({"a": 1, "b": 1}, seed=0)
    set_gates(gates, [0.1, 0.9])
    gates.context.start_probe(gates.theta)
    x = torch.randn(64, 2)
    output = gates(x)
    assert torch.equal(output[:, 0], x[:, 0])
    assert not torch.equal(output[:, 1], x[:, 1])
    output.square().sum().backward()
    assert (gates.context.probe.grad != 0).all()


def test_a_part_of_the_columns_is_mixed_and_measured_as_in_the_whole():
    whole, parts = (LeAP({"a": 2, "b": 1, "c": 3}, seed=0) for _ in range(2))
    for gates in (whole, parts):
        set_gates(gates, [0.2, 0.5, 0.7])
    x = torch.randn(32, 6)
    expected = whole(x)
    pieces = [parts(x[:, columns], columns) for columns in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(torch.cat(pieces, 1), expected)
    torch.testing.assert_close(parts.divergences(), whole.divergences())
    torch.testing.assert_close(parts.eval()(x[:, 2:6], slice(2, 6)), whole.eval()(x)[:, 2:6])
