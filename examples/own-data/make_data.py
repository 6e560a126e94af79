"""Write synthetic visits of 36 people to three nodes: deploy/data/node-K/visits.csv."""

import csv
from pathlib import Path

import numpy as np

for node in (1, 2, 3):
    folder = Path(f"deploy/data/node-{node}")
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(node)
    with (folder / "visits.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", "age", "pressure", "returned"])
        for person in range(12):
            for _ in range(5):
                age, pressure = rng.uniform(20, 100), rng.uniform(80, 200)
                returned = int(age / 100 + pressure / 200 > 1.2)
                rows.writerow([f"Ann Example {node}-{person}", age, pressure, returned])
