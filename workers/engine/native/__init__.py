"""The forward in C for CPUs with bfloat16 instructions; everything runs without it too."""
