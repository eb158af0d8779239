"""Writes cases.json: estimates and intervals of ppi-python 0.2.3 (pip install ppi-python==0.2.3), numpy's generator 7.

Each case has the labels and predictions of some runs, predictions of others, the weight (null: tuned), and what the package says.
Tuned ones are kept where the package does not clip the weight, which it takes from 0 to 1.
"""

import json
from pathlib import Path

import numpy as np
from ppi_py import ppi_mean_ci, ppi_mean_pointestimate

random = np.random.default_rng(7)
cases = []
while len(cases) < 24:
    few, many = int(random.integers(10, 60)), int(random.integers(20, 400))
    predictions = random.random(few + many)
    labels = (random.random(few) < 0.2 + 0.6 * predictions[:few]).astype(float)
    told, other = predictions[:few], predictions[few:]
    covariance = np.mean((labels - labels.mean()) * (told - told.mean()))
    tuned = covariance / ((1 + few / many) * np.cov(predictions))
    weight = None if len(cases) % 2 else float(random.choice([0.0, 0.3, 1.0]))
    if weight is None and not 0 < tuned < 1:
        continue
    lower, upper = ppi_mean_ci(labels, told, other, alpha=0.05, lam=weight)
    cases.append({
        "labels": labels.tolist(), "predictions": told.tolist(), "others": other.tolist(), "weight": weight,
        "estimate": float(np.ravel(ppi_mean_pointestimate(labels, told, other, lam=weight))[0]),
        "lower": float(np.ravel(lower)[0]), "upper": float(np.ravel(upper)[0]),
    })
Path(__file__).with_name("cases.json").write_text(json.dumps(cases) + "\n")
