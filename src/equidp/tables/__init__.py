"""Tables of users: from the texts of a file to numbers, codes and a split, below datasets and training.

The way of a table, in the order of these modules:

1. `recipe`: what the user states of a file and of its columns; all of it is public.
2. `read`: a file once to Arrow columns of cells as written, in memory or on disk; separator and charset.
3. `cells`, `interpret`: cells as numbers, days or texts, and the meaning of a column, by pure functions.
4. `columns`, `cache`: a table of interpreted columns; those of a large one are memory-mapped arrays on disk.
5. `findings`, `checks`, `inspect`: findings as values with their words; those on values, and reasons against
   training; `equidp inspect`, which settles a recipe by the same findings.
6. `labels`, `positive`, `split`: groups and classes as codes; the positive class of two; rows to train and to
   test on.
7. `encode`, `private_encode`, `release`: inputs of models, from exact or from noisy statistics.

Sources of data, datasets of tensors and people as examples are in `data`, above.
"""
