"""Supervised training: sessions that restore, save, stop, log and recover, by hooks around every run."""
