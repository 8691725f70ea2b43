"""What singular values say of one dense change."""

import torch


def best(matrix, rank):
    """Its nearest matrix of a rank."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


def beyond(change, rank):
    """The share of its energy beyond a rank."""
    energy = torch.linalg.svdvals(change).square()
    return float(energy[rank:].sum() / energy.sum())
