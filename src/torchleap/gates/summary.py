"""The state of gates in words: one line, a table of all fields, and why none has moved."""

import torch

from .._common.text import plural, table
from ..fields import Field
from .guard import trainer_of
from .leap import LeAP
from .learner import GateLearner
from .trainer import GateTrainer

OPEN = 0.5  # a gate below this is closed
STILL_MOVING = 0.95  # of the gate at the start: below this, gates move, and not by noise alone
USUAL_STEPS = 150  # in which Adam moves a useless gate by 1 at a rate of 1e-2, half as many again
ON_ITS_WAY = 0.25  # of the way of useful gates: one that has moved down by less is not closing
HEAD = ["field", "gate", "width", "divergence", "sparsity", "penalty"]


def progress(gates: LeAP) -> str:
    """Return how far the training of the gates is, as the end of a sentence."""
    if gates.warming_up:
        return f"warming up, batch {int(gates.steps.max())} of {gates.settings.warmup}"
    if not gates.moved:
        return "gates not moved yet"
    scores = gates.scores().values()
    count = sum(score >= 0.5 for score in scores)
    return f"{count:,} open, {len(scores) - count:,} closed"


def table_of(gates: LeAP) -> str:
    """Return a table with a row per field, the most open gate first."""
    gate = gates.field_gate
    columns = zip(
        gates.known_fields(),
        gates.scores().values(),
        gates.divergences()[gate].tolist(),
        gates.sparsity()[gate].tolist(),
        gates.weights()[gate].tolist(),
        strict=True,
    )
    rows = sorted(columns, key=lambda row: (-row[1], row[0].name))
    return table(HEAD, [_cells(*row) for row in rows])


def _cells(
    field: Field, score: float, divergence: float, sparsity: float, price: float
) -> list[str]:
    penalty = "protected" if field.protected else f"{price:.2e}"
    numbers = [f"{score:.4f}", str(field.width), f"{divergence:.4g}", f"{sparsity:.1%}"]
    return [field.name, *numbers, penalty]


def why_none_moved(gates: LeAP) -> str:
    """Return why select() cannot use these gates, and the cure."""
    steps = 0 if gates.fields is None else int(gates.steps.max())
    if not steps and gates.context.has_trained:
        return (
            "select() needs trained gates, but the batches that the model was trained on have not "
            f"passed them: it has never called {gates.context.place}. Choose another at=; "
            "attach(..., example=batch) checks it at once."
        )
    if not steps:
        return (
            "select() needs trained gates, but no training batch has passed them. Train first, "
            "with the model in train(); a model that was compiled before attach() has to be "
            "compiled again."
        )
    if gates.warming_up:
        return (
            "select() needs trained gates, but they are still warming up: "
            f"batch {steps} of warmup={gates.settings.warmup}."
        )
    trainer = trainer_of(gates)
    if isinstance(trainer, GateLearner):
        return (
            f"select() needs trained gates, but after {plural(steps, 'training step')} none has "
            f"moved. {_why_nothing_arrived(trainer)}"
        )
    return (
        f"select() needs trained gates, but after {plural(steps, 'training step')} none has moved. "
        "The optimizer was probably built before attach(), so that it does not hold the gates. Use "
        "plugin.trainer(), or plugin.learn() in a loop that cannot be edited; or build the "
        "optimizer afterwards and add plugin.penalty() to the loss."
    )


def _why_nothing_arrived(learner: GateLearner) -> str:
    """Return why gates that train themselves have not moved, and the cure."""
    if learner.skipped:
        return (
            f"The gradient of {plural(learner.skipped, 'step')} was not finite. Lower the learning "
            "rate of the model or the scale of the loss."
        )
    return (
        "No gradient has reached them: gates that train themselves need loss.backward(), without "
        "inputs=, of a loss that depends on the gated values; torch.autograd.grad() does not reach "
        "them. Use plugin.trainer() and trainer.step(loss)."
    )


def why_none_closed(gates: LeAP) -> str | None:
    """Return why no gate is closed, if the training of the gates may be the reason, and the cure.

    None means that a gate is closed, or that useless gates had the time to close.
    """
    scores = gates.scores()
    free = {field.name for field in gates.known_fields() if not field.protected}
    lowest = min((score for name, score in scores.items() if name in free), default=0.0)
    if lowest < OPEN:
        return None
    found = f"No gate is closed, the lowest is {lowest:.2f}"
    if not gates.is_pressed:
        return (
            f"{found}: nothing has pressed on the gates, so that useless ones stay open. Train "
            "with plugin.learn() or plugin.trainer(), or add plugin.penalty() to the loss."
        )
    trainer = trainer_of(gates)
    if isinstance(trainer, GateTrainer):
        if isinstance(trainer, GateLearner) and trainer.was_set_back:
            return (
                f"{found}: after their last step the gates were set back, as early stopping does "
                "when it restores earlier weights. Let the gates close sooner, by fewer planned "
                "steps= or a larger lr=, or train without early stopping."
            )
        if trainer.has_settled:
            return None
        needed = f"{trainer.closing:,.0f}"
        return (
            f"{found}: after {plural(trainer.done, 'step')} of the gates a useless one has not had "
            f"the time to close, which takes {needed}. Train longer, or give a larger lr= or the "
            "number of planned steps= to the trainer."
        )
    start = float(torch.sigmoid(torch.tensor(gates.settings.init / gates.settings.temperature)))
    if trainer is not None:
        return None
    if lowest < STILL_MOVING * start:
        return (
            f"{found}: the gates have left their start at {start:.2f}, but they are still on their "
            "way. Train longer, give the gates a larger learning rate or another optimizer "
            "(Adagrad slows down), or use plugin.learn()."
        )
    reason = _why_all_stay_near(gates)
    return None if reason is None else f"{found}: {reason}"


def _why_all_stay_near(gates: LeAP) -> str | None:
    """Return why gates that some optimizer moves are still near their start, and the cure.

    The penalty moves useless gates down, the loss moves useful ones up, and early in the training
    about as fast. So where some have moved down, and none in either direction as far as closing
    takes, a useless one may still be on its way. None if all are useful as far as can be told.
    """
    steps = int(gates.steps.max()) - gates.settings.warmup
    needed = gates.settings.init  # theta is 0 at a gate of 0.5
    down, up = gates.ways
    way = max(down, up)
    few = steps < USUAL_STEPS * needed
    if way >= needed or (down < ON_ITS_WAY * up and not few):
        return None
    reason = (
        f"in {plural(steps, 'step')} no gate has moved by more than {way:.2g} of the "
        f"{needed:.2g} that closing takes"
    )
    cure = (
        "give the gates a learning rate of their own, plugin.parameter_groups(gate_lr=1e-2) with "
        "Adam, or use plugin.learn()"
    )
    if few:
        return f"{reason}; the steps were too few. Train longer, {cure}."
    return f"{reason}; the optimizer moves them slowly, as SGD and Adagrad do. Instead {cure}."
