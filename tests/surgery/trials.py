"""A trial of surgery: prune one random model, and compare it with the masked one.

The model is pruned with one batch as its example, and then gets batches of other sizes, values and
lengths, with and without optional parts. It returns what the masked model does, or raises an error
of torchleap.

    >>> trial(3).kind in ("exact", "fed", "refused")
    True
"""

import random
import signal
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import torchleap as tl
from tests.surgery.constructs import FIELDS, WIDTH
from tests.surgery.random_models import OTHERS, RandomModel, constructs_of, double, make_batch
from torchleap.surgery.trial.compare import leaves_of

SECONDS = 60  # of the processor, after which a trial counts as one that hangs

Kind = Literal["exact", "fed", "refused", "inexact", "hang", "crash"]


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        kind: "exact" and "fed" models return what the masked one does, or raise an error of
            torchleap; "refused" ones are not pruned. The others must not occur: "inexact" returned
            something else, "hang" took too long, "crash" raised another error.
        seed: With the constructs it makes the same trial again.
        constructs: What the model is made of.
        detail: What happened.
        raised: How many of the batches ended in an error of the pruned model alone.
    """

    kind: Kind
    seed: int
    constructs: tuple[str, ...]
    detail: str = ""
    raised: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the promise was kept."""
        return self.kind in ("exact", "fed", "refused")


class _HangError(BaseException):
    """The time is over; no handler of the code under test may catch it."""


def trial(seed: int, constructs: Collection[str] | None = None) -> Outcome:
    """Prune one random model, and compare it with the masked one on other batches.

    Args:
        seed: Makes the model, the gates and the batches.
        constructs: What it is made of; chosen by the seed if left out.
    """
    names = constructs_of(seed) if constructs is None else tuple(constructs)
    try:
        with _alarm(), torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return _trial(seed, names)
    except _HangError:
        return Outcome("hang", seed, names, f"longer than {SECONDS} s")


def _trial(seed: int, names: tuple[str, ...]) -> Outcome:
    rng = random.Random(seed)
    model = RandomModel(rng, list(names)).to(
        rng.choice([torch.float32, torch.float32, torch.float64])
    )
    options = {
        "mask": rng.random() < 0.3,
        "weight": rng.random() < 0.3,
        "rows": rng.choice([1, 4, 16]),
    }
    plugin = tl.attach(
        model, dict.fromkeys(FIELDS, WIDTH), at="join", side="output", warmup=rng.choice([1, 100])
    )
    if "hook behind the gates" in names:
        model.join.register_forward_hook(double)
    for step in range(3):
        model.train()(*make_batch(step, **{**options, "rows": 16}))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.rand(len(FIELDS)) * 1.3 - 0.3)
    selection = plugin.select(share=rng.choice([0.4, 0.6, 0.8]))
    try:
        small = plugin.prune(selection, example=make_batch(seed + 1, **options)).eval()
    except tl.TorchleapError as error:
        return Outcome("refused", seed, names, str(error))
    except Exception as error:
        return Outcome("crash", seed, names, f"prune() raised {type(error).__name__}: {error}")
    kind: Kind = "fed" if "constants are fed instead" in str(tl.plan_of(small)) else "exact"
    raised = 0
    for place, changes in enumerate(OTHERS):
        call = make_batch(seed + 100 + place, **{**options, **changes})
        problem = _compare(plugin, selection, small, call)
        if isinstance(problem, tl.TorchleapError):
            raised += 1
        elif isinstance(problem, Exception):
            detail = f"with {options}, then {changes}, "
            detail += f"the pruned model raised {type(problem).__name__}: {problem}"
            return Outcome("crash", seed, names, detail, raised)
        elif problem:
            return Outcome(
                "inexact", seed, names, f"{kind}, with {options}, then {changes}: {problem}", raised
            )
    return Outcome(kind, seed, names, str(tl.plan_of(small)), raised)


def _compare(
    plugin: Any, selection: Any, small: nn.Module, call: tuple[Any, ...]
) -> str | Exception:
    """Say what is not equal; return the error, if the pruned model raises one."""
    model = plugin.model.eval()
    model.zero_grad()
    small.zero_grad()
    try:
        with plugin.masked(selection):
            expected = _numbers(model(*call))
            _backward(expected)
    except Exception:  # a batch that the model does not take
        plugin.gates.context.end()
        return ""
    try:
        found = _numbers(small(*call))
        _backward(found)
    except Exception as error:
        return error
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        if not _is_close(one, other):
            wanted = other.flatten()[:3].tolist()
            return f"an output is {one.flatten()[:3].tolist()} instead of {wanted}"
    return _compare_gradients(model, small)


def _numbers(output: Any) -> list[Tensor]:
    return [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]


def _backward(outputs: list[Tensor]) -> None:
    real = [output for output in outputs if output.is_floating_point()]
    torch.stack(
        [(output * torch.arange(1.0, len(output) + 1).to(output)[:, None]).sum() for output in real]
    ).sum().backward()


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool((one != other).float().mean() < 0.02)  # a sign near 0 may be another one
    size = other.abs().nanmedian() + other.abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return bool((same | ((one - other).abs() <= 2e-4 * size)).all())


def _compare_gradients(model: nn.Module, small: nn.Module) -> str:
    """Fine-tuning must train what training did."""
    before = dict(model.named_parameters())
    for name, parameter in small.named_parameters():
        old = before.get(name)
        if old is None or old.shape != parameter.shape or old.grad is None:
            continue
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        trained = (
            found != 0
        )  # what only weighs dropped fields is folded into a bias, and trained there
        lost = bool(old.grad.any()) and not bool(trained.any())
        if lost or float((found - old.grad)[trained].norm()) > 1e-3 * float(old.grad.norm()):
            return f"the gradient of {name} differs"
    return ""


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise in the main thread when the time is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: Any) -> None:
        raise _HangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # other processes do not count
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
