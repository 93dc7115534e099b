"""An agent and an API server that misbehaves, while objects change all the time: what the kernel holds is checked at
every commit, against all that the objects have ever been. See `run` and `judge`."""
