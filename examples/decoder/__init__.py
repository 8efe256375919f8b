"""A small decoder of the Llama kind with a paged cache, written the way inference engines write it."""
