"""Tables of users: from the texts of a file to numbers, codes and a split, below datasets and training.

The way of a table, in the order of these modules:

1. `recipe`: what the user states of a file and of its columns. All of it is public.
2. `read`: a file to an Arrow table of its cells; separator and charset.
3. `cells`, `guess`, `parse`: cells as numbers, days or texts; what they may be; a column as values with
   findings.
4. `findings`: findings as values, and one table of their words, remedies and levels.
5. `columns`, `checks`, `inspect`: a table of parsed columns; reasons against training; `equidp inspect`,
   which settles a recipe by the same findings. `signals`, `copies`: leaks, and copies of rows.
6. `labels`, `positive`, `split`: groups and classes as codes; the positive class of two; rows to train and to
   test on.
7. `encode`, `fit`, `release`: inputs of models, from exact or from noisy statistics. `new_file`: later files.

Sources of data, datasets of tensors and people as examples are in `data`, above.
"""
