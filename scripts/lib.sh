# Shared by the scripts: what a Debian or Ubuntu machine needs, installed when it is missing, with the reason.
# Sourced, not run.

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# need COMMAND PACKAGE REASON: makes sure that COMMAND is there.
need() {
    command -v "$1" >/dev/null 2>&1 && return
    say "installing $2: $3"
    command -v apt-get >/dev/null 2>&1 || die "$1 is missing and there is no apt-get: install $2 ($3)"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "$1 is missing: install $2 as root ($3)"
        sudo=(sudo)
    fi
    if [ -z "${apt_updated:-}" ]; then
        "${sudo[@]}" apt-get update -qq
        apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$2" >/dev/null
    command -v "$1" >/dev/null 2>&1 || die "$2 is installed and $1 is still missing"
}

# The Rust toolchain. Older Debian releases have no usable one; there rustup's own instructions are the way.
need_rust() {
    need cc gcc "Rust programs are linked by it"
    [ -e "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] && PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    local minimum
    minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null 2>&1; then
        if apt-cache show rustup >/dev/null 2>&1; then
            need rustup rustup "it installs the Rust toolchain"
            rustup toolchain install stable --profile minimal --component rustfmt --component clippy
        else
            die "cargo is missing: install Rust $minimum or newer with rustup"
        fi
    fi
    local found
    found=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$minimum" "$found" | sort -V | head -n1)" = "$minimum" ] ||
        die "cargo is $found, Rust $minimum or newer is needed: rustup update"
}

# .cargo/config.toml asks for AVX2; where the processor has none, build for any x86-64.
if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo && [ -z "${RUSTFLAGS:-}" ]; then
    export RUSTFLAGS="-C target-cpu=x86-64"
fi
