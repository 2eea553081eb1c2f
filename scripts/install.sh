#!/bin/sh
# Puts clusterd on this machine as a service of systemd or OpenRC, or upgrades it. Run it as root.
#
#   install.sh [OPTIONS] FILE|URL    the executable of clusterd; a URL is fetched with curl or wget
#
#   --sha256 SUM      what the executable must have; else FILE.sha256 or URL.sha256 must be there, or clusterd is not installed
#   --no-check        install without a sum
#   --version TEXT    refuse an executable of another version
#   --join URL        be a node of the cluster of this server, instead of a server
#   --token TOKEN     what lets the node join; --token-file FILE keeps it off the command line, and - reads standard input
#   --no-start        install, and start nothing; also not what runs already
#   --timeout SECONDS how long the node may take to be Ready (180). After that an upgrade goes back to the old executable
#   --bin-dir DIR     where the executable goes (/usr/local/bin)
#
# Run again, it upgrades in place: pods go on, the configuration in /etc/clusterd stays. --join and --token given again
# replace what was given before. It needs no network but for a URL. "clusterd uninstall" removes everything.
set -eu

bin_dir=/usr/local/bin
etc=/etc/clusterd
sum='' check=yes version='' join='' token='' token_file='' start=yes timeout=180 source=''
new='' scratch=''

say() { echo "install: $*"; }
die() {
	echo "install: $*" >&2
	exit 1
}
usage() {
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 2
}
clean() { rm -f "$new" "$scratch"; }
has() { command -v "$1" >/dev/null 2>&1; }

parse() {
	while [ $# -gt 0 ]; do
		case $1 in
		--sha256 | --version | --join | --token | --token-file | --timeout | --bin-dir)
			[ $# -ge 2 ] || die "$1 needs a value"
			case $1 in
			--sha256) sum=$2 ;;
			--version) version=$2 ;;
			--join) join=$2 ;;
			--token) token=$2 ;;
			--token-file) token_file=$2 ;;
			--timeout) timeout=$2 ;;
			--bin-dir) bin_dir=$2 ;;
			esac
			shift 2
			continue
			;;
		--no-check) check=no ;;
		--no-start) start=no ;;
		--help | -h) usage ;;
		-*) die "there is no option $1: see --help" ;;
		*)
			[ -z "$source" ] || die "one executable is enough: $source and $1"
			source=$1
			;;
		esac
		shift
	done
	[ -n "$source" ] || usage
}

# validate finds what is wrong before anything is changed.
validate() {
	[ "$(id -u)" = 0 ] || die "this needs root"
	case $timeout in '' | *[!0-9]*) die "--timeout: $timeout is no number of seconds" ;; esac
	case $bin_dir in /*) ;; *) die "--bin-dir: $bin_dir is not an absolute path" ;; esac
	case $bin_dir in *[!a-zA-Z0-9/._-]*) die "--bin-dir: $bin_dir has characters that a unit cannot have as they are" ;; esac
	if [ -n "$join" ]; then
		case $join in https://*) ;; *) die "--join: $join is not the URL of a server, such as https://192.0.2.1:6443" ;; esac
		case $join in *[[:space:]\"\'\\]*) die "--join: there are characters in it that a URL has not" ;; esac
	fi
	[ -z "$token" ] || [ -z "$token_file" ] || die "--token and --token-file: give one of the two"
	if [ -n "$token$token_file" ] && [ -z "$join" ] && [ ! -e "$etc/config.yaml.d/install.yaml" ]; then
		die "--token: a token is for a node that joins: give --join https://SERVER:6443 too"
	fi
	case $token_file in '' | -) ;; *) [ -r "$token_file" ] || die "--token-file: $token_file cannot be read" ;; esac
	case $sum in
	'') ;;
	*[!0-9a-fA-F]*) die "--sha256: $sum is not a sum" ;;
	*) [ ${#sum} = 64 ] || die "--sha256: $sum is not a sum" ;;
	esac
	if [ -n "$join" ] && [ -d /var/lib/clusterd/server ]; then
		die "--join: this machine is a server already: to make it a node of another one, run clusterd uninstall first"
	fi
	for p in sha256sum sed mktemp; do has "$p" || die "$p is missing"; done
}

manager() {
	if [ -d /run/systemd/system ]; then
		echo systemd
	elif has openrc-run && has rc-service; then
		echo openrc
	elif [ "$start" = no ] && has systemctl; then
		echo systemd # in an image that is being made
	else
		die "neither systemd nor OpenRC runs here: copy the executable and run clusterd server by your own means"
	fi
}

fetch() { # URL FILE
	if has curl; then
		curl -fsSL --retry 3 -o "$2" "$1"
	elif has wget; then
		wget -q -O "$2" "$1"
	else
		die "neither curl nor wget is here to fetch $1: fetch it by other means and give the file"
	fi
}

# obtain puts the executable beside where it will be, so that putting it in place is one step, and checks it.
obtain() {
	mkdir -p "$bin_dir"
	new=$(mktemp "$bin_dir/.clusterd.XXXXXX")
	case $source in
	http://* | https://*)
		fetch "$source" "$new" || die "fetch $source: it cannot be had"
		if [ -z "$sum" ] && [ $check = yes ]; then
			scratch=$(mktemp)
			fetch "$source.sha256" "$scratch" || die "fetch $source.sha256: it cannot be had: give the sum with --sha256"
			read -r sum _ <"$scratch" || [ -n "$sum" ] || die "read $source.sha256: it is empty"
		fi
		;;
	*)
		[ -f "$source" ] || die "there is no file $source"
		cp "$source" "$new"
		if [ -z "$sum" ] && [ $check = yes ]; then
			[ -f "$source.sha256" ] || die "what is the SHA-256 of $source? Give it with --sha256 or in $source.sha256, or --no-check"
			read -r sum _ <"$source.sha256" || [ -n "$sum" ] || die "read $source.sha256: it is empty"
		fi
		;;
	esac
	if [ $check = yes ]; then
		is=$(sha256sum <"$new")
		is=${is%% *}
		[ "$is" = "$(echo "$sum" | tr A-F a-f)" ] || die "$source has the SHA-256 $is, not $sum: nothing is changed"
	fi
	chmod 755 "$new"
	text=$("$new" version 2>&1) || die "$source does not run on this machine: $text"
	if [ -n "$version" ]; then
		case " $(echo "$text" | tr '\n\t(),' '     ') " in
		*" $version "*) ;;
		*) die "$source is not version $version: $(echo "$text" | sed -n 1p)" ;;
		esac
	fi
}

# enter writes what is going to be made into the list from which clusterd uninstall works.
enter() { "$new" ledger "$1" "$2" || die "the ledger cannot be written: $2"; }

# secret FILE: writes standard input so that nobody else ever reads it.
secret() {
	(
		umask 077
		cat >"$1.new"
	)
	mv "$1.new" "$1"
}

configure() {
	enter file "$etc/environment"
	mkdir -p "$etc"
	if [ ! -e "$etc/environment" ]; then
		echo '# Variables for clusterd, such as CLUSTERD_NODE_NAME=name or HTTPS_PROXY=...' | secret "$etc/environment"
	fi
	if [ -n "$token" ] || [ -n "$token_file" ]; then
		enter file "$etc/token"
		case $token_file in
		'') printf '%s\n' "$token" | secret "$etc/token" ;; # the shell's own: no process has the token in its list
		-) secret "$etc/token" ;;
		*) secret "$etc/token" <"$token_file" ;;
		esac
	fi
	if [ -n "$join" ]; then
		enter file "$etc/config.yaml.d/install.yaml"
		mkdir -p "$etc/config.yaml.d"
		{
			echo "# Written by install.sh --join."
			echo "join: \"$join\""
			if [ -e "$etc/token" ]; then echo "token-file: $etc/token"; fi
		} | secret "$etc/config.yaml.d/install.yaml"
	fi
}

role() { if [ -e "$etc/config.yaml.d/install.yaml" ]; then echo agent; else echo server; fi; }

write_systemd() {
	unit=/etc/systemd/system/clusterd.service
	enter file $unit
	enter service "systemd clusterd.service"
	cat >$unit.new <<-END
		[Unit]
		Description=clusterd $(role)
		After=network-online.target
		Wants=network-online.target
		StartLimitIntervalSec=0

		[Service]
		Type=notify
		EnvironmentFile=-$etc/environment
		ExecStart=$bin_dir/clusterd $(role)
		KillMode=process
		Delegate=yes
		Restart=always
		RestartSec=2
		LimitNOFILE=1048576
		LimitNPROC=infinity
		LimitCORE=infinity
		TasksMax=infinity
		TimeoutStartSec=0

		[Install]
		WantedBy=multi-user.target
	END
	mv $unit.new $unit
	if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
	systemctl enable --quiet clusterd.service
}

write_openrc() {
	script=/etc/init.d/clusterd
	enter file $script
	enter file /etc/logrotate.d/clusterd
	enter file /var/log/clusterd.log
	enter service "openrc clusterd"
	cat >$script.new <<-END
		#!/sbin/openrc-run
		# Pods outlive a stop: only the process itself is ended.
		description="clusterd $(role)"
		supervisor=supervise-daemon
		command=$bin_dir/clusterd
		command_args=$(role)
		respawn_delay=2
		respawn_max=0
		rc_ulimit="-n 1048576"
		output_log=/var/log/clusterd.log
		error_log=/var/log/clusterd.log
		depend() {
			want net cgroups
			after net cgroups firewall
		}
		start_pre() {
			if [ -e $etc/environment ]; then set -a; . $etc/environment; set +a; fi
			checkpath --file --mode 0600 /var/log/clusterd.log
		}
	END
	chmod 755 $script.new
	mv $script.new $script
	mkdir -p /etc/logrotate.d
	cat >/etc/logrotate.d/clusterd <<-END
		/var/log/clusterd.log {
			size 10M
			rotate 4
			compress
			missingok
			notifempty
			copytruncate
		}
	END
	rc-update add clusterd default >/dev/null
}

# restart MANAGER: waits for the old process to end, so that it is not taken for the new one, but not for the start: one that
# fails is tried again for ever.
restart() {
	case $1 in
	systemd)
		systemctl stop clusterd.service
		systemctl reset-failed clusterd.service 2>/dev/null || true # a stop between two tries keeps their number
		systemctl start --no-block clusterd.service
		;;
	openrc) rc-service clusterd restart >/dev/null ;;
	esac
}

# ready MANAGER CHECKER: waits for the node to be Ready. CHECKER is an executable that knows how to ask.
ready() {
	left=$timeout
	while [ "$left" -gt 0 ]; do
		slice=$((left < 5 ? left : 5))
		if "$2" ready --timeout "${slice}s" 2>/dev/null; then return 0; fi
		left=$((left - slice))
		if [ "$1" = systemd ] && [ "$(systemctl show --property=NRestarts --value clusterd.service)" -ge 5 ]; then
			return 1 # it ends as soon as it has started
		fi
	done
	return 1
}

# replace puts the new executable in place and starts it, and undoes that when the node does not become Ready.
replace() { # MANAGER
	old=$bin_dir/.clusterd.old
	rm -f "$old"
	if [ -e "$bin_dir/clusterd" ]; then ln "$bin_dir/clusterd" "$old" || cp -p "$bin_dir/clusterd" "$old"; fi
	enter program "$bin_dir/clusterd"
	checker=$new
	if [ "$start" = yes ]; then
		checker=$(mktemp "$bin_dir/.clusterd.XXXXXX")
		scratch=$checker
		ln -f "$new" "$checker" || cp -p "$new" "$checker"
	fi
	mv "$new" "$bin_dir/clusterd"
	if [ "$start" = no ]; then
		rm -f "$old"
		say "installed $bin_dir/clusterd; start it with: $(starter "$1")"
		return
	fi
	restart "$1"
	if ready "$1" "$checker"; then
		rm -f "$old"
		say "the $(role) is Ready: $("$bin_dir/clusterd" version | sed -n 1p)"
		return
	fi
	[ -e "$old" ] || die "the node is not Ready after $timeout s: see $(logs "$1"). It is tried on; remove it with: $bin_dir/clusterd uninstall"
	mv "$old" "$bin_dir/clusterd"
	restart "$1"
	if ready "$1" "$checker"; then
		die "the new clusterd was not Ready after $timeout s: the old one is back and Ready. See $(logs "$1")"
	fi
	die "the new clusterd was not Ready after $timeout s; the old one is back, but not Ready either: see $(logs "$1")"
}

starter() { case $1 in systemd) echo systemctl start clusterd ;; openrc) echo rc-service clusterd start ;; esac; }
logs() { case $1 in systemd) echo "journalctl -u clusterd" ;; openrc) echo /var/log/clusterd.log ;; esac; }

main() {
	parse "$@"
	validate
	with=$(manager)
	trap clean EXIT
	trap 'exit 1' INT TERM
	obtain
	configure
	"write_$with"
	replace "$with"
}
main "$@"
