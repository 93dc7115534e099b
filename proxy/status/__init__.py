"""The status page, its data, and the command that prints a summary of a running agent."""
