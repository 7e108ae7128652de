"""Graphs as pictures: what is worth a box (`outline`), where the boxes are (`layers`), and files (`svg`, `dot`)."""
