"""What users give, checked and shown in messages: numbers, values in brief, the documents that messages name."""
