#!/bin/sh
# Everything that wants an NVIDIA card, where there is one: an environment of its own with the CUDA
# build of onnxruntime (.venv-cuda), the whole suite in it, the real model on the card, and the
# bench. Without a card it says so and ends with 69 (EX_UNAVAILABLE); when something fails, with 1.
#
# usage: bench/gpu.sh          PYTHON=… names the interpreter
set -eu

NO_CARD=69
cd "$(dirname "$0")/.."

cards() { nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null; }

found=$(cards) || found=''
if [ -z "$found" ]; then
	echo "bench/gpu.sh: no NVIDIA card with a driver here (nvidia-smi finds none): nothing was run" >&2
	exit $NO_CARD
fi
printf 'card, driver, memory: %s\n' "$found"

venv=.venv-cuda
python=$venv/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip_install() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }
others=$(mktemp)
trap 'rm -f "$others"' EXIT
# The tests' packages but for their onnxruntime: an entry goes on to the next line that is not indented.
awk '/^[a-z]/ { skip = /^onnxruntime==/ } !skip' requirements-test.lock >"$others"
pip_install --require-hashes -r requirements-cuda.lock
pip_install --no-deps --require-hashes -r "$others"
pip_install --no-deps --require-hashes -r requirements-demo.lock
pip_install --no-deps --no-build-isolation -e .

failed=''
# step NAME COMMAND...: goes on after a failure, so that one run says all there is to say.
step() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	"$@" || failed="$failed, $name"
}

step "what is installed" "$python" -c \
	'import onnxruntime; print(onnxruntime.__version__, onnxruntime.get_available_providers())'
step "the suite, with the CUDA build" "$python" -m pytest -q --ignore=tests/system
step "the real model on the card" "$python" -m pytest -s -q tests/providers/on_cuda.py
step "what steps cost on the card and beside it" "$python" -m bench.providers
step "plain against speculative on the card" "$python" -m bench.placed cuda

if [ -n "$failed" ]; then
	echo "bench/gpu.sh: failed: ${failed#, }" >&2
	exit 1
fi
