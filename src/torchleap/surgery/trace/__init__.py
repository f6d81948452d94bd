"""Turn a model into a graph: every operation between the batch, the gates and the output.

`graph.trace` runs forward() with stand-ins for the tensors of the batch (`tracer`, `proxies`) and
computes the value of every node on each of the examples. Python that decides by the values of a
batch, changes tensors in place or has side effects is found (`sizes`, `inplace`, `side_effects`,
`hooks`, `parameters`) and refused with a reason, or the module around it becomes one opaque node.
Questions of forward() about the batch that every similar batch answers alike are recorded
(`inputs`, `entries`): the pruned model checks them at each call.
"""
