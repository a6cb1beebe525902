#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A stand-in for a kubelet and a container runtime: it runs the commands of the static pods of etcd and the API server as processes while their manifests are there, and starts them again when these change, or
# when they end. Of a manifest it takes the command only. It begins when it has a configuration, whose content it does not read. The argument is a folder for logs.
set -u
manifests=/etc/kubernetes/manifests

alive() {
	case $(cat "/proc/$1/stat" 2>/dev/null) in
	"" | *") Z "*) return 1 ;;
	esac
}

keep() {
	while :; do
		manifest=$(cat "$manifests/$1.yaml" 2>/dev/null)
		if test -z "$manifest"; then
			sleep 0.2
			continue
		fi
		"$0" run $(printf '%s\n' "$manifest" | sed -n '/^  - command:/,/^    image:/s/^    - //p') >>"$2/$1.log" 2>&1 </dev/null &
		pid=$!
		while alive $pid && test "$(cat "$manifests/$1.yaml" 2>/dev/null)" = "$manifest"; do sleep 0.2; done
		kill $pid 2>/dev/null
		for wait in 1 2 3 4 5 6 7 8 9 10; do if alive $pid; then sleep 0.5; fi; done
		kill -9 $pid 2>/dev/null # its time is over
		wait $pid
		sleep 0.5
	done
}

if test "$1" = run; then
	shift
	exec "$@"
fi
until test -e /var/lib/kubelet/config.yaml; do sleep 0.2; done
for pod in etcd kube-apiserver; do keep $pod "$1" & done
wait
