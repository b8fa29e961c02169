#!/bin/sh
# Runs as root in a system that systemd has started: installs the package and uses it. Each step that
# fails ends the script, and the file `passed` is written at its end.
exec >/test/log 2>&1
set -eux

property() { systemctl show --property="$1" --value quell; }

export DEBIAN_FRONTEND=noninteractive
dpkg --install /test/quell.deb

# It runs, as its own user, and its files are closed to others.
systemctl is-active quell
systemctl is-enabled quell
quell health
test "$(stat --format='%a %U:%G' /etc/quell/quell.toml)" = '640 root:quell'
test "$(stat --format='%a %U' /var/lib/quell)" = '700 quell'
test "$(stat --format='%a %U' /var/lib/quell/quell.db)" = '600 quell'
test "$(ps -o user= "$(property MainPID)")" = quell
su --shell /bin/sh nobody --command 'cat /etc/quell/quell.toml' && exit 1

# Manual pages and completions are where man and shells look.
man --where quell-serve
bash -c '. /usr/share/bash-completion/completions/quell && complete -p quell'
test -s /usr/share/zsh/vendor-completions/_quell
test -s /usr/share/fish/vendor_completions.d/quell.fish

# A command of the operator's runs behind the locks of the unit, and writes only where it may.
cat >>/etc/quell/quell.toml <<'END'
# Mine.
[tasks.try]
exec = { command = ["sh", "-c", "id -un; echo mine >/var/lib/quell/mine && ! touch /etc/mine 2>/dev/null && ! touch /usr/mine 2>/dev/null"] }
END
quell serve --check --config /etc/quell/quell.toml
systemctl restart quell
quell trigger try 1
quell result 1 --wait 60s
quell job 1
test "$(cat /var/lib/quell/mine)" = mine

# A reload keeps the process.
before=$(property MainPID)
systemctl reload quell
quell health
test "$(property MainPID)" = "$before"

# After a kill, systemd starts it again, with its store.
quell queue set kept --concurrency 1
kill -KILL "$before"
tries=0
until test "$(property MainPID)" != "$before" && quell health; do
    tries=$((tries + 1))
    test "$tries" -lt 300
    sleep 0.1
done
test "$(property NRestarts)" = 1
quell queue list | grep kept

# An upgrade keeps the operator's configuration, and starts the new binary.
before=$(property MainPID)
dpkg --install /test/quell.deb
grep '# Mine.' /etc/quell/quell.toml
test "$(stat --format='%a %U:%G' /etc/quell/quell.toml)" = '640 root:quell'
systemctl is-active quell
test "$(property MainPID)" != "$before"
quell queue list | grep kept

# It stops in order.
systemctl stop quell
test "$(property Result)" = success
test "$(property ExecMainStatus)" = 0

# Removed, it leaves the configuration and the store; purged, the store alone.
systemctl start quell
dpkg --remove quell
systemctl is-active quell && exit 1
test -e /etc/quell/quell.toml
dpkg --purge quell
test ! -e /etc/quell
test ! -e /usr/bin/quell
test -e /var/lib/quell/quell.db

systemctl --version | sed -n '1s/ (.*//; s/^systemd/by systemd/p;q' >/test/passed
