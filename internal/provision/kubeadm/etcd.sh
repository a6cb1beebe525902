# What a control plane that kubeadm has made does with its etcd, for snapshots and restores. Arguments: the action, and what it takes. Each action may run again
# after it was interrupted at any point: what it finds done it leaves.
set -eu
umask 077
manifests=/etc/kubernetes/manifests
stopped=/etc/kubernetes/drover-stopped # manifests of pods that are stopped for a restore
home=/var/lib/drover/etcd
patience=300 # seconds for a pod to start or to stop

fail() {
	echo "$*" >&2
	exit 1
}

# manifest finds the manifest of a pod.
manifest() {
	for dir in $manifests $stopped; do
		if test -f "$dir/$1.yaml"; then
			echo "$dir/$1.yaml"
			return
		fi
	done
	fail "$1.yaml is neither in $manifests nor in $stopped: this is no control plane of kubeadm with its own etcd"
}

# flag prints the value of a flag of a pod's command, as kubeadm writes it.
flag() { sed -n "s/^ *- --$2=//p" "$(manifest "$1")" | head -n 1; }

# facts reads from the manifest what etcd is told.
facts() {
	name=$(flag etcd name) data=$(flag etcd data-dir) peer=$(flag etcd initial-advertise-peer-urls) clients=$(flag etcd listen-client-urls) peers=$(flag etcd listen-peer-urls)
	pki=$(dirname "$(flag etcd trusted-ca-file)")
	case $name,$peer,$clients,$peers,$data in
	?*,http*,http*,http*,/?*) ;;
	*) fail "$(manifest etcd) does not have the flags that kubeadm gives etcd" ;;
	esac
	endpoint=${clients%%,*}
	etcdctl=$home/bin/etcdctl etcdutl=$home/bin/etcdutl
}

ctl() { "$etcdctl" --endpoints "$endpoint" --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key" "$@"; }

# process prints the folder in /proc of the etcd that has this data directory.
process() {
	for dir in /proc/[0-9]*; do
		if test "$(cat "$dir/comm" 2>/dev/null)" = etcd && tr '\0' '\n' <"$dir/cmdline" 2>/dev/null | grep -qxF -- "--data-dir=$data"; then
			echo "$dir"
			return
		fi
	done
	return 1
}

# copy takes etcd's tools out of the files of its image.
copy() {
	mkdir -p "$home/bin"
	for tool in etcdctl etcdutl; do
		if test -f "$1/usr/local/bin/$tool"; then
			cp "$1/usr/local/bin/$tool" "$home/bin/$tool.new"
			chmod 0700 "$home/bin/$tool.new"
			mv "$home/bin/$tool.new" "$home/bin/$tool"
		fi
	done
}

# tools makes etcd's tools ready: those of the image, so that they are of etcd's version, or else what is installed on the host.
tools() {
	if running=$(process); then
		copy "$running/root"
	elif command -v ctr >/dev/null; then
		image=$(sed -n 's/^ *image: *//p' "$(manifest etcd)" | head -n 1) mounted=$home/image
		mkdir -p "$mounted"
		if ctr --namespace k8s.io images mount "$image" "$mounted" >/dev/null; then
			copy "$mounted"
			ctr --namespace k8s.io images unmount --rm "$mounted" >/dev/null || umount "$mounted"
		fi
	fi
	for tool in etcdctl etcdutl; do
		if ! test -x "$home/bin/$tool" && installed=$(command -v "$tool"); then
			mkdir -p "$home/bin"
			ln -sf "$installed" "$home/bin/$tool"
		fi
	done
	test -x "$etcdctl" || fail "etcdctl is neither in the image of etcd nor on the host: install it"
}

# listens reports whether a TCP port of the host is listened on.
listens() {
	cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v port=":$(printf %04X "$1")" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }'
}

# busy prints what still runs of the pods that are named.
busy() {
	for pod in "$@"; do
		case $pod in
		etcd) all=$(echo "$clients,$peers" | tr ',' '\n' | sed -n 's/.*:\([0-9][0-9]*\)$/\1/p') ;;
		*) all=$(flag kube-apiserver secure-port) ;;
		esac
		for port in ${all:-6443}; do if listens "$port"; then echo "$pod at port $port"; fi; done
	done
	if running=$(process); then case "$*" in *etcd*) echo "etcd, in $running" ;; esac; fi
}

# await runs a command until it succeeds.
await() {
	what=$1
	shift
	until=$(($(date +%s) + patience))
	until "$@" >/dev/null 2>&1; do
		if test "$(date +%s)" -ge "$until"; then
			"$@" >&2 || true
			fail "$what: not within $patience s"
		fi
		sleep 1
	done
}

# idle reports whether nothing runs of the pods that are named.
idle() {
	left=$(busy "$@")
	test -z "$left" || {
		echo "still there:" $left
		return 1
	}
}

# start gives the manifest of a pod back to the kubelet.
start() {
	if test -f "$stopped/$1.yaml"; then mv "$stopped/$1.yaml" "$manifests/$1.yaml"; fi
}

# halt takes the manifest of a pod from the kubelet.
halt() {
	if test -f "$manifests/$1.yaml"; then mv "$manifests/$1.yaml" "$stopped/$1.yaml"; fi
}

healthy() { ctl --command-timeout=5s endpoint health; }

ready() {
	port=$(flag kube-apiserver secure-port) host=$(flag kube-apiserver advertise-address)
	case $host in *:*) host="[$host]" ;; esac
	if command -v kubectl >/dev/null; then
		kubectl --kubeconfig /etc/kubernetes/admin.conf --server "https://$host:${port:-6443}" --request-timeout=5s get --raw /readyz
	else
		listens "${port:-6443}"
	fi
}

# serve starts what follows etcd, and waits until the API server is ready.
serve() {
	start kube-apiserver
	await "the API server is ready" ready
	start kube-controller-manager
	start kube-scheduler
}

# rewrite changes the manifest of etcd by a program of sed, before the kubelet has it.
rewrite() {
	sed "$1" "$stopped/etcd.yaml" >"$stopped/etcd.new"
	mv "$stopped/etcd.new" "$stopped/etcd.yaml"
}

# own gives files in the data directory to whom that belongs: etcd need not be root.
own() { chown -R "$(stat -c %u:%g "$data")" "$1"; }

# tidy removes the data of etcd that earlier restores have kept. Those of this one stay.
tidy() {
	for kept in "$data"/member.before-*; do
		if test "$kept" != "$data/member.before-$1"; then rm -rf "$kept"; fi
	done
}

# snapshot FILE OLD...: makes a snapshot of etcd, and removes the files of old ones when it is there.
snapshot() {
	facts
	tools
	file=$1
	shift
	mkdir -p "$(dirname "$file")"
	if ! test -e "$file"; then
		await "etcd is healthy" healthy
		rm -f "$file.part" # of a run that was interrupted
		ctl snapshot save "$file" || {
			rm -f "$file.part"
			fail "etcd's snapshot could not be saved as $file"
		}
	fi
	chmod 0600 "$file"
	if test -x "$etcdutl"; then "$etcdutl" snapshot status "$file" --write-out=json; fi
	for old in "$@"; do
		test "$old" = "$file" || rm -f "$old" "$old.part"
	done
}

# bucket ACTION FILE FLAG...: copies a file to a bucket, or from it. The credentials are in the environment.
bucket() {
	test -n "${DROVER_HOST_AGENT:-}" || fail "the agent of this host is older than the hub, and cannot reach a bucket: put the program that the hub serves at /v1/hosts/agent/ in its place, and restart drover-host-agent"
	copying=$1 file=$2
	shift 2
	"$DROVER_HOST_AGENT" s3 "$copying" --file "$file" "$@"
}

# upload FILE FLAG...: copies a snapshot to a bucket. The flags say where to.
upload() {
	test -f "$1" || fail "there is no file $1 on this host"
	bucket put "$@" --patience=20m # of its hour
}

# prepare RESTORE FILE FLAG...: makes the data of a new etcd with one member of a snapshot, beside those that are in use. It changes nothing else. A file that is not on this
# host is fetched from a bucket, if flags say which, or --unreachable why it cannot be.
prepare() {
	facts
	tools
	restore=$1 file=$2 why=
	shift 2
	if test "${1:-}" = --unreachable; then
		why=", and its copy cannot be fetched: $2"
		shift 2
	fi
	rm -f "$home/fetched.db" "$home/fetched.db.part" # of a machine that lost power
	if ! test -f "$file" && test $# -gt 0; then
		file=$home/fetched.db
		mkdir -p "$home"
		trap 'rm -f "$home/fetched.db"' EXIT
		bucket get "$file" "$@"
	fi
	set -- "$restore" "$file"
	test -f "$2" || fail "there is no file $2 on this host$why"
	for tool in "$etcdutl" "$etcdctl"; do # etcdctl lost the command with etcd 3.6, and both have this flag since 3.5.10
		if test -x "$tool" && "$tool" snapshot restore --help 2>&1 | grep -q -- --mark-compacted; then
			rm -rf "$data/drover-$1" "$data/drover-$1.part"
			mkdir -p "$data"
			# Clients that watch must not go on from revisions which are other ones now: all before are compacted, and new ones are larger.
			"$tool" snapshot restore "$2" --data-dir "$data/drover-$1.part" --name "$name" --initial-cluster "$name=$peer" --initial-advertise-peer-urls "$peer" \
				--initial-cluster-token "drover-$1" --bump-revision 1000000000 --mark-compacted || fail "the snapshot $2 cannot be restored"
			own "$data/drover-$1.part"
			mv "$data/drover-$1.part" "$data/drover-$1"
			return
		fi
	done
	fail "no etcdutl with --mark-compacted, of etcd 3.5.10 or later, is in the image of etcd or on the host: install one"
}

# stop RESTORE: stops the control plane of this host. A later restore does not start again what an earlier one, which failed, has stopped: it may have data of before that.
stop() {
	facts
	(tools) || echo "going on without etcd's tools, which only the restore itself needs" >&2
	mkdir -p "$stopped"
	if test -f "$manifests/etcd.yaml"; then echo "$1" >"$stopped/restore"; fi
	for pod in kube-controller-manager kube-scheduler kube-apiserver; do halt $pod; done
	await "the API server has stopped" idle kube-apiserver # it ends at once while it has its etcd
	halt etcd
	await "etcd has stopped" idle kube-apiserver etcd
}

# resume RESTORE: starts the control plane of this host as it was.
resume() {
	facts
	rm -rf "$data/drover-$1" "$data/drover-$1.part" "$home/fetched.db" "$home/fetched.db.part"
	if test "$(cat "$stopped/restore" 2>/dev/null)" = "$1"; then
		for pod in etcd kube-apiserver kube-controller-manager kube-scheduler; do start "$pod"; done
	fi
	if test -f "$manifests/etcd.yaml"; then
		await "etcd has started" process
	else
		echo "the control plane of this host stays stopped, as an earlier restore has left it"
	fi
}

# replace RESTORE: begins etcd anew with the data that were prepared.
replace() {
	facts
	new=$data/drover-$1 old=$data/member.before-$1
	if test -d "$new"; then
		idle kube-apiserver etcd >&2 || fail "the control plane of this host is not stopped"
		if test -d "$new/member"; then
			if test -d "$data/member"; then
				if test -e "$old"; then fail "both $data/member and $old are there: look which are etcd's data"; fi
				mv "$data/member" "$old"
			fi
			mv "$new/member" "$data/member"
			sync
		fi
		rewrite "s|^\( *- --initial-cluster=\).*|\1$name=$peer|; /^ *- --initial-cluster-state=/d"
		rm -rf "$new"
	fi
	test -d "$data/member" || fail "the data that were prepared are not in $new"
	start etcd
	await "etcd is healthy" healthy
	serve
	tidy "$1"
}

# members prints the members of etcd.
members() { ctl --command-timeout=10s member list --write-out=simple; }

# mine prints a field of the entry of this host's member: 1 is its ID, 2 its state, 6 whether it is a learner.
mine() { members | awk -F', ' -v peer="$peer" -v field="$1" '$4 == peer { print $field }'; }

# remote finds the etcd that was begun anew, by the addresses of its host.
remote() {
	for endpoint in "$@"; do
		if healthy; then return; fi
	done
	return 1
}

# promote makes a full member of a learner that has the data.
promote() { test "$(mine 6)" = false || ctl --command-timeout=10s member promote "$(mine 1)"; }

# undo takes a member that could not join out again: etcd takes no other learner before. The pod is stopped.
undo() {
	if test -n "$joined"; then return; fi
	echo "this host has not joined etcd: its control plane is stopped again" >&2
	for pod in kube-apiserver etcd; do halt $pod; done
	if id=$(mine 1) && test -n "$id"; then ctl --command-timeout=10s member remove "$id" || true; fi
}

# join RESTORE ENDPOINT...: joins the etcd that was begun anew on another host, with no data of its own.
join() {
	facts
	restore=$1 old=$data/member.before-$1 joined='' own_endpoint=$endpoint
	shift
	tools
	await "the etcd that was restored is healthy" remote "$@"
	trap undo EXIT
	if test -f "$stopped/etcd.yaml"; then
		idle kube-apiserver etcd >&2 || fail "the control plane of this host is not stopped"
		if test -d "$data/member"; then
			if test -e "$old"; then rm -rf "$data/member"; else mv "$data/member" "$old"; fi
		fi
		test -n "$(mine 1)" || ctl --command-timeout=30s member add "$name" --learner --peer-urls "$peer"
		all=$(members | awk -F', ' -v name="$name" -v peer="$peer" '{ n = $4 == peer ? name : $3 == "" ? $1 : $3; printf "%s%s=%s", sep, n, $4; sep = "," }')
		rewrite "/^ *- --initial-cluster-state=/d; s|^\( *- --initial-cluster\)=.*|\1=$all\\
\1-state=existing|"
		start etcd
	fi
	await "this host's etcd is a full member" promote
	joined=yes
	endpoint=$own_endpoint
	await "etcd is healthy" healthy
	serve
	tidy "$restore"
}

action=$1
shift
case $action in
snapshot | upload | prepare | stop | resume | replace | join) "$action" "$@" ;;
*) fail "no such action: $action" ;;
esac
