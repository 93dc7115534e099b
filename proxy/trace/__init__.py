"""Real packets, followed through the kernel's tables: ours and everybody's."""
