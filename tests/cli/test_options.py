"""Options are written once: commands take groups, and rules bring their own."""

from dataclasses import dataclass
from inspect import signature

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import typer
from typer.testing import CliRunner

from torchleap import TorchleapError
from torchleap.cli import build_app
from torchleap.cli.messages import OTHER_NAMES
from torchleap.cli.options import Json, Options, RuleOptions, flat, parameter_of
from torchleap.selection.rule import RULES, Budget, Rule


@dataclass(frozen=True)
class Size(Options):
    rows: int
    dims: int = 3


def test_a_command_takes_groups_and_typer_sees_their_fields():
    seen = []

    def command(context: typer.Context, size: Size, json: Json = False) -> None:
        seen.append((size, json))

    flattened = flat(command)
    assert list(signature(flattened).parameters) == ["context", "rows", "dims", "json"]
    flattened(context=None, rows=5, dims=4, json=True)
    assert seen == [(Size(rows=5, dims=4), True)]


def limits(**given):
    return RuleOptions(**{parameter_of(rule): None for rule in RULES.values()} | given)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_has_an_option(name):
    rule = RULES[name]
    assert limits().rule() is None
    assert limits(**{parameter_of(rule): 0.5}).rule() == rule(0.5)
    shown = CliRunner().invoke(build_app(), ["select", "--help"]).stdout
    assert f"{rule.option} " in shown
    assert " ".join(rule.help.split()[:4]) in " ".join(shown.split())


def test_two_rules_are_refused_by_the_names_of_their_options():
    with pytest.raises(
        TorchleapError, match="one of --threshold, .*, but found --share and --budget. Give one"
    ):
        limits(share=0.5, budget=3).rule()


def test_a_new_rule_needs_no_change_of_the_command_line(monkeypatch):
    class Seconds(Budget):
        name = "seconds"
        option = "--max-seconds"
        help = "Keep fields that are read within this time."

        def price(self, group):
            return group.width

    monkeypatch.setitem(RULES, "seconds", Seconds)
    shown = CliRunner().invoke(build_app(), ["select", "--help"]).stdout
    assert "--max-seconds <float>" in shown
    assert limits(max_seconds=2.0).rule() == Seconds(2.0)


def test_messages_about_a_rule_name_its_option():
    names = next(own for own in OTHER_NAMES.values() if "cost" in own)
    assert names == {
        "threshold": "threshold",
        "share": "share",
        "dims": "dims",
        "cost": "budget",
        "worth": "worth",
        "tolerance": "tolerance",
        "fdr": "fdr",
    }


def test_a_tolerance_is_a_number_or_a_word():
    assert limits(tolerance="0.001").rule() == Rule.of(tolerance=0.001)
    assert limits(tolerance="1se").rule() == Rule.of(tolerance="1se")
    shown = CliRunner().invoke(build_app(), ["select", "--help"]).stdout
    for option in ("--tolerance <str>", "--worth <float>", "--price-by <str>"):
        assert option in shown, shown
