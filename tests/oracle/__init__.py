"""An independent judge: lifecycles in memory, walked token by token, without any of the audit's code.

``lives`` says what happened, ``truth`` computes the figures of the JSON document from it, ``logs`` writes it down as
canonical event logs (and can hide parts), ``strategies`` draws random ones, ``compare`` holds audit against truth.
"""
