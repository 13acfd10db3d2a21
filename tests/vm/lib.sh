# What the scripts of the virtual machine share; to be sourced.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cache=${VM_CACHE:-/var/lib/brig/vm}

# The mirror that this machine's apt takes Debian from.
mirror() {
    local found
    found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+) .*/\2/p' | grep -E '/debian/?$' | head -n 1) || true
    [[ -n $found ]] || { echo 'apt has no source of Debian: its URI ends in /debian' >&2; return 69; }
    echo "$found"
}
