"""Random fields with scores for property tests: few values, so that there are ties."""

from hypothesis import strategies as st

from torchleap import Field, Fields

ROWS = st.lists(
    st.tuples(
        st.integers(1, 9),  # width
        st.sampled_from([None, 0.0, 0.1, 0.2, 3.0]),  # cost
        st.sampled_from([0.0, 0.2, 0.5, 0.9]),  # score
        st.booleans(),  # protected
        st.sampled_from([None, None, "g", "h"]),  # group
    ),
    min_size=1,
    max_size=8,
)
NAMES = "hbfaecgd"  # the order of the names is not that of the fields


def world(rows):
    fields = []
    scores = {}
    for name, (width, cost, score, protected, group) in zip(NAMES, rows, strict=False):
        fields.append(Field(name, width, cost=cost, protected=protected, group=group))
        scores[name] = score
    return Fields(fields), scores


def members_of(fields, name):
    """Return the names that are kept or dropped together with `name`."""
    group = fields[name].group
    if group is None:
        return [name]
    return [f.name for f in fields if f.group == group]
