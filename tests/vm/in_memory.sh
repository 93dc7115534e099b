#!/bin/sh
# Run a Python program in the virtual machine with all that Python programs are made of in its memory:
#     sh tests/vm/in_memory.sh pack .venv/bin/python                      before, on the machine outside
#     sh tests/vm/in_memory.sh .venv/bin/python -m pytest …               inside
# The machine reads this one's files through a protocol that keeps nothing: each start of an interpreter, of which the
# tests make hundreds, would fetch a thousand files anew, which takes ten times as long as the rest of it.
set -eu

if [ "$1" = pack ]; then
    python=$2
    archive=$(dirname "$(dirname "$python")")/vm.tar
    # What is compiled here need not be compiled inside; tests are compiled by pytest, in its own way.
    "$python" -m compileall -q proxy rules integration
    env -u PYTHONDONTWRITEBYTECODE \
        "$python" -m pytest --collect-only --quiet -p no:cacheprovider tests >"$archive.collected" || cat "$archive.collected"
    installed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    standard=$("$python" -c 'import os; print(os.path.dirname(os.path.realpath(os.__file__)))')
    {
        echo "$standard"
        echo "$installed"
        for directory in proxy rules integration bench tests examples; do
            echo "$PWD/$directory"
        done
        for name in "$python" ip nft nsenter setpriv unshare sh env ipset ipvsadm; do
            path=$(command -v "$name") || continue
            readlink -f "$path"
            ldd "$(readlink -f "$path")" | grep -o '/[^ ]*' | xargs -r -n1 readlink -f || true
        done
    } | sort -u >"$archive.places"
    tar --create --file "$archive" --exclude=.mypy_cache --exclude="$standard/test" \
        --exclude="$standard/site-packages" --exclude="$standard/config-*" --exclude="$standard/ensurepip" \
        --exclude="$installed/kubernetes_validate" --exclude="$installed/kubernetes" --exclude="$installed/mypy" \
        --exclude="$installed/pip" --exclude="$installed/numpy*" --exclude="$installed/matplotlib*" \
        --exclude="$installed/mpl_toolkits" --exclude="$installed/fontTools" --exclude="$installed/PIL" \
        --exclude="$installed/pillow*" --exclude="$installed/contourpy" --exclude="$installed/*__mypyc*" --absolute-names --files-from "$archive.places"
    exit
fi

archive=$(dirname "$(dirname "$1")")/vm.tar
mount -t tmpfs -o size=70% tmpfs /mnt
tar --extract --file "$archive" --absolute-names --transform 's,^/,/mnt/,'
while read -r place; do
    mount --bind "/mnt$place" "$place"
done <"$archive.places"
exec "$@"
