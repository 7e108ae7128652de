"""Where a process learns which cluster it belongs to, and which task it is: arguments, a file, and what its environment
says in the manner of TensorFlow (`TF_CONFIG`), Kubernetes and Slurm.

Each module reads one notation and does no I/O but for `toml_file`; `this_task` decides who is believed.
"""
