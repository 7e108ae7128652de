"""The sources of a process's cluster and task: arguments, a file, `TF_CONFIG`, Kubernetes and Slurm.

Each module reads one notation and does no I/O, except `toml_file`; `this_task` defines the precedence.
"""
