"""The nouns and rules that know no database."""
