# shellcheck shell=bash
# What a guest is booted with: the emulator, the distribution's kernel, an initramfs. Sourced by run.sh, after ../lib.sh.

guest_packages() {
    [ "$(uname -m)" = x86_64 ] || die "guests are x86-64, and they run the programs of this machine, which is not"
    need qemu-system-x86_64 "qemu-system-x86 seabios" "it runs the guests"
    # Its TCG has AVX2 since 7.2, and two ends of a wire on a socket in the file system.
    local version
    version=$(qemu-system-x86_64 --version | sed -n 's/.*version \([0-9.]*\).*/\1/p')
    [ "$(printf '%s\n' 7.2 "$version" | sort -V | head -n1)" = 7.2 ] || die "qemu-system-x86_64 is $version, 7.2 is needed"
    need busybox busybox-static "the guest's first program needs a shell without libraries"
    need cpio cpio "it packs the initramfs"
    need modprobe kmod "it knows which modules a module needs"
    need rdma iproute2 "it adds the soft-RoCE device"
    need /etc/libibverbs.d/rxe.driver ibverbs-providers "soft-RoCE's half in user space"
    need ibv_devinfo ibverbs-utils "it shows RDMA devices"
    need ib_read_lat perftest "it measures bare verbs, for comparison"
    need ping iputils-ping "it shows whether the wire between two guests works"
    need xz xz-utils "some distributions compress kernel modules with it"
    need zstd zstd "some distributions compress kernel modules with it"
}

# kernel_packages: the names of the packages with the newest plain kernel and its modules. Flavours for clouds lack rdma_rxe.
kernel_packages() {
    local image
    image=$(apt-cache depends linux-image-amd64 linux-image-generic 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n1)
    [ -n "$image" ] || die "apt knows neither linux-image-amd64 (Debian) nor linux-image-generic (Ubuntu)"
    echo "$image"
    # Ubuntu has the modules apart.
    local part
    for part in modules modules-extra; do
        apt-cache show "${image/image/$part}" >/dev/null 2>&1 && echo "${image/image/$part}"
    done
    return 0
}

# fetch_kernel DIRECTORY: downloads the kernel's packages and unpacks them there, installing nothing.
fetch_kernel() {
    say "downloading a kernel with soft-RoCE"
    rm -rf "$1.new"
    mkdir -p "$1.new/lib"
    # One tree, wherever this release's packages and tools have /lib.
    mkdir "$1.new/usr"
    ln -s ../lib "$1.new/usr/lib"
    apt
    kernel_packages >"$1.new/packages"
    local package
    while read -r package; do
        (cd "$1.new" && apt download -qq "$package" 2>/dev/null) || die "cannot download the package $package"
        dpkg --fsys-tarfile "$1.new/${package}"_*.deb | tar -x --keep-directory-symlink -C "$1.new"
        rm -f "$1.new/${package}"_*.deb
    done <"$1.new/packages"
    depmod -b "$1.new" "$(kernel_version "$1.new")"
    rm -rf "$1"
    mv "$1.new" "$1"
}

kernel_version() { ls "$1/lib/modules"; }

# add_modules KERNEL DIRECTORY MODULE...: the modules, uncompressed, and a file that names them in loading order.
add_modules() {
    local version module file name
    version=$(kernel_version "$1")
    for module in "${@:3}"; do
        modprobe -d "$1" -S "$version" --show-depends "$module" || die "kernel $version has no module $module"
        # Before 6.15 rdma_rxe asks for a checksum by name without depending on its module: adding a device fails with ENOENT.
        [ "$module" != ib_uverbs ] || modprobe -d "$1" -S "$version" --show-depends crc32_generic 2>/dev/null || true
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
        name=$(basename "$file")
        case $name in
        *.xz) name=${name%.xz} && xz -dc "$file" ;;
        *.zst) name=${name%.zst} && zstd -dcq "$file" ;;
        *) cat "$file" ;;
        esac >"$2/module"
        mv "$2/module" "$2/$name"
        echo "$name" >>"$2/order"
    done
}

# pack KERNEL INIT FILE: the initramfs.
pack() {
    local tree=$3.tree
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,changes,dev,host,modules,proc,root,sys}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    install -m 755 "$2" "$tree/init"
    add_modules "$1" "$tree/modules" virtio_pci virtio_net 9pnet_virtio 9p overlay veth sch_netem ib_uverbs rdma_rxe rdma_ucm
    (cd "$tree" && find . | cpio --quiet -o -H newc | gzip -1) >"$3.new"
    rm -rf "$tree"
    mv "$3.new" "$3"
}

# make_guest CACHE INIT: sets `kernel` and `initramfs`. Several runs at once make them once.
make_guest() {
    mkdir -p "$1"
    exec {guest_lock}>"$1/lock"
    flock "$guest_lock"
    [ -e "$1/kernel/packages" ] || fetch_kernel "$1/kernel"
    kernel=$(echo "$1"/kernel/boot/vmlinuz-*)
    initramfs="$1/initramfs-$(cat "$2" "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)"
    [ -e "$initramfs" ] || { rm -f "$1"/initramfs-*; pack "$1/kernel" "$2" "$initramfs"; }
    choose_accelerator "$1"
    exec {guest_lock}>&-
}

# make_siw CACHE: sets `siw`, a directory with the modules of software iWARP and their order. After make_guest.
make_siw() {
    siw=$1/siw
    [ ! -e "$siw/order" ] || return 0
    local version
    version=$(kernel_version "$1/kernel")
    modprobe -n -q -d "$1/kernel" -S "$version" siw || build_siw "$1/kernel" "$version"
    rm -rf "$siw.new"
    mkdir "$siw.new"
    add_modules "$1/kernel" "$siw.new" siw
    mv "$siw.new" "$siw"
}

# build_siw KERNEL VERSION: Debian's kernels come without the module. Its source is that of the kernel, so it is built from the
# distribution's package (some 150 MB to download, less than a minute).
build_siw() {
    local build=$1.build release=${2%%-*} package
    release=${release%.*}
    say "building the module siw (software iWARP) for kernel $2"
    need make make "it builds a kernel module"
    need xz xz-utils "the kernel's source is compressed with it"
    rm -rf "$build"
    mkdir "$build"
    apt
    for package in "linux-headers-$2" "linux-headers-${2%-*}-common" "linux-kbuild-$release" "linux-source-$release"; do
        (cd "$build" && apt download -qq "$package" 2>/dev/null) || die "cannot download the package $package"
        dpkg --fsys-tarfile "$build/${package}"_*.deb | tar -x -C "$build"
        rm -f "$build/${package}"_*.deb
    done
    tar -xJf "$build/usr/src/linux-source-$release.tar.xz" -C "$build" "linux-source-$release/drivers/infiniband/sw/siw"
    local headers=$build/usr/src/linux-headers-$2 source=$build/linux-source-$release/drivers/infiniband/sw/siw
    sed -i "s#^include /usr/src/#include $build/usr/src/#" "$headers/Makefile"
    local compiler
    compiler=$(sed -n 's/^CC = .*\(gcc-[0-9]*\)$/\1/p' "$headers/.kernelvariables")
    need "$compiler" "$compiler" "the kernel was built with it"
    make -s -C "$headers" M="$source" CONFIG_RDMA_SIW=m modules >"$build/log" 2>&1 ||
        { tail -n 20 "$build/log"; die "cannot build the module siw"; }
    mkdir -p "$1/lib/modules/$2/extra"
    strip --strip-debug -o "$1/lib/modules/$2/extra/siw.ko" "$source/siw.ko"
    depmod -b "$1" "$2"
    rm -rf "$build"
}

# choose_accelerator CACHE: sets `accelerator`. A KVM that is there may still hang, so it is tried: once per boot of the host.
choose_accelerator() {
    # Without erms and fsrm kernels copy by words. With them it is byte by byte in emulation, which no network card does.
    local emulated=(-accel "tcg,thread=multi,tb-size=256" -cpu "max,-erms,-fsrm")
    local native=(-accel kvm -cpu host)
    local tried
    tried=$1/kvm-$(cat /proc/sys/kernel/random/boot_id)
    accelerator=("${emulated[@]}")
    [ -w /dev/kvm ] || return 0
    if [ ! -e "$tried" ]; then
        rm -f "$1"/kvm-*
        # Not the last command of the subshell, so that it is there that "Aborted" is printed.
        if (timeout 15 qemu-system-x86_64 "${native[@]}" -machine q35 -nodefaults -display none -no-reboot -m 256 \
            -kernel "$kernel" -initrd "$initramfs" -append "quiet panic=-1 GUEST_ROLE=probe"
            exit $?) </dev/null &>/dev/null; then
            echo yes >"$tried"
        else
            echo no >"$tried"
        fi
    fi
    # shellcheck disable=SC2034 # by run.sh
    [ "$(cat "$tried")" != yes ] || accelerator=("${native[@]}")
}
