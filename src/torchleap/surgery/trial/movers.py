"""Find out which input of a batch moves which columns of the gates, by changing inputs.

One run per input would be many where there are hundreds. So each input has a number, and each
binary digit of the numbers has two runs: one changes the inputs whose number has the digit, the
other those whose number does not. A column that a single input moves is moved in one of the two
runs of every digit, which spells the number of its input.
"""

import inspect
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_jagged
from ...gates.leap import LeAP
from ...sites.batches import adapter_of, flatten, unflatten
from ...sites.calls import Call, few_rows
from .deadline import OutOfTimeError, time_left
from .run import forget_pass, run, untouched
from .steps import Steps, columns_in_steps

ROWS = 32  # of the example that are changed and run
NOTHING = -1  # moves the column
SEVERAL = -2  # inputs move the column
KEYS = ("key", "name", "idx")  # of the steps on the way to a value of a batch
MOVED = 1e-5  # of the largest value in a column: a smaller change is rounding


@dataclass(frozen=True)
class Input:
    """A tensor of a batch with a row per example.

    Attributes:
        name: The key of the entry, or the name of the argument.
        place: Its place among the tensors and other values of the batch.
        width: Its number of columns: 1 unless it is (B, C).
        varies: Whether each of its columns can be changed: the ids in a column that has only one
            value cannot, as other ids may not exist.
    """

    name: str
    place: int
    width: int
    varies: bool


@dataclass(frozen=True)
class Movers:
    """Which input moves each column of the gates.

    Attributes:
        inputs: The inputs that can be changed.
        is_complete: Whether these are all inputs, and all of their columns can be changed.
        by_input: For each column of the gates the index of its input, NOTHING or SEVERAL.
        by_column: For each column of the gates the column of that input, NOTHING or SEVERAL.
        as_ids: For each column of the gates whether the model reads whole numbers in it alone.
        perhaps_ids: The same where the example has too few values to be certain.
        again: The same for further calls of the gates in one forward pass, in their order.
    """

    inputs: tuple[Input, ...]
    is_complete: bool
    by_input: tuple[int, ...]
    by_column: tuple[int, ...]
    as_ids: tuple[bool, ...]
    perhaps_ids: tuple[bool, ...] = ()
    again: tuple["Movers", ...] = ()


def movers_of(model: nn.Module, gates: LeAP, call: Call) -> Movers | None:
    """Return which input moves which columns; None where this cannot be found out.

    The model runs in eval mode on a few rows, and is left as it was.

    Args:
        model: The attached model.
        gates: Its gates.
        call: A batch.

    Raises:
        OutOfTimeError: The runs would take longer than there is time.
    """
    with untouched(model), torch.random.fork_rng():
        try:
            return _Probe(model, gates, few_rows(call, rows=ROWS)).movers()
        except OutOfTimeError:
            forget_pass(gates)
            raise
        except Exception:  # the model's own code decides how it refuses a batch
            forget_pass(gates)
            return None


class _Probe:
    """Run a model on versions of one batch.

    Args:
        model: The attached model.
        gates: Its gates.
        call: A batch of a few rows.
    """

    def __init__(self, model: nn.Module, gates: LeAP, call: Call) -> None:
        self.model = model
        self.gates = gates
        self.call = call
        self.leaves, self.form = flatten(call)
        names = _names_of(model, call)
        start = time.monotonic()
        with _Conversions(gates) as self.conversions:
            self.base = self._arriving(self.leaves)
        self.seconds = time.monotonic() - start  # of a run
        first = self.base[0]
        self.inputs = []
        for place, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(first):
                width = leaf.shape[1] if leaf.dim() == 2 else 1
                varies = bool(_varies(leaf).all())
                self.inputs.append(Input(names[place], place, width, varies))

    def movers(self) -> Movers:
        """Return which input moves which columns: SEVERAL if the model is not deterministic."""
        widest = max((one.width for one in self.inputs), default=0)
        runs = 1 + 2 * (len(self.inputs).bit_length() + widest.bit_length())
        if runs * self.seconds > time_left():
            raise OutOfTimeError(f"{runs} runs take too long")
        is_known = bool(self.inputs) and not self._moved(self.leaves).any()
        by_input = by_column = (SEVERAL,) * sum(block.shape[1] for block in self.base)
        if is_known:
            numbers = [torch.tensor(number) for number, _ in enumerate(self.inputs, start=1)]
            by_input = self._spelled(numbers)
            numbers = [torch.arange(1, one.width + 1) for one in self.inputs]
            by_column = self._spelled(numbers)
        others = sum(isinstance(leaf, Tensor) or is_jagged(leaf) for leaf in self.leaves)
        is_complete = others == len(self.inputs) and all(one.varies for one in self.inputs)
        steps = self._steps() if is_known else Steps(frozenset(), frozenset())
        found = []
        for number, block in enumerate(self.base):
            width = block.shape[1]
            own = slice(number * width, (number + 1) * width)
            whole = (block == block.round()).all(0)
            converted = (whole & self.conversions.columns(width)).nonzero().flatten().tolist()
            certain = steps.certain.union(converted)
            found.append(
                Movers(
                    inputs=tuple(self.inputs),
                    is_complete=is_complete and is_known,
                    by_input=by_input[own],
                    by_column=by_column[own],
                    as_ids=tuple(column in certain for column in range(width)),
                    perhaps_ids=tuple(column in steps.possible for column in range(width)),
                )
            )
        return replace(found[0], again=tuple(found[1:]))

    def _steps(self) -> Steps:
        """Return the columns of which the model reads whole numbers alone, if there is time."""
        with suppress(OutOfTimeError):
            return columns_in_steps(self.model, self.gates, self.call, self.base[0])
        return Steps(frozenset(), frozenset())

    def _spelled(self, numbers: Sequence[Tensor]) -> tuple[int, ...]:
        """Return for each column of the gates the number, less 1, of what moves it.

        Args:
            numbers: The number of each input, (), or of each of its columns, (C,); from 1 up.
        """
        largest = max(int(number.max()) for number in numbers)
        result = torch.full((sum(block.shape[1] for block in self.base),), -1)
        never = torch.ones_like(result, dtype=torch.bool)
        once = torch.ones_like(never)
        for digit in range(largest.bit_length()):
            has_digit = [(number >> digit) % 2 == 1 for number in numbers]
            with_digit = self._moved(self._changed(has_digit))
            without = self._moved(self._changed([~has for has in has_digit]))
            never &= ~with_digit & ~without
            once &= with_digit ^ without
            result += with_digit.long() << digit
        result = torch.where(once, result, SEVERAL)
        return tuple(torch.where(never, NOTHING, result).tolist())

    def _changed(self, chosen: Sequence[Tensor]) -> list[Any]:
        """Return the batch with some inputs changed.

        Args:
            chosen: Whether to change each input, (), or each of its columns, (C,).
        """
        leaves = list(self.leaves)
        for one, mask in zip(self.inputs, chosen, strict=True):
            if mask.any():
                leaf = leaves[one.place]
                mask = mask.to(leaf.device) if leaf.dim() == 2 else mask.any().to(leaf.device)
                leaves[one.place] = torch.where(mask, _with_other_values(leaf), leaf)
        return leaves

    def _moved(self, leaves: list[Any]) -> Tensor:
        """Return for each column of each call whether it differs from that of the example."""
        found = []
        for block, base in zip(self._arriving(leaves), self.base, strict=True):
            smallest = MOVED * base.abs().amax(0)
            found.append(~((block - base).abs() <= smallest).all(0))
        return torch.cat(found)

    def _arriving(self, leaves: list[Any]) -> list[Tensor]:
        """Return the columns that arrive at the gates, (B, D), for each of their calls.

        Sites that are called less often than others have their first columns in the later calls.
        """
        blocks: dict[int, list[Tensor]] = {}

        def see(_: nn.Module, args: tuple[Tensor, slice | None]) -> None:
            x, columns = (*args, None)[:2]
            start = 0 if columns is None else columns.start
            blocks.setdefault(start, []).append(x.detach().flatten(1).cpu().double())

        handle = self.gates.register_forward_pre_hook(see)
        torch.manual_seed(0)
        try:
            run(self.model, unflatten(leaves, self.form))
        finally:
            handle.remove()
        found = []
        for number in range(max(map(len, blocks.values()), default=1)):
            parts = []
            for _, calls in sorted(blocks.items()):
                parts.append(calls[number if number < len(calls) else 0])
            found.append(torch.cat(parts, dim=1).nan_to_num())
        if found[0].shape[1] != len(self.gates.mean):
            raise SurgeryError("the example does not pass all sites")
        return found


class _Conversions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note which columns of the gates a model makes integers, as ids of a table are.

    Args:
        gates: The gates.
    """

    def __init__(self, gates: LeAP) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gates = gates
        self.outputs: list[tuple[Tensor, int]] = []  # of the gates, with the first column
        self.found: set[int] = set()

    def __enter__(self) -> "_Conversions":
        self.handle = self.gates.register_forward_hook(self._see_output)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.handle.remove()
        self.outputs = []

    def columns(self, count: int) -> Tensor:
        """Return for each column whether it was made integers, (D,)."""
        return torch.tensor([column in self.found for column in range(count)])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and _is_integer(kwargs.get("dtype")):
            self._see_conversion(args[0])
        return func(*args, **kwargs)

    def _see_output(self, _: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        columns = (*args, None)[1]
        self.outputs.append((output, 0 if columns is None else columns.start))

    def _see_conversion(self, value: Tensor) -> None:
        """Note the columns of a part of the gates' output, which shares its memory."""
        for output, start in self.outputs:
            same = value.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
            if same and value.is_floating_point() and output.is_contiguous():
                width = output[0].numel()
                numbers = torch.arange(start, start + width).expand(len(output), width)
                offset = value.storage_offset() - output.storage_offset()
                part = numbers.contiguous().as_strided(value.shape, value.stride(), offset)
                self.found.update(part.flatten().tolist())


def _is_integer(dtype: Any) -> bool:
    is_type = isinstance(dtype, torch.dtype)
    return is_type and not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def _names_of(model: nn.Module, call: Call) -> list[str]:
    """Return the name of each value of a batch: the last key on the way to it, or the argument."""
    arguments = list(inspect.signature(model.forward).parameters)
    names = []
    for keys in _ways_into(call):
        named = [key for key in keys if isinstance(key, str)]
        if not named and isinstance(keys[1], int) and keys[1] < len(arguments):
            named = [arguments[keys[1]]]
        names.append(named[-1] if named else "")
    return names


def _ways_into(batch: Any) -> list[list[Any]]:
    """Return the keys, attributes and positions that lead to each value that `flatten` finds."""
    ways = []
    for path, leaf in tree_flatten_with_path(batch, is_leaf=is_jagged)[0]:
        keys = [next(getattr(part, of) for of in KEYS if hasattr(part, of)) for part in path]
        adapter = adapter_of(leaf)
        inside: list[list[Any]] = [[]]
        if adapter is not None:
            inside = _ways_into(dict(adapter.to_parts(leaf)))
        ways += [keys + more for more in inside]
    return ways


def _varies(leaf: Tensor) -> Tensor:
    """Return for each column of an input whether other values are known, (C,) or ()."""
    if leaf.is_floating_point():
        return torch.ones(leaf.shape[1:2] if leaf.dim() == 2 else (), dtype=torch.bool)
    differs = leaf != leaf[:1]
    return differs.any(0) if leaf.dim() == 2 else differs.any()


def _with_other_values(leaf: Tensor) -> Tensor:
    """Return an input with the values of other rows; a constant number is raised by 1."""
    other = leaf.roll(1, 0)
    if leaf.is_floating_point():
        is_constant = (leaf == leaf[:1]).all(0)
        other = torch.where(is_constant, other + 1, other)
    return other
