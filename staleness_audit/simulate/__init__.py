"""Simulated runs of every staleness control, timed or exhaustive, from one description of each.

A control of staleness is a handful of rules on a small state, so a policy is a small file in ``policies/`` that says,
in this order, what is in ``policy.Policy``:

===========  ===================================================================================================
L1           ``room``: how many groups may begin to generate now; ``stamp``: what the framework notes on a new one
L2           ``cancel``: which groups in flight are stopped now that a new version is out
L3           ``collect``: which finished groups the trainer takes, which it drops; taking none is waiting for more
bookkeeping  ``admitted``, ``finished``, ``began``, ``published``: counters and labels the rules above look at
===========  ===================================================================================================

The rules read and write a ``state.State`` and nothing else: no clock, no lengths, no randomness. ``kernel`` joins them
to *moves*: admit, finish, collect, publish, and moves of the policy's own (a watcher that adopts a version). Between
moves nothing happens. Who chooses the next move is the only difference between the two users:

* ``prove`` lets every possible move come next, copies the state for each, and forgets what no rule can see: identities,
  absolute versions, ages beyond a horizon. So the states of a control that keeps a bound are finitely many and can all
  be visited, which is a proof for runs of any length, at the sizes explored.
* ``timed`` asks an engine model (continuous batching, a cost per step) which trajectory ends when, lets training take
  time, and makes moves in the order of the clock, in place.

Both tell what happened as a canonical event log (``eventlog``), which any audit can read. Nothing here knows how a log
is rebuilt or judged. The unit of control is the *group*: all of these frameworks admit, queue and train whole groups. A
group's tokens begin under the version that served when it was admitted; waiting for a free engine slot could only make
them newer, so the prover, which looks for the worst, lets the first token come at once.
"""
