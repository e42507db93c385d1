"""Small trained models of the real architectures, and generated data in the datasets' own formats."""
