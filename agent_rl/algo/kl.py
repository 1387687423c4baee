"""KL to the reference policy, one term a token."""

from __future__ import annotations

import torch
from torch import Tensor


def kl_term(
    logp: Tensor, logp_ref: Tensor, weight: Tensor, *, estimator: str, weighting: str, clamp: float | None
) -> Tensor:
    """Estimator of KL(pi || pi_ref) for each token; shapes [N]. rho = pi_ref / pi.

    ``k1`` -log rho, ``k2`` (log rho)^2 / 2, ``k3`` rho - log rho - 1 (Schulman, "Approximating KL divergence").
    ``weighting``: ``none``; ``outside`` w * k (Eq. 12, which Theorem 3.2 uses); ``inside`` (Eq. 10, k3 only)
    w rho - log(w rho) - 1.
    """
    log_rho = logp_ref - logp
    if clamp is not None:
        log_rho = log_rho.clamp(-clamp, clamp)
    if weighting == "inside":
        log_rho = log_rho + torch.log(weight)
    if estimator == "k1":
        term = -log_rho
    elif estimator == "k2":
        term = log_rho.square() / 2
    else:
        term = torch.exp(log_rho) - log_rho - 1
    return weight * term if weighting == "outside" else term
