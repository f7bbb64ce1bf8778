"""``make demo``: a real training run that is checkpointed while it runs, dies, is restored and continues. End to end.

Three processes, one after the other, each ``python -m benchmarks.demo.roles ROLE``:

1. ``reference`` trains without interruption. It keeps the loss of every step and digests of the state at every save
   (the witness, made with ``hashlib`` and not with s4async), and measures ``save_async`` beside ``torch.save``.
2. ``victim`` trains the same, calls ``s4async.save_async(state)`` every few steps, and dies in the middle of a save.
3. ``heir`` restores the newest checkpoint in a fresh process, compares every leaf with the witness, and trains on to
   the end: its losses and its last state must be those of the reference, bit for bit.

``__main__`` starts them, prints the tables and writes ``demo-output/``. Its exit code is 0 only if everything is equal.
"""
