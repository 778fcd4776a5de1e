"""The forward in C for CPUs with AVX512; everything runs without it too."""
