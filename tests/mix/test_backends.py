"""Every backend against the definition: random widths, batch sizes, dtypes and memory layouts."""

import ctypes
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap.mix import Draw, blocks, mix, native, reference, streams
from torchleap.native import build, library

LEVELS = {"AVX512": ["avx512", "avx2", "baseline"], "AVX2": ["avx2", "baseline"]}.get(
    torch.backends.cpu.get_cpu_capability(), ["baseline"]
)
CASES = st.fixed_dictionaries(
    {
        "widths": st.lists(
            st.sampled_from([1, 1, 2, 3, 4, 7, 8, 16, 31, 64, 100, 130, 256]),
            min_size=1,
            max_size=12,
        ),
        "rows": st.integers(2, 90),
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
        "memory": st.sampled_from(
            ["contiguous", "columns of a wider one", "transposed", "every other row"]
        ),
        "shuffle": st.sampled_from(["uniform", "cyclic"]),
        "grouped": st.booleans(),
        "sparse": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


@pytest.fixture(params=["torch", *[f"native {level}" for level in LEVELS]], scope="module")
def backend(request):
    """Each backend that this machine can run, the native one at each level of vectors."""
    if request.param == "torch":
        yield blocks
        return
    path = build.library_path(request.param.removeprefix("native "))
    if not path.exists():
        pytest.skip(f"{path.name} has not been compiled: no C compiler at installation")
    patch = pytest.MonkeyPatch()
    kernel = native.Kernel(library.Library(ctypes.CDLL(str(path)), request.param))
    patch.setattr(native, "_kernel", lambda: kernel)
    yield native
    patch.undo()


def laid_out(x, memory):
    """The same values in another place of memory."""
    if memory == "columns of a wider one":
        return torch.cat(
            [torch.full_like(x[:, :1], torch.nan), x, torch.full_like(x, torch.nan)], 1
        )[:, 1 : 1 + x.shape[1]]
    if memory == "transposed":
        return x.T.contiguous().T
    if memory == "every other row":
        return torch.stack([x, torch.full_like(x, torch.nan)], 1).flatten(0, 1)[::2]
    return x


def make(widths, rows, dtype, memory, shuffle, grouped, sparse, seed):
    rng = torch.Generator().manual_seed(seed)
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    if grouped and len(widths) > 2:  # the first and the last field share a gate
        column_gate[column_gate == len(widths) - 1] = 0
    gates = int(column_gate.max()) + 1
    x = torch.randn(rows, sum(widths), generator=rng, dtype=torch.float64)
    if sparse:
        x = x * (torch.rand(rows, 1, generator=rng) < 0.2)
    x = x.to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    gate = torch.rand(gates, generator=rng, dtype=torch.float64).to(wide)
    gate[0] = 1.0
    grad = torch.randn(x.shape, generator=rng, dtype=torch.float64).to(dtype)
    draw = Draw(streams(torch.tensor(seed), torch.randint(0, 99, (gates,), generator=rng)), shuffle)
    return laid_out(x, memory), gate, column_gate, draw, laid_out(grad, memory)


def tolerance(dtype):
    return {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-5}[dtype]


def check_against_the_definition(backend, case):
    x, gate, column_gate, draw, grad = make(**case)
    close = {"rtol": tolerance(case["dtype"]), "atol": tolerance(case["dtype"])}
    found, expected = (
        backend.forward(x, gate, column_gate, draw),
        reference.forward(x, gate, column_gate, draw),
    )
    assert found.output.dtype == x.dtype
    assert found.output.is_contiguous()
    if case["dtype"] == torch.bfloat16:  # at most the last bit
        torch.testing.assert_close(
            found.output, expected.output, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-30
        )
    else:
        torch.testing.assert_close(found.output, expected.output, **close)
    torch.testing.assert_close(found.mean, expected.mean, **close)
    torch.testing.assert_close(found.statistics, expected.statistics, **close)
    of_first = column_gate == 0
    assert torch.equal(found.output[:, of_first], x[:, of_first])  # a gate of 1

    found_x, found_gate = backend.backward(grad, x, gate, column_gate, draw, (True, True))
    expected_x, expected_gate = reference.backward(grad, x, gate, column_gate, draw, (True, True))
    torch.testing.assert_close(
        found_x, expected_x, rtol=max(close["rtol"], torch.finfo(x.dtype).eps), atol=close["atol"]
    )
    scale = float((grad.double().abs() * x.double().abs()).sum())  # of the terms that are summed
    torch.testing.assert_close(
        found_gate, expected_gate, rtol=1e-4, atol=tolerance(case["dtype"]) * scale
    )
    assert torch.equal(
        backend.backward(grad, x, gate, column_gate, draw, (True, False))[0], found_x
    )
    assert torch.equal(
        backend.backward(grad, x, gate, column_gate, draw, (False, True))[1], found_gate
    )


@given(CASES)
def test_equals_the_definition(backend, case):
    check_against_the_definition(backend, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(2500, 3001), (700, 16_384)])
def test_large_inputs_too(backend, dtype, rows, columns):
    """They write past the caches, and have panels of several gates and gates of several panels."""
    rng = torch.Generator().manual_seed(0)
    widths = []
    while sum(widths) < columns:
        widths.append(min([1, 5, 8, 64, 400][len(widths) % 5], columns - sum(widths)))
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    x = torch.randn(rows, columns, generator=rng).to(dtype)
    gate = torch.rand(len(widths), generator=rng)
    draw = Draw(streams(torch.tensor(1), torch.zeros(len(widths), dtype=torch.int64)))
    found, expected = (
        backend.forward(x, gate, column_gate, draw),
        reference.forward(x, gate, column_gate, draw),
    )
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.statistics, expected.statistics)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-6)
    grad = torch.randn(rows, columns, generator=rng).to(dtype)
    (found_x, found_gate), (expected_x, expected_gate) = (
        version.backward(grad, x, gate, column_gate, draw, (True, True))
        for version in (backend, reference)
    )
    torch.testing.assert_close(found_x, expected_x)
    torch.testing.assert_close(found_gate, expected_gate, rtol=1e-3, atol=0.05)


def test_more_rows_than_fit_a_cache(backend):
    x = torch.randn(70_001, 6)
    gate, column_gate = torch.tensor([0.2, 0.7]), torch.tensor([0, 0, 0, 0, 1, 1])
    draw = Draw(streams(torch.tensor(1), torch.zeros(2, dtype=torch.int64)))
    found, expected = (
        backend.forward(x, gate, column_gate, draw),
        reference.forward(x, gate, column_gate, draw),
    )
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.statistics, expected.statistics, rtol=1e-4, atol=1e-4)


def test_nan_shows_in_the_distance_of_its_gate_alone(backend):
    x = torch.randn(40, 12)
    x[3, 5] = torch.nan
    draw = Draw(streams(torch.tensor(1), torch.zeros(3, dtype=torch.int64)))
    found = backend.forward(x, torch.rand(3), torch.arange(3).repeat_interleave(4), draw)
    assert found.distance.isfinite().tolist() == [True, False, True]


def test_expanded_gradients_are_read_as_they_are(backend):
    x, gate, column_gate = torch.randn(20, 9), torch.rand(1), torch.zeros(9, dtype=torch.int64)
    draw = Draw(streams(torch.tensor(1), torch.zeros(1, dtype=torch.int64)))
    grad = torch.ones(()).expand(20, 9)  # what sum() sends back
    found = backend.backward(grad, x, gate, column_gate, draw, (True, True))
    expected = reference.backward(grad, x, gate, column_gate, draw, (True, True))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
@pytest.mark.parametrize("widths", [[1, 300, 8, 64, 700, 2], [100] * 3, [24] * 50])
def test_native_results_do_not_depend_on_the_number_of_threads(widths):
    gates = len(widths)
    column_gate = torch.arange(gates).repeat_interleave(torch.tensor(widths))
    x, grad, gate = torch.randn(777, sum(widths)), torch.randn(777, sum(widths)), torch.rand(gates)
    draw = Draw(streams(torch.tensor(1), torch.zeros(gates, dtype=torch.int64)))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4, 5):
            torch.set_num_threads(threads)
            backward = native.backward(grad, x, gate, column_gate, draw, (True, True))
            results.append([*native.forward(x, gate, column_gate, draw), *backward])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
def test_native_streams_are_the_definition_s():
    steps = torch.tensor([0, 7, 2**40])
    for seed in (0, -1, 2**63 - 1):
        assert torch.equal(
            native.streams(torch.tensor(seed), steps, 3), streams(torch.tensor(seed), steps, 3)
        )


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
def test_native_works_without_torch_s_threads(monkeypatch):
    x, gate, column_gate = (
        torch.randn(500, 700),
        torch.rand(7),
        torch.arange(7).repeat_interleave(100),
    )
    draw = Draw(streams(torch.tensor(1), torch.zeros(7, dtype=torch.int64)))
    expected = native.forward(x, gate, column_gate, draw)
    monkeypatch.setattr(native.load(), "parallel", None)
    assert all(
        torch.equal(a, b)
        for a, b in zip(native.forward(x, gate, column_gate, draw), expected, strict=True)
    )


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
def test_native_refuses_what_would_read_past_its_memory():
    x, gate, columns = torch.randn(4, 2), torch.rand(2), torch.tensor([0, 1])
    draw = Draw(streams(torch.tensor(1), torch.zeros(2, dtype=torch.int64)))
    for gate_of_column in (-1, 2):
        with pytest.raises(ValueError, match="a gate from 0 to 1"):
            native.forward(x, gate, torch.tensor([0, gate_of_column]), draw)
    with pytest.raises(ValueError, match="found torch.Size"):
        native.forward(torch.randn(0, 2), gate, columns, draw)
    with pytest.raises(ValueError, match=r"Expected gates in torch.float32 on the CPU\."):
        native.forward(x, gate.double(), columns, draw)
    with pytest.raises(ValueError, match="Expected gates in torch.float32 on the CPU"):
        native.forward(x, torch.rand(2, device="meta"), columns, draw)
    with pytest.raises(
        ValueError, match="a gate as int64 for each of 2 columns, on the CPU and 3 streams"
    ):
        native.forward(x, gate, columns.int(), Draw(draw.streams[:2]))
    with pytest.raises(
        ValueError,
        match=r"Expected a gradient \(4, 2\) in torch.float32, but found \(4, 2\) in torch.float64",
    ):
        native.backward(x.double(), x, gate, columns, draw, (True, True))
    with pytest.raises(
        ValueError, match="Expected steps in int64 on the CPU, but found torch.int32"
    ):
        native.streams(torch.tensor(1), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="as many rows"):
        native.join([torch.zeros(10, 3), torch.zeros(2, 3)])


@pytest.mark.skipif(
    native.load() is None or sys.platform != "linux",
    reason="needs the native kernel and Linux",
)
@pytest.mark.parametrize(
    ("rows", "columns", "stride"),
    [(1024, 1, 1), (1024, 4, 4), (300, 100, 100), (5, 100, 0), (50, 300, 2)],
)
def test_native_reads_no_byte_behind_its_input(rows, columns, stride):
    """The input ends where a readable page ends: a byte too far kills the process."""
    script = f"""
import ctypes, torch
from torchleap.mix import Draw, native, streams
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
sizes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.argtypes = [*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size = 4 * (({rows} - 1) * {stride} + {columns})
room = (size + 4095) // 4096 * 4096
start = libc.mmap(None, room + 4096, 3, 0x22, -1, 0)
assert libc.mprotect(start + room, 4096, 0) == 0
memory = (ctypes.c_char * size).from_address(start + room - size)
x = torch.frombuffer(memory, dtype=torch.float32).as_strided(({rows}, {columns}), ({stride}, 1))
gate, column_gate = torch.rand(1), torch.zeros({columns}, dtype=torch.int64)
draw = Draw(streams(torch.tensor(1), torch.zeros(1, dtype=torch.int64)))
native.forward(x, gate, column_gate, draw)
native.backward(x, x, gate, column_gate, draw, (True, True))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
def test_large_results_may_be_changed_in_place():
    x = torch.randn(4096, 128, requires_grad=True)
    gate, column_gate = torch.rand(2, requires_grad=True), torch.arange(2).repeat_interleave(64)
    mixed = mix(x, gate, column_gate, torch.tensor(0), torch.zeros(2, dtype=torch.int64)).output
    assert not mixed._is_view()
    torch.nn.functional.dropout(mixed, 0.1, inplace=True).sum().backward()
    assert x.grad.shape == x.shape
