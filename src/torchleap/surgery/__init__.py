"""Cut the dropped fields out of a model: plan, print, check, apply.

The shelves; each imports only from those before it:

- `trial`: run a model on batches, and compare outputs up to rounding.
- `runtime`: the functions that pruned models call at each batch.
- `trace`: turn the model into a graph.
- `rules`: one rule per kind of operation, how it gets smaller.
- `write`: write the new graph and build the pruned model.
- `labels`: compare the names of fields with the inputs that move their columns.
- `optimizers`, `holdings`: carry over the optimizers and loops that the model holds.
- `recipe`, `plan`, `prepare`: try the ways to make the pruned model, and describe the best one.
"""

from .cuts import Cut
from .plan import Fill, Plan, plan_of
from .prepare import make_plan
from .write.unread import Unread

__all__ = ["Cut", "Fill", "Plan", "Unread", "make_plan", "plan_of"]
