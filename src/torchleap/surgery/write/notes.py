"""Notes of a plan: the operations that still read constants in place of dropped fields."""

from torch import fx

from ..._common.text import plural
from ..trace.graph import Trace
from .rewrite import Rewrite

NOTICEABLE = 0.05  # of the parameters: how much more zeros must remove to be worth a hint


def constants_fed(rewritten: Rewrite) -> list[str]:
    """Return which operations still read constants, and why."""
    traced = rewritten.view.trace
    notes = []
    for reader, sources in rewritten.writer.restored.items():
        facts = [rewritten.view.facts[source] for source in dict.fromkeys(sources)]
        constants = plural(sum(int(fact.const.sum()) for fact in facts), "constant")
        notes.append(f"{_name(reader, traced)} {_why(reader)}: {constants} fed (exact).")
    return notes


def _name(node: fx.Node, traced: Trace) -> str:
    """Return the name of an operation, and of the module that it is in."""
    module = traced.module(node)
    if module is not None:
        return f"{node.target} ({type(module).__name__})"
    if node.op == "output":
        return "The output"
    stack = node.meta.get("nn_module_stack") or {}
    inside = next(reversed(stack.values()))[0] if stack else ""
    name = getattr(node.target, "__name__", node.target)
    return f"{name}() in {inside or type(traced.model).__name__}"


def _why(node: fx.Node) -> str:
    """Return why an operation reads columns that were dropped."""
    if getattr(node.target, "__name__", node.target) in ("mul", "multiply"):
        return "multiplies dropped fields with others"
    return "needs all columns"


def hint_at_zeros(before: int, with_means: int, with_zeros: int, change: float) -> list[str]:
    """Return a note on what zeros in place of means would remove, if that is much more.

    Args:
        before: The number of parameters of the model.
        with_means: That of the pruned model.
        with_zeros: That of the model pruned with fill="zero".
        change: The largest change of the output by zeros, on the example.

    >>> hint_at_zeros(100, 54, 52, 0.02)
    []
    """
    if with_means - with_zeros <= NOTICEABLE * before:
        return []
    zeros = f"{1 - with_zeros / before:.0%} of the parameters"
    means = f"{1 - with_means / before:.0%}"
    output = f"change the output on the example by up to {change:.2g}"
    return [f'fill="zero" would remove {zeros} instead of {means}, and {output}.']
