"""The rewriting of TensorFlow 1 programs by `aioflow port`. They need libcst, of the extra `port`."""
