"""TFF 0.87's `tag_prediction_preprocessing` in NumPy, which the prepared corpora are held to."""

import numpy as np


def tag_prediction_arrays(examples, words, tags):
    """Each row's shares of the vocabulary words among those known, and counts of its tags."""
    columns = [{str(name): number for number, name in enumerate(names)} for names in (words, tags)]
    x, y = [], []
    for example in examples:
        found = (example["tokens"] + " " + example["title"]).encode().split()
        marks = (found, [tag.encode() for tag in example["tags"].split("|")])
        counts = [
            np.bincount(
                [known[name.decode()] for name in names if name.decode() in known],
                minlength=len(known),
            ).astype(np.float32)
            for known, names in zip(columns, marks, strict=True)
        ]
        x.append(counts[0] / (counts[0].sum() or np.float32(1)))
        y.append(counts[1])
    return np.array(x, np.float32), np.array(y, np.float32)
