"""Cut modules by themselves inside a model whose forward() cannot be followed to its end.

The Python around such a module runs as it is. So what the module receives is observed: which of its
inputs are constants because of the gates (`watch`). The module is then traced, rewritten and built
like a model (`cut`), and checks these constants at each call, since the Python around it may do
otherwise on another batch. `find` tries the modules of a model in the order of their calls.
"""
