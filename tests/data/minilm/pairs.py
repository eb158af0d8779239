"""Computes the cosines in pairs.json by sentence-transformers itself: python3 pairs.py MODEL_DIRECTORY"""

import json
import pathlib
import sys

import sentence_transformers
import torch

path = pathlib.Path(__file__).with_name("pairs.json")
file = json.loads(path.read_text())
model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
for pair in file["pairs"]:
    a, b = model.encode([pair["a"], pair["b"]]).astype("float64")
    pair["cosine"] = round(float(a @ b / (a @ a * (b @ b)) ** 0.5), 7)
file["made_by"] = f"sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__}"
path.write_text(json.dumps(file, indent=1, ensure_ascii=False) + "\n")
