"""Structured output: texts that stay in a language, by token masks that the package xgrammar computes.

The package is imported where a grammar is compiled or matched, never before: it is the optional extra `structured`.
"""
