"""Parts of the reference scheduler, one idea a file; `reference.scheduler` puts them together."""
