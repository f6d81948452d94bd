"""The Triton kernel without a GPU: its results in the interpreter, and that it compiles for one.

`make test-triton` runs both, each in a process of its own, in an environment that has Triton.
"""

import importlib
import os

import pytest
import torch
from hypothesis import given, settings

from tests.mix.test_backends import CASES, check_against_the_definition
from torchleap.mix import Draw, choose, mix, reference, streams

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_interpreter = pytest.mark.skipif(
    not INTERPRETED, reason="runs in Triton's interpreter: make test-triton"
)


@pytest.fixture(scope="module")
def kernel():
    pytest.importorskip("triton", reason="Triton is not installed: make test-triton")
    return importlib.import_module("torchleap.mix.triton_kernel")


@needs_interpreter
@settings(max_examples=12)
@given(CASES)
def test_equals_the_definition(kernel, case):
    check_against_the_definition(
        kernel, {**case, "widths": case["widths"][:4], "rows": min(case["rows"], 40)}
    )


@needs_interpreter
def test_many_gates_and_several_blocks_of_rows(kernel):
    x, gate, column_gate = torch.randn(70, 40), torch.rand(40), torch.arange(40)
    draw = Draw(streams(torch.tensor(1), torch.zeros(40, dtype=torch.int64)))
    found, expected = (
        kernel.forward(x, gate, column_gate, draw),
        reference.forward(x, gate, column_gate, draw),
    )
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-4, atol=1e-5)


@needs_interpreter
def test_the_operator_can_use_it(monkeypatch):
    x, gate = torch.randn(10, 6, requires_grad=True), torch.rand(2, requires_grad=True)
    arguments = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor(3), torch.zeros(2, dtype=torch.int64)
    expected = torch.autograd.grad(mix(x, gate, *arguments).output.square().sum(), (x, gate))
    monkeypatch.setenv("TORCHLEAP_MIX", "triton")
    assert choose(x) == "triton"
    found = torch.autograd.grad(mix(x, gate, *arguments).output.square().sum(), (x, gate))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter stands in the compiler's way")
@pytest.mark.parametrize("element", ["fp32", "fp64", "bf16", "fp16"])
def test_compiles_for_a_gpu(kernel, element):
    """Down to the machine code of an A100; whether it runs there, only an A100 can tell."""
    triton = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 80, 32)
    source = importlib.import_module("triton.compiler").ASTSource
    x, wide = f"*{element}", "*fp64" if element == "fp64" else "*fp32"
    sizes = {"rows": "i32", "width": "i64", "gates": "i32", "stride": "i64", "grad_stride": "i64"}
    tensors = {
        "x": x,
        "grad": x,
        "output": x,
        "grad_x": x,
        "gate": wide,
        "distance": wide,
        "square": wide,
        "grad_gate": wide,
    }
    indices = {"columns": "*i64", "first": "*i64", "order": "*i32", "streams": "*i64"}
    constants = {"ROWS": 32, "COLUMNS": 16, "WANTS_X": True, "WANTS_GATE": True, "BLOCK": 32}
    types = {**sizes, **tensors, **indices, **dict.fromkeys(constants, "constexpr")}
    for function in (kernel._shuffle, kernel._forward, kernel._backward):
        signature = {name: types[name] for name in function.arg_names}
        own = {name: value for name, value in constants.items() if name in function.arg_names}
        compiled = triton.compile(
            source(fn=function, signature=signature, constexprs=own), target=target
        )
        assert len(compiled.asm["cubin"]) > 1000
