"""The model, defined: one sequence, no cache, plain PyTorch. Way in: ``ReferenceModel``; ``draft.propose`` drafts."""

from reference.model.draft import Draft
from reference.model.transformer import ReferenceModel

__all__ = ["Draft", "ReferenceModel"]
