"""Tables of users: from the texts of a file to numbers, codes and a split, below datasets and training.

The way of a table, in the order of these modules:

1. `recipe`: what the user states of a file and of its columns; all of it is public.
2. `read`, `batches`: cells as written, of a whole file or of parts of it; separator and encoding.
3. `cells`, `interpret`: the cells of a column as numbers, days or texts, with what was lost on the way.
   `interpret_table` reads a whole table; `ColumnReader` is what it and large files share.
4. `stored`, `cache`: a large table as one memory-mapped array a column, kept under its content and recipe.
5. `guesses`, `checks`, `inspect`: doubts, reasons against training, and `equidp inspect`.
6. `labels`, `split`: groups and classes as codes; rows to train and to test on.
7. `encode`, `private_encode`, `release`: inputs of models, from exact or from noisy statistics.

Sources of data, datasets of tensors and people as examples are in `data`, above.
"""
