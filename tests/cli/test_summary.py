"""The words of the summary that select prints, by the rule of the selection."""

import pytest

from torchleap.cli.summary import _show_evidence, close_calls, why_all_stay

from ..report.records import path_record, select_record, selection_of


def test_close_calls_are_those_of_gates_only():
    record = select_record(12)
    record["fields"][0]["score"] = 0.45
    assert "the threshold is 0.5" in close_calls(record)
    record = path_record(12, rule={"threshold": 0.5})
    record["fields"][0]["score"] = 0.45
    assert close_calls(record) == ""


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (
            {"tolerance": "1se"},
            "Every smaller model on the path is worse than the best by more than one standard "
            "error.",
        ),
        (
            {"tolerance": 0.001},
            "Every smaller model on the path is worse than the best by more than 0.001.",
        ),
        ({"worth": 1e-4}, "Every unprotected field is worth at least 0.0001 nats."),
        ({"dims": 64}, "This rule leaves room for all of them."),
        ({"threshold": 0.5}, "No unprotected field scores low enough for this rule."),
    ],
)
def test_the_reason_for_keeping_all_fields_is_that_of_the_rule(rule, reason):
    assert why_all_stay(path_record(12, rule=rule), time_limit=None) == reason


def test_a_path_by_masking_is_said_to_be_without_adaptation(capsys):
    record = path_record(12, rule={"tolerance": 0.001})
    record["path"]["adapted"] = False
    reason = "Every smaller model on the path, without adaptation, is worse than the best by more"
    assert why_all_stay(record, time_limit=None) == f"{reason} than 0.001."
    _show_evidence(record, selection_of(record["fields"], share=0.5), None)
    words = "whose AUC, with the others masked and without adaptation, is at most 0.001 worse"
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (path_record(12), "whose AUC is at most one standard error worse than the best.\nKeep: "),
        (path_record(12, rule={"worth": 1e-4}), "at least 0.0001 nats are kept.\nKeep: "),
    ],
)
def test_rules_of_the_path_are_explained(capsys, record, words):
    _show_evidence(record, selection_of(record["fields"], share=0.5), None)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("record", [path_record(12, rule={"share": 0.5}), select_record(12)])
def test_a_share_and_a_threshold_need_no_explanation(capsys, record):
    _show_evidence(record, selection_of(record["fields"], share=0.5), None)
    printed = capsys.readouterr().out
    assert "as fast.\nKeep: " in printed


def test_what_would_decide_and_what_is_left_out_is_printed(capsys):
    record = select_record(12, difference=(0.0, (-0.02, 0.02)))
    _show_evidence(record, selection_of(record["fields"], share=0.5), None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        "If both models are equally good, 45,210 rows would show it at 80 % power.",
        "The interval covers the chance of the rows, not that of another training.",
    ]
    assert lines[3].startswith("Pruning saves")
