"""Second Token's engine, accounting and transport: one noun a module.

Imports only go down (tests/test_imports.py holds the table):
text spec hardware prompt < cost events < metrics memory < cache models engine < worker engine_process live
routes < kv_matrix < pages app __main__. Only cache, models and engine may import torch.
"""
