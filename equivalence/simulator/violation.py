"""What is raised when a law does not hold; knows nothing else."""

from __future__ import annotations


class ViolationError(AssertionError):
    """A law does not hold. law: its name; the message shows both sides."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"{law}: {message}")
        self.law = law
