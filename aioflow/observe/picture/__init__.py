"""Pictures of graphs: the choice of boxes (`outline`), their positions (`layers`), and files (`svg`, `texts`)."""
