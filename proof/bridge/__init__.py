"""The bridge to the code: recorded runs of the engine are runs of the models."""
