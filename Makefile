# Two commands do everything on a fresh Debian 12 with a Rust toolchain: `make demo` and `make test`. Both run as root.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test test-quick test-vm bench build deps deps-vm deps-bench stage image-base image-data install uninstall clean

# Where a build is put together for use from the source tree. The jailer takes files only from folders that root alone
# can write, which a checkout need not be.
STAGE ?= /var/lib/brig/stage
TARGET := $(or $(CARGO_TARGET_DIR),target)
STATIC := x86_64-unknown-linux-gnu
ifeq ($(shell uname -m),aarch64)
STATIC := aarch64-unknown-linux-gnu
endif
PROGRAMS := brig brigd brig-jailer brig-init brig-files
# Jailers divide the control group they are started in; systemd allows that only in a scope that says so.
SCOPE := $(if $(wildcard /run/systemd/system),systemd-run --scope --quiet -p Delegate=yes --)
DEBIAN := mmdebstrap python3 python3-pip gcc libc6-dev curl

# Where make install puts things. A package sets DESTDIR; units lie where systemd looks for them.
PREFIX ?= /usr
DESTDIR ?=
BINDIR = $(PREFIX)/bin
LIBDIR = $(PREFIX)/lib/brig
SHAREDIR = $(PREFIX)/share/brig
DOCDIR = $(PREFIX)/share/doc/brig
ifneq ($(filter /usr /usr/local,$(PREFIX)),)
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
else
UNITDIR ?= /etc/systemd/system
SYSUSERSDIR ?= /etc/sysusers.d
TMPFILESDIR ?= /etc/tmpfiles.d
endif
export DESTDIR PREFIX BINDIR LIBDIR SHAREDIR DOCDIR UNITDIR SYSUSERSDIR TMPFILESDIR

export BRIG_PROGRAMS := $(STAGE)/programs
export BRIG_POLICIES := $(STAGE)/policies
export BRIG_KERNEL := $(STAGE)/kernel
export BRIG_IMAGES ?= /var/lib/brig/images

help:
	@echo 'make demo        install what is needed, build, run a real analysis in a jail, show it'
	@echo 'make test        everything that must hold: format, lints, docs, unit, kernel and black-box tests'
	@echo 'make test-quick  the part of it for daily work, under three minutes'
	@echo 'make bench       how fast that is beside other sandboxes: table, plots and report in $(TARGET)/bench'
	@echo 'make test-vm     units and tests in a virtual machine with systemd, where make test runs a part of them'
	@echo 'make stage       build, and put it together in $(STAGE)'
	@echo 'make install     put what was staged where it belongs: DESTDIR=$(DESTDIR) PREFIX=$(PREFIX)'
	@echo 'make uninstall   remove that; images, ledger and configuration that was changed stay'

deps:
	@[ "$$(id -u)" = 0 ] || { echo 'run it as root: jails, images and packages need it' >&2; exit 77; }
	@command -v cargo >/dev/null || { echo 'no cargo: install a Rust toolchain of at least 1.89' >&2; exit 69; }
	@missing=$$(for p in $(DEBIAN); do \
	    dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	    echo "installing" $$missing; \
	    apt-get -o DPkg::Lock::Timeout=300 update -qq; \
	    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $$missing; \
	fi

# The two programs that run inside a jail are static: the jail's root has other libraries, or none.
build: deps
	cargo build --release --bin brig --bin brigd --bin brig-jailer
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile jail --target $(STATIC) -p brig-jailer \
	    --bin brig-init --bin brig-files --no-default-features --features files
	cargo rustc --profile jail --target $(STATIC) -p brig-fork --features library --crate-type cdylib -- \
	    -C link-arg=-nostdlib -C link-arg=-nostartfiles

stage: build
	@install -d -m 755 $(STAGE)/programs $(STAGE)/policies/syscalls
	@install -m 755 $(addprefix $(TARGET)/release/,brig brigd brig-jailer) \
	    $(addprefix $(TARGET)/$(STATIC)/jail/,brig-init brig-files) $(STAGE)/programs
	@install -m 644 policies/*.toml $(STAGE)/policies
	@install -m 644 policies/syscalls/*.toml $(STAGE)/policies/syscalls
	@$(STAGE)/programs/brig template layer $(STAGE)/kernel --source rootfs/kernel \
	    --library $(TARGET)/$(STATIC)/jail/libbrig_fork.so --quiet
	@rm -rf $(STAGE)/templates && cp -r rootfs/templates $(STAGE)/templates
	@{ echo '#!/bin/sh'; echo '# The brig of this stage, with its own policies and programs.'; \
	    echo 'export BRIG_PROGRAMS=$(BRIG_PROGRAMS) BRIG_POLICIES=$(BRIG_POLICIES) BRIG_KERNEL=$(BRIG_KERNEL)'; \
	    echo 'export BRIG_TEMPLATES=$(STAGE)/templates'; \
	    echo 'export BRIG_IMAGES=$${BRIG_IMAGES:-$(BRIG_IMAGES)}'; \
	    echo 'exec $(BRIG_PROGRAMS)/brig "$$@"'; } >$(STAGE)/brig
	@chmod 755 $(STAGE)/brig

image-base image-data: image-%: stage
	@$(STAGE)/programs/brig template build rootfs/templates/$*.toml --images $(BRIG_IMAGES)

demo: stage image-data
	@env -u BRIG_PROGRAMS -u BRIG_POLICIES -u BRIG_KERNEL BRIG=$(STAGE)/brig tests/demo/run $(TARGET)/demo

deps-vm: deps
	@tests/vm/packages

test: deps-vm stage image-base image-data
	tests/run all

test-vm: deps-vm stage image-base image-data
	tests/vm/test service whole

test-quick: stage image-base image-data
	tests/run quick

deps-bench: deps
	@benches/packages $(TARGET)/bench/venv

# Measures what was staged, by programs built for release.
bench: deps-bench stage image-data
	cargo build --release -p brig-bench
	$(SCOPE) $(TARGET)/release/brig-bench --rounds $(or $(ROUNDS),30) --out $(TARGET)/bench \
	    --jupyter $(TARGET)/bench/venv/bin/python $(BENCH)

# Not after build: who installs is often root, and root has no toolchain.
install uninstall:
	@packaging/tree $@

clean:
	cargo clean
	rm -rf $(STAGE)
