"""Weights in safetensors files, as Hugging Face keeps them."""
