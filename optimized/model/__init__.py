"""DeepSeek-V4.1 over paged caches, written once for every backend in terms of `optimized.ops`. Knows no scheduler."""
