"""The step loop: requests in, outputs out."""
