"""Sites: where in a model the gates sit, and the hooks that put them there.

The gates are registered as a child of a layer without children inside the site, never of a container: a `Sequential` that is
itself a site must not run them as one more layer. A hook finds them from the module that it is called with, so that copies,
replicas and unpickled models use their own gates.

A collection of embedding tables is another matter: TorchRec's DistributedModelParallel puts a sharded one in its place, see
`CollectionSite`.
"""

import copy
import inspect
import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from .._common.errors import AttachError, FieldError, nearest
from ..distributed.torchrec import (
    bags_of,
    blocks_of,
    is_awaitable,
    is_collection,
    is_jagged,
    is_keyed,
    is_sharded,
    rows_of,
    take_rows,
    waited,
    when_ready,
    with_values,
)
from ..fields import Field, Fields
from ..gates.context import Passed
from ..gates.leap import LeAP
from ..mix import join as side_by_side

CHILD = "torchleap"  # the gates' name in the layer that holds them
HIDDEN = "_ddp_params_and_buffers_to_ignore"  # DDP's name for tensors of a module that it is to leave alone
Side = Literal["input", "output"]


class Site:
    """A hook on one named submodule: what enters or leaves it passes the gates."""

    def __init__(self, at: str, side: Side, module: nn.Module) -> None:
        self.at = at
        self.side = side
        self.home = _home(
            at, module
        )  # the names that lead from the module to the layer that holds the gates
        self.held = (*self.home, CHILD)  # and from the module with the hook to the gates
        self.handles: list[RemovableHandle] = []
        self.siblings: tuple[Site, ...] = (
            self,
        )  # all sites whose columns are gated together, in the order of their columns
        self.columns: slice | None = (
            None  # the block of columns that arrives here, once it is known; a lone site takes all
        )
        self.first_parameter = next(iter(inspect.signature(module.forward).parameters), "")

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead from the model to the gates."""
        return (*_names(self.at), *self.held)

    @property
    def label(self) -> str:
        """How messages call this site."""
        return f"at={self.at!r} ({self.side})"

    def hold(self, model: nn.Module, gates: LeAP) -> None:
        """Register the gates and the hook."""
        module = find_module(model, self.at)
        home = _walk(module, self.home)
        home.add_module(CHILD, gates)
        if self.side == "input":
            self.handles = [module.register_forward_pre_hook(self.gate_input, with_kwargs=True)]
        else:
            self.handles = [module.register_forward_hook(self.gate_output)]

    def release(self, module: nn.Module) -> None:
        """Undo `hold`."""
        for handle in self.handles:
            handle.remove()
        with suppress(AttachError):  # a layer that was replaced has taken the gates along
            _walk(module, self.held[:-1])._modules.pop(CHILD, None)  # two sites may share the layer

    def gates(self, module: nn.Module) -> LeAP:
        """The gates that belong to this very module."""
        held = _walk(module, self.held)
        if not isinstance(held, LeAP):
            raise AttachError(
                f"{self.label}: expected the gates at {CHILD!r}, but found {type(held).__name__}."
            )
        return held

    def gate_input(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Gate the first argument of the call."""
        value, name = self.first_argument(args, kwargs)
        gated = self.gate(self.gates(module), waited(value))
        return ((gated, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: gated})

    def first_argument(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """What the module is called with: the first argument by position or, with its name, by keyword."""
        if args:
            return args[0], None
        if not kwargs:
            raise AttachError(
                f"{self.label}: expected an input to gate, but the module is called without one. Use side='output'."
            )
        name = self.first_parameter if self.first_parameter in kwargs else next(iter(kwargs))
        return kwargs[name], name

    def gate_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Gate what the module returns."""
        return self.gate_when_ready(self.gates(module), output)

    def gate_when_ready(self, gates: LeAP, value: Any) -> Any:
        """Gate a value, or what an awaitable will bring."""
        return (
            when_ready(value, partial(self.gate, gates))
            if is_awaitable(value)
            else self.gate(gates, value)
        )

    def gate(self, gates: LeAP, value: Any) -> Any:
        """Gate what carries fields; what another site has gated in this pass is not gated twice."""
        if len(self.siblings) == 1:
            return self.gate_value(gates, value)
        state = _state(gates, value)
        gates.context.restart_at(self.at)
        for at, (earlier, earlier_state, output) in gates.context.passed():
            if same_tensor(earlier, value) and earlier_state == state:
                self.columns = next(site.columns for site in self.siblings if site.at == at)
                return output.reshape(value.shape) if earlier is not value else output
        for site in self.siblings:
            if (
                self.columns is not None
                and site.columns == self.columns
                and gates.context.reached(site.at)
            ):
                raise AttachError(
                    f"{self.label} received the same tensor as at={site.at!r} before, but now another one. "
                    "Dropout, a copy or a change in place between them? "
                    "Choose the output of the submodule that produces the tensor (side='output')."
                )
        if self.columns is None:
            self.columns = self.find_columns(gates.arriving_fields(), value)
        output = self.gate_value(gates, value)
        gates.context.remember(self.at, Passed(value, state, output))
        return output

    def gate_value(self, gates: LeAP, value: Any) -> Any:
        """Gate a tensor, a dict of tensors or a keyed tensor."""
        value = waited(value)  # one that was seen in passing, by attach(example=...)
        if is_keyed(value):
            return self.gate_keyed(gates, value)
        return (
            self.gate_dict(gates, value)
            if isinstance(value, Mapping)
            else self.gate_tensor(gates, value)
        )

    def find_columns(self, fields: Fields, value: Any) -> slice:
        """Which columns of the fields arrive at this one of several sites."""
        value = blocks_of(value, self.label) if is_keyed(value := waited(value)) else value
        if isinstance(value, Mapping):
            places = [fields.columns(name) for name in fields.names if name in value]
            start, width = (
                (places[0].start if places else 0),
                sum(place.stop - place.start for place in places),
            )
            if places and places[-1].stop - start != width:
                names = [name for name in fields.names if name in value]
                raise FieldError(
                    f"{self.label} receives {names}, which are not neighbours in fields=. List each site's fields together."
                )
        elif not isinstance(value, Tensor):
            raise _not_fields(value, self.label)
        else:
            width = value.flatten(1).shape[1]
            start = (
                0
                if width == fields.dims and not any(site.columns for site in self.siblings)
                else self._first_column()
            )
        columns = slice(start, start + width)
        last = self is self.siblings[-1]
        if (
            not width
            or columns.stop > fields.dims
            or (last and not isinstance(value, Mapping) and columns.stop != fields.dims)
        ):
            raise FieldError(
                f"{self.label} receives {width} columns, {columns.stop} with those of the sites before it, "
                f"but the fields sum to {fields.dims}. {fields.describe()}"
            )
        fields.gates_of(columns)  # raises if they cut through a field or a group
        return columns

    def _first_column(self) -> int:
        start = 0
        for site in self.siblings[: self.siblings.index(self)]:
            if site.columns is None:
                raise AttachError(
                    f"{self.label} is reached before at={site.at!r}, whose width is not known yet. "
                    "List the sites in the order in which the model reaches them, or give example= to attach()."
                )
            start = max(start, site.columns.stop)
        return start

    def gate_tensor(self, gates: LeAP, value: Any) -> Tensor:
        """Gate the columns of (B, D) or (B, F, E)."""
        if gates.fields is None or not isinstance(value, Tensor):
            raise _not_fields(value, self.label)
        output: Tensor = gates(value, self.columns)
        return output

    def gate_dict(self, gates: LeAP, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gate the entries of a dict that are fields; the others pass untouched."""
        if gates.fields is None:
            self.learn_fields(gates, value)
        fields = gates.arriving_fields()
        names = [name for name in fields.names if len(self.siblings) == 1 or name in value]
        joined = join(value, fields, names, self.label)
        widths = [fields[name].width for name in names]
        blocks = gates(joined, self.columns).split(widths, dim=1)
        gated = {
            n: block.reshape(value[n].shape).to(value[n].dtype)
            for n, block in zip(names, blocks, strict=True)
        }
        if type(value) is dict:
            return {**value, **gated}
        if not isinstance(value, MutableMapping):
            raise AttachError(
                f"{self.label}: expected a dict that can be copied and changed, but found {type(value).__name__}."
            )
        output = copy.copy(value)
        output.update(gated)
        return output

    def learn_fields(self, gates: LeAP, value: Any) -> None:
        """Lay out the gates by what has come with the first batch."""
        if DistributedDataParallel._get_active_ddp_module() is not None:  # type: ignore[no-untyped-call]
            raise FieldError(
                f"{self.label} learns its fields from the first batch, but DistributedDataParallel had to know the gates before. "
                "Give fields=, or example=, to attach()."
            )
        gates.lay_out(fields_of(value, self.label))

    def gate_keyed(self, gates: LeAP, value: Any) -> Any:
        """Gate the blocks of a keyed tensor, each by its name: the order of the keys may be another in every model and batch."""
        if gates.fields is None:
            self.learn_fields(gates, value)
        fields, values = gates.arriving_fields(), value.values()
        if gates.context.held_out:  # tables that are optimized within the backward pass would learn, although asked for no gradient
            values = values.detach()
        if (*value.keys(), *value.length_per_key()) == (*fields.names, *fields.widths):
            return with_values(value, gates(values, self.columns).to(values.dtype))
        blocks = blocks_of(with_values(value, values), self.label)
        names = [name for name in fields.names if len(self.siblings) == 1 or name in blocks]
        refuse(
            blocks,
            fields,
            names,
            self.label,
            [f"{name!r} is no field" for name in blocks if name not in fields],
        )
        mixed = gates(join(blocks, fields, names, self.label), self.columns).split(
            [fields[name].width for name in names], dim=1
        )
        gated = dict(zip(names, mixed, strict=True))
        return with_values(value, side_by_side([gated[name] for name in blocks]).to(values.dtype))


class CollectionSite(Site):
    """The output of a collection of embedding tables.

    DistributedModelParallel replaces the collection, and loses all that hangs on it. So the gates live beside it, in the module
    around it, and the hook hangs on the model, which puts another one on whatever collection stands there, while it runs.
    """

    def __init__(self, at: str, model: nn.Module) -> None:
        super().__init__(at, "output", find_module(model, at))
        self.held = (*_beside(at, model), CHILD)
        self.armed: list[RemovableHandle] = []

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead from the model to the gates."""
        return self.held

    def hold(self, model: nn.Module, gates: LeAP) -> None:
        """Register the gates and the hooks."""
        if gates.fields is None:  # DDP will ask how many gates there are, before the first batch
            gates.lay_out(fields_of_collection(find_module(model, self.at), self.label))
        _walk(model, self.held[:-1]).add_module(CHILD, gates)
        self.handles = [
            model.register_forward_pre_hook(self.arm),
            model.register_forward_hook(self.disarm, always_call=True),
        ]

    def arm(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Hang a hook on the collection."""
        gates, collection = self.gates(model), _walk(model, _names(self.at))
        self.armed.append(
            collection.register_forward_hook(
                lambda _, args, output: self.gate_when_ready(gates, output)
            )
        )

    def disarm(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Take it down."""
        if self.armed:
            self.armed.pop().remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "armed": []}


def site_at(model: nn.Module, at: str, side: Side) -> Site:
    """A site at the submodule called `at`; nothing is changed yet."""
    module = find_module(model, at)
    collection = is_collection(module) or is_sharded(module)
    if collection and side == "input":
        raise AttachError(
            f"at={at!r} is a collection of embedding tables, which receives ids. Use side='output'."
        )
    if is_sharded(module) and (
        HIDDEN in vars(model)
        or any(isinstance(m, DistributedDataParallel) for m in model.modules())
    ):
        raise AttachError(
            f"at={at!r} is sharded, and the model around it is wrapped in DistributedDataParallel already, which would leave out "
            "the gates' gradient. Attach before DistributedModelParallel(model), or call it with init_data_parallel=False, "
            "attach, and then init_data_parallel()."
        )
    return (
        CollectionSite(at, model) if collection and module is not model else Site(at, side, module)
    )


EXAMPLE_ROWS = 8


class Whole:
    """Hooks on the whole model: they keep a few rows, to try surgery on, and tell the gates where a pass begins and ends."""

    def __init__(self, sites: tuple[Site, ...], path: tuple[str, ...]) -> None:
        self.sites = sites
        self.path = path  # from the model to the gates
        self.example: Call | None = None
        self.handles: list[RemovableHandle] = []

    def hold(self, model: nn.Module) -> None:
        """Register the hooks."""
        first = model.register_forward_pre_hook(
            self.begin, with_kwargs=True, prepend=True
        )  # the batch as it is given
        self.handles.append(first)
        self.handles.append(model.register_forward_hook(self.end))

    def release(self, model: nn.Module) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a few rows of the first batch; hear what the other ranks told in the pass before."""
        if torch.compiler.is_compiling():
            return
        if self.example is None:
            self.example = few_rows((args, kwargs))
        if (gates := self._gates(model)) is not None:
            gates.wait_for_ranks()
            gates.context.begin()

    def end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Drop the tensors of this pass."""
        gates = self._gates(model)
        if gates is not None:
            gates.context.end()

    def _gates(self, model: nn.Module) -> LeAP | None:
        with suppress(AttachError):  # a layer that was replaced has taken the gates along
            gates = _walk(model, self.path)
            return gates if isinstance(gates, LeAP) else None
        return None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, and above all a file, takes no rows of data along."""
        return {**self.__dict__, "example": None}


Call = tuple[
    tuple[Any, ...], dict[str, Any]
]  # the arguments of one call of a model, by position and by name


def as_call(example: Any) -> Call:
    """A batch as the model takes it; a tuple is several arguments."""
    return (example if isinstance(example, tuple) else (example,)), {}


def few_rows(call: Call, rows: int | None = EXAMPLE_ROWS) -> Call:
    """Copy the first rows of a batch, where all its tensors have the same number of rows; else the batch.

    Args:
        rows: How many; None is all of them.
    """
    alike = len({rows_of(leaf) for leaf in tree_leaves(call, is_leaf=is_jagged)} - {None}) == 1

    def copied(leaf: Any) -> Any:
        if is_jagged(leaf):
            return take_rows(leaf, torch.arange(leaf.stride())[: rows if alike else None])
        if not isinstance(leaf, Tensor):
            return leaf
        return (leaf[:rows] if alike and leaf.dim() else leaf).detach().clone()

    few: Call = tree_map(copied, call, is_leaf=is_jagged)
    return few


def same_tensor(one: Any, other: Any) -> bool:
    """Whether two tensors are one: the same object, or the same memory in another shape."""
    if one is other:
        return True
    if torch.compiler.is_compiling() or not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    alike = (
        one.numel() == other.numel()
        and one.dtype == other.dtype
        and one.requires_grad == other.requires_grad
    )
    placed = (one.shape, one.stride()) == (other.shape, other.stride()) or (
        one.is_contiguous() and other.is_contiguous()
    )
    return alike and placed and one.data_ptr() == other.data_ptr()


def _state(gates: LeAP, value: Any) -> tuple[Any, ...]:
    """What has to be unchanged for a gated tensor to serve another site: mode, gradients, and the values themselves."""
    if torch.compiler.is_compiling() or not isinstance(value, Tensor) or value.is_inference():
        return (gates.training, torch.is_grad_enabled())
    return (gates.training, torch.is_grad_enabled(), value._version)


def _not_fields(value: Any, label: str) -> AttachError | FieldError:
    if isinstance(value, Tensor):
        return FieldError(
            f"{label} receives a tensor, which does not name its fields. Give fields= to attach()."
        )
    return AttachError(
        f"{label}: expected a tensor, a dict of tensors or a KeyedTensor, but found {type(value).__name__}. "
        "Choose a place where the fields pass as one of these, such as a layer behind it."
    )


def fields_of(value: Any, label: str) -> Fields:
    """Names and widths of the floating-point entries (B, d) or (B,) of a dict, or of a keyed tensor."""
    value = blocks_of(value, label) if is_keyed(value := waited(value)) else value
    if not isinstance(value, Mapping):
        raise _not_fields(value, label)
    found = {
        name: 1 if entry.dim() == 1 else entry.shape[1]
        for name, entry in value.items()
        if isinstance(entry, Tensor) and entry.is_floating_point() and 1 <= entry.dim() <= 2
    }
    if not found:
        kinds = {
            name: str(getattr(entry, "dtype", type(entry).__name__))
            for name, entry in value.items()
        }
        raise FieldError(
            f"{label} expects a dict with floating-point tensors (rows, width), but receives {kinds}."
        )
    return Fields(found)


def fields_of_collection(module: Any, label: str) -> Fields:
    """Names and widths of what a collection of embedding tables returns."""
    if not is_collection(module):
        raise AttachError(
            f"{label} is sharded, and does not tell its fields. Give fields=, name -> width, to attach()."
        )
    return Fields({bag.name: bag.width for bag in bags_of(module.embedding_bag_configs())})


def refuse(
    value: Mapping[str, Any],
    fields: Fields,
    names: list[str],
    label: str,
    others: Sequence[str] = (),
) -> None:
    """Raise every problem of every entry, and others, in one error."""
    problems = [*(problem for name in names if (problem := _problem(value, fields[name]))), *others]
    if problems:
        raise FieldError(
            f"{label}: " + "; ".join(problems) + f". Found: {', '.join(map(repr, value))}."
        )


def join(value: Mapping[str, Any], fields: Fields, names: list[str], label: str) -> Tensor:
    """The named entries side by side, (B, D); every problem of every entry in one error."""
    refuse(value, fields, names, label)
    rows = {name: value[name].shape[0] for name in names}
    if len(set(rows.values())) > 1:
        raise FieldError(
            f"{label}: expected the same number of rows in every field, but found {rows}."
        )
    return side_by_side(
        [
            value[name].flatten(1) if value[name].dim() > 1 else value[name][:, None]
            for name in names
        ]
    )


def _problem(value: Mapping[str, Any], field: Field) -> str | None:
    entry = value.get(field.name)
    if entry is None:
        return f"the field {field.name!r} is missing"
    if not isinstance(entry, Tensor) or not entry.is_floating_point():
        return f"{field.name!r} should be a floating-point tensor, but is {getattr(entry, 'dtype', type(entry).__name__)}"
    if entry.dim() == 0:
        return f"{field.name!r} should have rows, but is a single number"
    width = math.prod(entry.shape[1:])
    return (
        None
        if width == field.width
        else f"{field.name!r} should be {field.width} wide, but is {width}"
    )


def find_module(model: nn.Module, at: str) -> nn.Module:
    """The submodule called `at`, or an error with the nearest names."""
    if not isinstance(at, str):
        raise AttachError(
            f"at= must be the name of a submodule, or a list of names, but is {at!r}."
        )
    known = dict(model.named_modules(remove_duplicate=False))
    if at not in known:
        raise AttachError(
            f"The model has no submodule at={at!r}. {nearest(at, [name for name in known if name])}"
        )
    module: nn.Module = known[at]
    if type(module).forward is nn.Module.forward:
        members = [f"{at}.{name}".lstrip(".") for name, _ in module.named_children()]
        raise AttachError(
            f"at={at!r} is a {type(module).__name__} without a forward of its own, so it is never called itself. "
            f"Choose one of its members: {', '.join(members)}."
        )
    return module


def hooks_of(model: nn.Module) -> Iterator[tuple[nn.Module, "Site | Whole"]]:
    """Everything that is hooked into the model, with the module that holds the hook."""
    for module in model.modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, Site | Whole):
                yield module, owner


def sites_of(model: nn.Module) -> Iterator[tuple[nn.Module, Site]]:
    """Every site that is attached to the model, with its module."""
    return ((module, hook) for module, hook in hooks_of(model) if isinstance(hook, Site))


CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule


def _home(at: str, module: nn.Module) -> tuple[str, ...]:
    for path, layer in module.named_modules():
        if not any(True for _ in layer.children()) and not isinstance(layer, CONTAINERS):
            _check_free(at, layer)
            return _names(path)
    raise AttachError(
        f"at={at!r} is an empty {type(module).__name__}, which cannot hold the gates. Put an nn.Identity() there."
    )


def _beside(at: str, model: nn.Module) -> tuple[str, ...]:
    """The names of the module nearest around a collection that is no container, or else of a layer elsewhere."""
    names, collection = _names(at), find_module(model, at)
    around = [names[:depth] for depth in reversed(range(len(names)))]
    inside = set(collection.modules())
    elsewhere = [
        _names(path)
        for path, m in model.named_modules()
        if m not in inside and not any(True for _ in m.children())
    ]
    for path in (*around, *elsewhere):
        layer = _walk(model, path)
        if not isinstance(layer, CONTAINERS):
            _check_free(at, layer)
            return path
    raise AttachError(
        f"at={at!r} stands alone in a container, which cannot hold the gates. Put an nn.Identity() beside it."
    )


def _check_free(at: str, layer: nn.Module) -> None:
    if hasattr(layer, CHILD):
        raise AttachError(f"at={at!r}: {type(layer).__name__} has an attribute {CHILD!r} already.")


def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def _walk(module: nn.Module, path: tuple[str, ...]) -> nn.Module:
    for name in path:
        child = module._modules.get(name)
        if child is None:
            raise AttachError(
                f"The gates are gone: {type(module).__name__} has no {name!r} any more, as if a layer was replaced. "
                "Detach before changing layers, and attach again."
            )
        module = child
    return module
