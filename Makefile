# `make demo` and `make test` set up all they need: on a fresh Debian 12, as root, that is `git clone` and one of them.
# What is there already is left alone, so later runs need neither root nor a network.

PYTHON ?= /usr/bin/python3

# libnftables' Python bindings come from Debian: one module over ctypes, which must match the libnftables.so beside it.
# What PyPI has under that name are third parties' copies. A symlink shows the venv this one package; with
# --system-site-packages Debian's older releases of our dependencies would come along. Only tests use it: they have
# libnftables read back what the proxy programmed. The proxy itself speaks netlink.
NFTABLES_BINDINGS := /usr/lib/python3/dist-packages/nftables

SYSTEM_PACKAGES := ca-certificates iproute2 ipset iptables libnftables1 netbase nftables procps python3-nftables python3-venv util-linux
# What only tests of the HTML report need: a browser without a window (96 MB to fetch).
BROWSER_PACKAGES := chromium-headless-shell
# What `make test-vm` needs besides: another kernel, a machine for it, and IPVS's own tool.
VM_PACKAGES := ipvsadm kmod linux-image-amd64 qemu-system-x86

VENV := .venv
# pip applies constraints to the build backend only through this variable.
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(VENV)/bin/pip

.DELETE_ON_ERROR:
.PHONY: help demo test test-vm fuzz lint bench clean system promtool

help:
	@echo 'make demo   set up, then show the proxy at work in network namespaces'
	@echo 'make test   set up, then run all tests (PYTEST_ARGS="-k name" for some)'
	@echo 'make fuzz   broken input for all that reads some, for ten minutes (FUZZ_SECONDS=60 for one)'
	@echo 'make lint   ruff and mypy'
	@echo 'make bench  measure'
	@echo 'make clean  remove what these made'

demo: $(VENV)/.complete
	$(VENV)/bin/kube-proxy-nft demo

# One file at a time for each processor: tests of one file may share what they have set up.
PARALLEL ?= --numprocesses auto --dist loadfile

test: SYSTEM_PACKAGES += $(BROWSER_PACKAGES)
test: $(VENV)/.complete promtool
	$(VENV)/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# On Debian's own kernel, which has IPVS, in a virtual machine: what asks the kernel, and with what another one could change.
# Some 20 minutes. (The others may be named instead: make test-vm VM_TESTS="tests/test_leftovers.py tests/vm/test_faults.py")
VM_TESTS ?= @tests/vm/tests.txt
VM_PLUGINS := -p no:cacheprovider -p no:hypothesispytest -p no:xdist -p tests.vm.patience -p tests.vm.only_kernels
test-vm: SYSTEM_PACKAGES += $(VM_PACKAGES)
test-vm: $(VENV)/.vm
	sh tests/vm/in_memory.sh pack $(VENV)/bin/python
	$(VENV)/bin/python -m integration.vm --memory 2G --seconds 3600 -- sh tests/vm/in_memory.sh \
	    $(VENV)/bin/python -m pytest $(VM_PLUGINS) $(VM_TESTS) $(PYTEST_ARGS)

FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.complete
	$(VENV)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

lint: $(VENV)/.complete
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --strict proxy rules

# BENCH_ARGS=--quick takes less than two minutes, BENCH_ARGS="--peer PATH" measures another proxy beside ours: docs/benchmarks.md.
bench: $(VENV)/.bench
	$(VENV)/bin/python -m bench $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build dist bench-results .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.complete: pyproject.toml constraints.txt | system
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --editable '.[dev]'
	ln -s $(NFTABLES_BINDINGS) "$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/"
	$(VENV)/bin/python -c 'import nftables; nftables.Nftables()'
	touch $@

$(VENV)/.vm: $(VENV)/.complete
	$(PIP) install --quiet --editable '.[vm]'
	touch $@

$(VENV)/.bench: $(VENV)/.complete
	$(PIP) install --quiet --editable '.[bench]'
	touch $@

# Of Debian's package only the program (20 MB to fetch), and no server that would be started. Without it the tests of the
# alerts are skipped, and say so.
promtool: $(VENV)/.complete
	@command -v promtool >/dev/null || test -x $(VENV)/bin/promtool || { cd $(VENV) \
	    && apt-get update --quiet --quiet && apt-get download --quiet --quiet prometheus \
	    && dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --directory bin --strip-components 3 ./usr/bin/promtool \
	    && rm prometheus_*.deb; } || echo "make: no promtool: the tests of the alerts will be skipped" >&2

system:
	@missing=$$(for package in $(SYSTEM_PACKAGES); do \
	    dpkg-query --show --showformat='$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed \
	        || echo $$package; \
	done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	    echo "make: not Debian: install what these hold, then add SYSTEM_PACKAGES= to the command:" $$missing >&2; exit 1; \
	elif [ "$$(id -u)" != 0 ]; then \
	    echo "make: packages are missing; as root: apt-get install" $$missing >&2; exit 1; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes --no-install-recommends $$missing
