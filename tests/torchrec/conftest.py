collect_ignore = ["ranks.py"]  # a script that imports torchrec; it holds no doctests
