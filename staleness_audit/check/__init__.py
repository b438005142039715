"""Station *check*: from rebuilt lifecycles and a bound to verdict, counts, cost and the worst violations."""
