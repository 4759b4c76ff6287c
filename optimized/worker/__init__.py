"""Step plans turned into device inputs, caches that live between steps, and the model's run over both."""
