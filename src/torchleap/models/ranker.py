"""The ranking model of a task: fields side by side, then the network of a backbone."""

from torch import Tensor, nn

from ..data.task import Task
from .backbones import Backbone, named
from .inputs import FieldInputs


class Ranker(nn.Module):
    """A ranking model: all fields of a batch side by side, then a backbone's network.

    Gates belong between the two: `tl.attach(model, task.fields, at="net")`.

    **Shape**

    - Input: ids (B, slots of ids) and numbers (B, slots of numbers).
    - Output: the raw outputs, (B,) for one output per row, else (B, outputs).
    """

    def __init__(self, inputs: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = net

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Return the raw outputs of each row, such as its log odds."""
        outputs: Tensor = self.net(self.inputs(ids, numbers))
        return outputs


def build(model: str | Backbone, task: Task, *, sparse: bool | None = None) -> Ranker:
    """Return a new model for a task, with as many outputs as its objective needs.

    Args:
        model: A backbone, or its name.
        task: The task, whose columns and fields are the model's inputs.
        sparse: Whether tables have sparse gradients; None means that large ones do.
    """
    inputs = FieldInputs(task.columns, sparse=sparse)
    return Ranker(inputs, named(model).net(task.fields, task.objective.output_width))
