"""The translations, a module a family; `translating.load_translations` imports them all."""
