"""The names in saved models: written out once, independent of where functions are defined."""

from torchleap.export.files import FORMAT
from torchleap.export.layers import KINDS
from torchleap.export.names import FUNCTIONS, METHODS, NAMES
from torchleap.surgery import runtime
from torchleap.surgery.rules.registry import CALLS, LAYERS
from torchleap.surgery.trace.tracer import gated


def test_every_function_of_a_rule_has_a_name():
    functions = {call for call in CALLS if not isinstance(call, str)} - {gated}
    assert functions <= set(NAMES)
    assert {call for call in CALLS if isinstance(call, str)} <= METHODS
    assert {layer.__name__ for layer in LAYERS} <= set(KINDS)


def test_a_function_has_one_name():
    assert {FUNCTIONS[name] for name in NAMES.values()} == set(FUNCTIONS.values())


def test_names_do_not_depend_on_the_layout_of_the_package():
    assert FORMAT == 2
    own = {name: function for name, function in FUNCTIONS.items() if name.startswith("torchleap.")}
    assert set(own) == {
        "torchleap.attribute",
        "torchleap.autocast",
        "torchleap.expect_entries",
        "torchleap.expect_inputs",
        "torchleap.expect_rows",
        "torchleap.kept_columns",
        "torchleap.moments_of_layer_norm",
        "torchleap.own_rows",
        "torchleap.part_of_layer_norm",
        "torchleap.keyed_values",
        "torchleap.parts_of",
        "torchleap.walk",
        "torchleap.with_item",
    }
    assert {name.split(".")[0] for name in FUNCTIONS} == {
        "torchleap",
        "torch",
        "functional",
        "linalg",
        "math",
        "operator",
    }


def test_functions_that_run_code_of_the_model_have_no_name():
    assert runtime.call_unchanged not in NAMES
    assert runtime.expect_globals not in NAMES
    assert gated not in NAMES
