import copy
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from torchleap._common.errors import TorchleapError
from torchleap.mix import Draw, choose, dispatch, join, mix, native, reference, streams

COMPILED = pytest.mark.skipif(
    native.load() is None, reason="the native kernel has not been compiled"
)
FIELDS = {"a": 1, "b": 8, "c": 20}
COLUMN_GATE = torch.arange(3).repeat_interleave(torch.tensor([1, 8, 20]))


def inputs(rows=16, dtype=torch.float64, grad=True):
    x = torch.randn(rows, 29, dtype=dtype, requires_grad=grad)
    gate = torch.rand(3, dtype=torch.promote_types(dtype, torch.float32), requires_grad=grad)
    return x, gate, COLUMN_GATE, torch.tensor(5), torch.tensor([0, 1, 2])


@pytest.mark.parametrize("name", ["native", "torch", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("wants", [(True, True), (True, False), (False, True)])
def test_opcheck(monkeypatch, name, dtype, wants):
    if name == "native" and native.load() is None:
        pytest.skip("the native kernel has not been compiled")
    monkeypatch.setenv("TORCHLEAP_MIX", name)
    x, gate, column_gate, seed, steps = inputs(dtype=dtype)
    x, gate = x.detach().requires_grad_(wants[0]), gate.detach().requires_grad_(wants[1])
    for shuffle in ("uniform", "cyclic"):
        torch.library.opcheck(
            torch.ops.torchleap.mix, (x, gate, column_gate, seed, steps, 0, shuffle)
        )
    drawn = streams(seed, steps)
    grad = torch.randn_like(x).T.contiguous().T  # column by column in memory
    torch.library.opcheck(
        torch.ops.torchleap.mix_backward,
        (grad, x.detach(), gate.detach(), column_gate, drawn, "uniform", *wants),
    )


@pytest.mark.parametrize("name", ["native", "torch", "reference"])
def test_gradients_are_the_numerical_ones(monkeypatch, name):
    if name == "native" and native.load() is None:
        pytest.skip("the native kernel has not been compiled")
    monkeypatch.setenv("TORCHLEAP_MIX", name)
    x, gate, *rest = inputs(rows=5)

    def output(x, gate):
        # x' has no gradient, so numerical differences have to hold it fixed too: it enters only
        # through the constant part
        mixed = mix(x, gate, *rest).output
        return mixed - (1 - gate[COLUMN_GATE]) * (
            mix(x, torch.zeros_like(gate), *rest).output.detach() - shuffled
        )

    shuffled = mix(x, torch.zeros_like(gate), *rest).output.detach()
    assert torch.autograd.gradcheck(output, (x, gate))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_second_gradients_are_those_of_the_definition(dtype):
    x, gate, column_gate, seed, steps = inputs(rows=7, dtype=dtype)
    draw = Draw(streams(seed, steps))
    plain = reference.forward(x, gate, column_gate, draw).output
    fast = mix(x, gate, column_gate, seed, steps).output
    found = []
    for output in (plain, fast):
        first = torch.autograd.grad(output.pow(3).sum(), (x, gate), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), (x, gate)))
    close = {"rtol": 0.1, "atol": 1.0} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found[0], found[1], **close)


def test_used_twice_in_one_graph():
    """Each use has a permutation of its own, and backward draws it again after later steps."""
    x, gate, column_gate, seed, steps = inputs()
    outputs, expected = [], []
    for _ in range(2):
        outputs.append(mix(x, gate, column_gate, seed, steps).output)
        expected.append(reference.forward(x, gate, column_gate, Draw(streams(seed, steps))).output)
        steps += 1
    assert not torch.equal(outputs[0], outputs[1])
    weight = torch.randn_like(x)
    found = torch.autograd.grad((outputs[0] * outputs[1] * weight).sum(), (x, gate))
    wanted = torch.autograd.grad((expected[0] * expected[1] * weight).sum(), (x, gate))
    torch.testing.assert_close(found, wanted)


def test_accumulated_gradients_are_the_sum_over_the_batches(monkeypatch):
    gradients = {}
    batches = [torch.randn(16, 29) for _ in range(3)]
    for name in ("reference", ""):
        monkeypatch.setenv("TORCHLEAP_MIX", name)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(29, 4), nn.ReLU(), nn.Linear(4, 1))
        plugin = tl.attach(model, FIELDS, at="0", seed=3)
        for batch in batches:
            model(batch).square().mean().backward()
        gradients[name] = [parameter.grad for parameter in model.parameters()]
        assert plugin.gates.theta.grad.abs().sum() > 0
    torch.testing.assert_close(gradients["reference"], gradients[""], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_step_is_the_eager_one(backend, dynamic):
    torch._dynamo.reset()
    x, gate, *rest = inputs(dtype=torch.float32)

    def step(x, gate):
        mixed = mix(x, gate, *rest)
        return mixed.output.square().sum() + mixed.statistics.sum()

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=dynamic)
    found, expected = compiled(x, gate), step(x, gate)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (x, gate)), torch.autograd.grad(expected, (x, gate))
    )


@COMPILED
def test_the_native_kernel_is_the_choice_on_the_cpu_and_the_variable_overrides_it(monkeypatch):
    monkeypatch.delenv("TORCHLEAP_MIX", raising=False)
    x = torch.randn(4, 2)
    assert choose(x) == "native"
    assert choose(x.bfloat16()) == "native"
    assert choose(x.half()) == "torch"  # not a type that the kernel knows
    for name in ("native", "torch", "reference"):
        monkeypatch.setenv("TORCHLEAP_MIX", name)
        assert choose(x) == name


def test_a_variable_that_cannot_be_followed_is_an_error(monkeypatch):
    monkeypatch.setenv("TORCHLEAP_MIX", "nativ")
    with pytest.raises(
        TorchleapError,
        match=r"TORCHLEAP_MIX must be one of native, triton, torch, reference, but is 'nativ'",
    ):
        choose(torch.randn(4, 2))
    monkeypatch.setenv("TORCHLEAP_MIX", "native")
    with pytest.raises(
        TorchleapError,
        match="takes torch.float32, torch.float64, torch.bfloat16, but the input is torch.float16",
    ):
        choose(torch.randn(4, 2).half())
    with pytest.raises(TorchleapError, match="is for the CPU, but the input is on meta"):
        choose(torch.randn(4, 2, device="meta"))
    monkeypatch.setenv("TORCHLEAP_MIX", "triton")
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    with pytest.raises(TorchleapError, match="Triton is not installed: pip install triton"):
        choose(torch.randn(4, 2))
    monkeypatch.setattr(dispatch, "_has_triton", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(TorchleapError, match="is for GPUs, but the input is on cpu"):
        choose(torch.randn(4, 2))


def test_without_the_native_kernel_it_warns_once_and_gives_the_same_results(tmp_path):
    """In a process of its own, whose package has no library."""
    script = """
import sys, warnings
import torch
import torchleap.native.build as build
from pathlib import Path
build.library_path = lambda level, folder=None: Path(sys.argv[1]) / level  # nothing there
import torchleap as tl
from torchleap.mix import choose
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    gates = tl.LeAP({"a": 1, "b": 8}, seed=0)
    x = torch.randn(32, 9, generator=torch.Generator().manual_seed(0))
    outputs = [gates(x) for _ in range(3)]
print(choose(x), len(warned), str(warned[0].message))
print(float(outputs[2].double().sum()))
"""
    clean = {name: value for name, value in os.environ.items() if name != "TORCHLEAP_MIX"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=clean,
    )
    printed, total = done.stdout.splitlines()
    assert printed.startswith("torch 1 torchleap's native kernel has not been compiled.")
    assert "python -m torchleap.native.build" in printed
    gates = tl.LeAP({"a": 1, "b": 8}, seed=0)
    x = torch.randn(32, 9, generator=torch.Generator().manual_seed(0))
    outputs = [gates(x) for _ in range(3)]
    assert float(total) == pytest.approx(float(outputs[2].double().sum()), rel=1e-5)


def test_gates_trained_by_any_backend_end_where_the_definition_ends(monkeypatch):
    thetas = {}
    for name in ("reference", "torch", ""):
        monkeypatch.setenv("TORCHLEAP_MIX", name)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(29, 8), nn.ReLU(), nn.Linear(8, 1)).double()
        plugin = tl.attach(copy.deepcopy(model), FIELDS, at="0", alpha=0.01, seed=0)
        optimizer = torch.optim.Adam(plugin.model.parameters(), lr=1e-2)
        for _ in range(20):
            x = torch.randn(64, 29, dtype=torch.float64)
            optimizer.zero_grad()
            ((plugin.model(x) - x[:, :1]).square().mean() + plugin.penalty()).backward()
            optimizer.step()
        thetas[name] = plugin.gates.theta.detach()
    torch.testing.assert_close(thetas["torch"], thetas["reference"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(thetas[""], thetas["reference"], rtol=1e-9, atol=1e-9)


@given(
    widths=st.lists(st.integers(1, 70), min_size=1, max_size=9),
    rows=st.integers(1, 80),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    transposed=st.booleans(),
)
def test_join_is_cat(widths, rows, dtype, transposed):
    blocks = [torch.randn(rows, width).to(dtype) for width in widths]
    blocks = [
        block.T.contiguous().T if transposed and i % 2 else block for i, block in enumerate(blocks)
    ]
    blocks = [block.requires_grad_(i % 3 != 1) for i, block in enumerate(blocks)]
    found, expected = join(blocks), torch.cat(blocks, dim=1)
    assert torch.equal(found, expected)
    weight = torch.randn_like(expected)
    wanted = [block for block in blocks if block.requires_grad]
    pairs = (torch.autograd.grad((joined * weight).sum(), wanted) for joined in (found, expected))
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_join_of_different_types_widens_as_cat_does():
    blocks = [torch.randn(4, 2), torch.randn(4, 3, dtype=torch.float64)]
    assert torch.equal(join(blocks), torch.cat(blocks, dim=1))


@COMPILED
def test_opcheck_of_a_large_result():
    x = torch.randn(3000, 100, requires_grad=True)
    arguments = (
        torch.zeros(100, dtype=torch.int64),
        torch.tensor(5),
        torch.zeros(1, dtype=torch.int64),
        0,
        "uniform",
    )
    torch.library.opcheck(
        torch.ops.torchleap.mix, (x, torch.rand(1, requires_grad=True), *arguments)
    )


def test_opcheck_of_join():
    torch.library.opcheck(
        torch.ops.torchleap.join, ([torch.randn(5, 2, requires_grad=True), torch.randn(5, 3)],)
    )
