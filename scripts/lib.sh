# shellcheck shell=bash
# Shared by the scripts: what a Debian or Ubuntu machine needs, installed when it is missing, with the reason.
# Sourced, not run.

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit "${die_status:-1}"; }

# apt [ARGUMENT]...: apt-get as root, after one update of the lists; without arguments just the update.
apt() {
    command -v apt-get >/dev/null 2>&1 || die "something is missing and there is no apt-get: see above for what and why"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "something is missing and this is not root: see above for what and why"
        sudo=(sudo)
    fi
    if [ -z "${apt_updated:-}" ]; then
        "${sudo[@]}" apt-get update -qq
        apt_updated=yes
    fi
    [ $# -eq 0 ] || DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get "$@"
}

# need TEST PACKAGES REASON: makes sure that TEST, the name of a command or the path of a file, is there.
need() {
    [ -e "$1" ] || command -v "$1" >/dev/null 2>&1 && return
    say "installing $2: $3"
    # shellcheck disable=SC2086 # several packages
    apt install -y -qq --no-install-recommends $2 >/dev/null
    [ -e "$1" ] || command -v "$1" >/dev/null 2>&1 || die "$2 is installed and $1 is still missing"
}

# What the programs are built with to speak to RDMA devices; without their feature `verbs` none of it is needed.
need_rdma() {
    need pkg-config pkg-config "it finds the libraries of rdma-core"
    need /usr/include/infiniband/verbs.h libibverbs-dev "the programs use RDMA devices through it"
    need /usr/include/rdma/rdma_cma.h librdmacm-dev "the programs connect through it where rdma_cm is asked for"
    has_libclang && return
    say "installing libclang-dev: headers of rdma-core are read by it, by any version"
    apt install -y -qq --no-install-recommends libclang-dev >/dev/null
    has_libclang || die "libclang-dev is installed and there is no libclang.so below /usr/lib"
}

has_libclang() {
    compgen -G "/usr/lib/llvm-*/lib/libclang.so*" >/dev/null ||
        compgen -G "/usr/lib/*-linux-gnu/libclang[.-][0-9s]*" >/dev/null
}

# The Rust toolchain. Older Debian releases have no usable one; there rustup's own instructions are the way.
need_rust() {
    need cc "gcc libc6-dev" "Rust programs are linked by it, with the C library"
    need "$(cc -print-file-name=crt1.o)" libc6-dev "Rust programs are linked with the C library"
    need /etc/ssl/certs/ca-certificates.crt ca-certificates "packages are fetched over https"
    [ -e "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] && PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    need_rdma
    local minimum
    minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null 2>&1; then
        say "there is no cargo: looking for the package rustup"
        if apt -qq --simulate install rustup >/dev/null 2>&1; then
            need rustup rustup "it installs the Rust toolchain"
            rustup toolchain install stable --profile minimal --component rustfmt --component clippy
        else
            die "this release has no package rustup (Debian has it from 13 on, Ubuntu from 24.04): install Rust $minimum \
or newer as the Rust project says, with rustup"
        fi
    fi
    local found
    found=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$minimum" "$found" | sort -V | head -n1)" = "$minimum" ] ||
        die "cargo is $found, Rust $minimum or newer is needed: 'rustup update', or rustup in place of the distribution's cargo"
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
        die "cargo has no fmt or no clippy: rustup component add rustfmt clippy"
}

# .cargo/config.toml asks for AVX2; where the processor has none, build for any x86-64.
if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo && [ -z "${RUSTFLAGS:-}" ]; then
    export RUSTFLAGS="-C target-cpu=x86-64"
fi
