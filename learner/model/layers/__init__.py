"""Megatron's layers where ours differ: attention, norms, rotary positions, and what makes them run without CUDA."""
