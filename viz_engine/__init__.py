"""Second Token's engine, accounting and transport: subject below, process above.

A package imports only what stands left of it, those joined by | not each other:
paths < text numbers < model < run < memory < analysis < serving < engine | server < view
< pages | cli < app < bench. `import torch` stands only in engine and bench, and nothing in
server, view, pages and app imports engine (tests/test_imports.py holds it).
"""
