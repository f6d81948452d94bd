"""Public data sets in the formats in which people have them, as the published benchmarks use them.

All fields are categories with embeddings of one width, 8 by default, as in the benchmarks; `read`
gives the same files native widths. Vocabularies come from train rows alone, where the benchmarks
take them from all rows. A new set is a module with a function that returns its Task, and a line in
`MODULES` of `torchleap.data`.
"""
