//! What is known to go wrong.
