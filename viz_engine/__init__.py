"""Second Token's engine, accounting and transport: one noun a module.

Imports only go down (tests/test_imports.py holds the table):
text spec hardware prompt model_files < cost events < metrics memory checks command
< cache models engine < worker engine_process live routes < kv_matrix < pages app __main__.
Only cache, models and engine may import torch.
"""
