"""Build a model from its description: layers of PyTorch and a list of checked steps, nothing else.

Whatever a file contains, it names functions, methods and layers of closed lists, and its names are
identifiers; so it can at worst describe a useless model. Nothing of it becomes Python source.
"""

import keyword
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from .._common.errors import SurgeryError
from .interpreter import DEVICE, Node, Program, Ref
from .layers import build_layer
from .names import DTYPES, FUNCTIONS, KEYWORDS, METHODS, is_path, works_in_place

DEEPEST = 32  # levels of lists in lists
OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


class LoadedModel(nn.Module):
    """A model from a file.

    Each has a class of its own, for its name and the arguments of its forward().

    Attributes:
        torchleap_graph: The description that it was built from, as JSON has it.
        torchleap_origin: The other entries of the manifest, to be saved again with the model.
    """

    torchleap_graph: ClassVar[dict[str, Any]]
    torchleap_origin: dict[str, Any]

    def __reduce__(self) -> Any:
        """Copy and pickle the description; the class is made again."""
        return _empty, (type(self).__name__, type(self).torchleap_graph), self.__dict__


def from_json(
    content: Any, tensors: Mapping[str, Tensor], trainable: Mapping[str, bool], name: str
) -> LoadedModel:
    """Build a model from its description and tensors.

    Args:
        content: The description, as JSON has it.
        tensors: The weights and buffers, by name.
        trainable: The tensors that are parameters, and whether they require gradients.
        name: The name of the model's class.
    """
    layers = content["layers"]
    model = _empty(name, content)
    for path, described in layers.items():
        _place(model, path, build_layer(described, lambda value: _decode(value, set()), _check))
    shapes = {path: _form(tensor) for path, tensor in _tensors_of(model)}
    for path, tensor in tensors.items():
        _check(is_path(path), f"the path {path!r}")
        shape = tuple(tensor.shape)
        same = shapes.get(path, _form(tensor)) == _form(tensor)
        _check(same, f"a tensor {path} of the shape {shape}, where its layer has another one")
        _put(model, path, tensor, trainable.get(path))
    absent = [path for path, tensor in _tensors_of(model) if tensor.is_meta]
    _check(not absent, f"no weights for {', '.join(absent[:3])}")
    called = paths_of(content, "call_module")
    read = paths_of(content, "get_attr")
    unknown = [*called - set(layers), *read - {*tensors, "training"}]
    _check(not unknown, f"{', '.join(map(repr, unknown[:3]))} in its graph, but nowhere else")
    return model


def paths_of(content: Mapping[str, Any], op: str) -> set[str]:
    """Return the paths that the nodes of this kind read or call."""
    return {node[2] for node in content["nodes"] if node[1] == op}


def _empty(name: str, content: dict[str, Any]) -> LoadedModel:
    """Return a model without layers, whose forward() runs the nodes."""
    program = Program(_checked(content["nodes"]))

    def forward(self: LoadedModel, *given: Any, **named: Any) -> Any:
        return program.run(self, given, named)

    # the signature that inspect and torch.fx see
    forward.__wrapped__ = program.arguments  # type: ignore[attr-defined]
    members = {"forward": forward, "torchleap_graph": content}
    made: LoadedModel = type(name if _is_name(name) else "Pruned", (LoadedModel,), members)()
    return made


def _checked(nodes: Any) -> list[Node]:
    """Return the nodes, if each reads only earlier ones, and the last is the output."""
    _check(isinstance(nodes, list) and bool(nodes), "no nodes")
    known: set[str] = set()
    found = []
    for name, op, target, args, kwargs in nodes:
        _check(_is_name(name) and name not in known, f"the node {name!r}")
        _check(op in OPS, f"the node {op!r}")
        earlier = set() if op == "placeholder" else known  # a default is a constant
        given = _decode(args, earlier)
        named = _decode(kwargs, earlier)
        plain = isinstance(given, tuple) and isinstance(named, dict)
        _check(plain, f"arguments of the node {name}")
        wrong = [key for key in named if key not in KEYWORDS]
        _check(not wrong, f"the keyword {str(wrong[:1])[1:-1]!s:.40}")
        found.append(Node(name, op, _target(op, target, given, named), given, named))
        known.add(name)
    first_output = [node.op for node in found].index("output")
    _check(first_output == len(found) - 1, "another output than the last node")
    arguments = [node.target for node in found if node.op == "placeholder"]
    names = {target.lstrip("*") for target in arguments}
    _check(len(names) == len(arguments), "two arguments of one name")
    stars = [target.count("*") for target in arguments]
    several = any(stars.count(number) > 1 for number in (1, 2))
    _check(stars == sorted(stars) and not several, "arguments in another order than Python's")
    return found


def _target(op: str, target: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the target of a node, if a model may call or read it."""
    _check(isinstance(target, str), f"the target {target!r:.40}")
    if op == "call_function":
        _check(target in FUNCTIONS, f"the function {target!r}")
        in_place = works_in_place(FUNCTIONS[target], given, named)
        _check(not in_place, f"the function {target!r} that changes its argument")
        return FUNCTIONS[target]
    if op == "call_method":
        of_a_result = bool(given) and isinstance(given[0], Ref)
        _check(target in METHODS and of_a_result, f"the method {target!r}")
    elif op == "call_module":
        _check(is_path(target), f"the path {target!r}")
    elif op == "get_attr":
        _check(target == "training" or is_path(target), f"the path {target!r}")
    elif op == "placeholder":
        name = target.removeprefix("*").removeprefix("*")
        _check(_is_name(name) and len(given) <= 1, f"the argument {target!r}")
    else:
        _check(len(given) == 1, "an output of several values")
    return target


def _is_name(name: object) -> bool:
    """Return whether it is an identifier without a meaning of its own in Python."""
    plain = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    return plain and not str(name).startswith("__") and name != "self"


def _check(holds: bool, found: str) -> None:
    if not holds:
        raise SurgeryError(
            f"The manifest describes a model with {found}, which torchleap does not build."
        )


def _decode(value: Any, known: set[str], depth: int = 0) -> Any:
    """Return a value as it was before it became JSON."""
    _check(depth < DEEPEST, f"values within values, more than {DEEPEST} deep")
    if isinstance(value, list):
        return [_decode(part, known, depth + 1) for part in value]
    if not isinstance(value, dict):
        _check(not isinstance(value, int) or abs(value) < 1 << 63, "a number of more than 64 bits")
        return value
    ((kind, part),) = value.items()
    if kind == "node":
        computed = isinstance(part, str) and part in known
        _check(computed, f"the node {part!r:.40} before it is computed")
        return Ref(part)
    if kind == "dtype":
        _check(isinstance(part, str) and part in DTYPES, f"the dtype {part!r:.40}")
        return DTYPES[part]
    if kind == "float":
        _check(part in ("nan", "inf", "-inf"), f"the number {part!r:.40}")
        return float(part)
    if kind == "device":
        _check(part == "weights", f"the device {part!r:.40}")
        return DEVICE
    if kind == "ellipsis":
        return ...
    return _decode_many(kind, part, known, depth + 1)


def _decode_many(kind: str, part: Any, known: set[str], depth: int) -> Any:
    """Return a slice, a tuple or a dict as it was before it became JSON."""
    known_kind = kind in ("slice", "tuple", "dict") and isinstance(part, list)
    _check(known_kind, f"a value of kind {kind!r:.40}")
    if kind == "dict":
        keys = [_decode(key, set(), depth) for key, _ in part]  # a key is never a result of a node
        entries = [_decode(entry, known, depth) for _, entry in part]
        return dict(zip(keys, entries, strict=True))
    parts = tuple(_decode(entry, known, depth) for entry in part)
    if kind == "tuple":
        return parts
    _check(len(parts) == 3, f"a slice of {len(parts)} parts")
    return slice(*parts)


def _tensors_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _form(tensor: Tensor) -> tuple[Sequence[int], bool]:
    """Return what the tensor of a layer must have in common with the one from the file."""
    return tuple(tensor.shape), tensor.is_floating_point()


def _put(model: nn.Module, path: str, tensor: Tensor, takes_gradients: bool | None) -> None:
    parent, _, last = path.rpartition(".")
    holder = _container(model, parent)
    if takes_gradients is None:
        holder.register_buffer(last, tensor)
    elif last in holder._parameters:  # recurrent layers keep a list of theirs
        setattr(holder, last, nn.Parameter(tensor, bool(takes_gradients)))
    else:
        holder.register_parameter(last, nn.Parameter(tensor, bool(takes_gradients)))


def _container(model: nn.Module, path: str) -> nn.Module:
    module = model
    for name in path.split(".") if path else []:
        if name not in module._modules:
            module.add_module(name, nn.Module())
        child = module._modules[name]
        assert child is not None
        module = child
    return module


def _place(model: nn.Module, path: str, layer: nn.Module) -> None:
    _check(is_path(path), f"the path {path!r:.80}")
    parent, _, name = path.rpartition(".")
    _container(model, parent).add_module(name, layer)
