"""The retrieval server that most projects ship, as the peer of `agent-rl bench retrieval`.

FastAPI with a plain ``def`` endpoint, so that requests run in its pool of 40 threads; one shared transformers model,
one shared FAISS index; the queries of a request are encoded together and nothing is batched across requests: a client
that sends one query costs one forward pass. Like Search-R1's retrieval server in all of that, and right for any number
of queries. Started as a process: ``python -m agent_rl.bench.per_request_server INDEX DTYPE PORT``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from retrieval_index.corpus import PassageStore
from retrieval_index.encoder import prefixed
from retrieval_index.fetch import resolve_encoder_path
from retrieval_index.index import read_faiss, read_manifest


class Query(BaseModel):
    queries: list[str]
    topk: int = 3
    return_scores: bool = False


def per_request_app(folder: Path, dtype: str) -> FastAPI:
    """``dtype`` of torch, by name. The model is the index's own, loaded as transformers loads it."""
    from transformers import AutoModel, AutoTokenizer

    manifest = read_manifest(folder)
    assert manifest.encoder is not None
    spec = manifest.encoder
    weights = resolve_encoder_path(spec.path)
    tokenizer: Any = AutoTokenizer.from_pretrained(weights)
    model: Any = AutoModel.from_pretrained(weights, dtype=getattr(torch, dtype)).eval()
    index, store = read_faiss(folder), PassageStore(folder)
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/retrieve")
    def retrieve(request: Query) -> dict[str, Any]:
        texts = [prefixed(query, spec.query_prefix) for query in request.queries]
        with torch.no_grad():
            asked = tokenizer(texts, padding=True, truncation=True, max_length=spec.max_tokens, return_tensors="pt")
            hidden = model(**asked).last_hidden_state
            mask = asked["attention_mask"].unsqueeze(-1)
            vectors = hidden[:, 0] if spec.pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
            vectors = vectors.float()
            if spec.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
        scores, rows = index.search(vectors.numpy(), request.topk)
        answers = []
        for row_ids, row_scores in zip(rows.tolist(), scores.tolist(), strict=True):
            documents = [{"id": store[row].id, "contents": store[row].contents} for row in row_ids]
            if request.return_scores:
                pairs = zip(documents, row_scores, strict=True)
                answers.append([{"document": document, "score": score} for document, score in pairs])
            else:
                answers.append(documents)
        return {"result": answers}

    return app


if __name__ == "__main__":
    uvicorn.run(per_request_app(Path(sys.argv[1]), sys.argv[2]), port=int(sys.argv[3]), log_level="warning")
