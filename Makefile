# Every documented command. Each makes .venv on first use; all can be interrupted and run again.
BIN := .venv/bin

.PHONY: help tour test lab slides release clean ready

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

tour: ready ## train a small GPT every way the course teaches, on 4 ranks; a minute or two
	@$(BIN)/shardlab tour

lab: ready ## open JupyterLab on the course
	@$(BIN)/shardlab lab

test: ready ## check the whole course: reference submission, notebooks, kit, style
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python -m pip check --disable-pip-version-check
	@$(BIN)/shardlab release --check
	@$(BIN)/pytest -n 2 --dist loadfile --submission solutions \
		--nbval-lax --nbval-current-env --nbval-cell-timeout 120 tests notebooks

slides: ready ## build every deck into build/slides (needs Node.js; PDF with Chromium)
	@$(BIN)/shardlab slides

release: ready ## write labs/ from solutions/ (for authors)
	@$(BIN)/shardlab release

clean: ## remove all that can be made again; labs/ and results/ stay
	rm -rf .venv .cache build slides/node_modules tour.html shardlab.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ready:
	@PYTHON="$(PYTHON)" tools/install.sh
