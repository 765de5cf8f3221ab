"""The recovery experiment: models trained on released voltages fill gaps in true ones."""
