"""What an agent on a node has to survive, each done to a real one with packets going through its rules."""
