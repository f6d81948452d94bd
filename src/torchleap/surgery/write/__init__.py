"""Make the pruned model: write its graph, copy and cut its weights.

`rewrite` applies the rules to a trace and returns the new graph with all `Edits`; `checks` adds the
checks of assumptions; `unread` finds the inputs that nothing reads any more. `build` makes the
model from the edits. Where Python cannot be followed, `feed` copies the model as it is and feeds it
constants; `tables` then removes embedding tables that only dropped fields read, and `absent` is
the tensor that a removed table returns, which refuses to be read.
"""
