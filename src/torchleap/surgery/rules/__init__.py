"""Rules, one per kind of operation: how a layer gets smaller when some of its columns are constant.

A dropped field is its mean in every row, so its columns are constants. Rules spread constants from
the gates to the output (`Facts`), request from the output back to the batch the elements that must
still be computed (`View`), and write each operation for these elements (`Writer`, `Written`, with
the part that is computed as a `Form`). Read `base` first: it explains how to write a rule.
`registry` lists which operation follows which rule; an operation without a rule is opaque.
"""
