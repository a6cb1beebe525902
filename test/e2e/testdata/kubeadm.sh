#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A stand-in for kubeadm on a machine without a container runtime. kubeadm itself makes certificates and kubeconfigs. What it leaves to a kubelet is done here: etcd and kube-apiserver are processes in place of static pods, and kubectl makes the Node. The test fills in what is between at signs.
set -eu
real=@KUBEADM@ out=@OUT@ pki=/etc/kubernetes/pki
# What the installer of a version has put on the machine (testdata/install-kubernetes.sh), before that the first version.
installed() { cat /usr/local/kubernetes-version 2>/dev/null || echo @VERSION@; }
if test "$1" = version; then installed; exit; fi
echo "$1" >>"$out/kubeadm-ran"

condition() { echo '{"type": "'"$1"'", "status": "'"$2"'", "reason": "StandIn", "message": "there is no kubelet"}'; }

# node makes the Node of this machine with the provider ID of a file, and flags for kubectl.
node() {
	id=$(sed -n 's|.*\(drover://[a-z0-9/.-]*\).*|\1|p' "$1" | head -1)
	shift
	kubectl "$@" create -f - <<-EOF
		{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "$(hostname)", "labels": {$labels}}, "spec": {"providerID": "$id", "taints": [$taints]}}
	EOF
	kubectl "$@" patch node "$(hostname)" --subresource=status --type=merge -p '{"status": {"nodeInfo": {"kubeletVersion": "'"$(installed)"'", "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": ""}, "conditions": ['"$(condition Ready True), $(condition MemoryPressure False), $(condition DiskPressure False), $(condition PIDPressure False)"']}}'
}

# pods makes the Pods by which Cluster API sees static ones, with flags for kubectl.
pods() {
	for component in kube-apiserver kube-controller-manager kube-scheduler; do
		kubectl "$@" create -f - <<-EOF
			{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$component-$(hostname)", "namespace": "kube-system", "labels": {"tier": "control-plane", "component": "$component"}, "annotations": {"kubernetes.io/config.mirror": "stand-in"}},
			 "spec": {"nodeName": "$(hostname)", "containers": [{"name": "$component", "image": "stand-in"}]}}
		EOF
		kubectl "$@" --namespace kube-system patch pod "$component-$(hostname)" --subresource=status --type=merge -p '{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}'
	done
}

# external reports whether the configuration has an etcd of its own. Cluster API does not look into that: to look into another takes a kubelet.
external() { grep -q '^ *external:' "$1"; }

init() {
	config=$1
	"$real" init phase certs all --config "$config"
	if external "$config"; then
		scheme=http
		set --
	else
		scheme=https
		set -- --client-cert-auth --trusted-ca-file=$pki/etcd/ca.crt --cert-file=$pki/etcd/server.crt --key-file=$pki/etcd/server.key \
			--peer-client-cert-auth --peer-trusted-ca-file=$pki/etcd/ca.crt --peer-cert-file=$pki/etcd/peer.crt --peer-key-file=$pki/etcd/peer.key
	fi
	@ETCD@ --name=default --data-dir=/var/lib/etcd --log-level=warn --unsafe-no-fsync \
		--listen-client-urls=$scheme://127.0.0.1:@ETCDPORT@ --advertise-client-urls=$scheme://127.0.0.1:@ETCDPORT@ \
		--listen-peer-urls=$scheme://127.0.0.1:@PEERPORT@ --initial-advertise-peer-urls=$scheme://127.0.0.1:@PEERPORT@ --initial-cluster=default=$scheme://127.0.0.1:@PEERPORT@ "$@" >"$out/etcd.log" 2>&1 </dev/null &
	echo $! >/run/etcd.pid
	@APISERVER@ --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --secure-port=@PORT@ \
		--etcd-servers=$scheme://127.0.0.1:@ETCDPORT@ --etcd-cafile=$pki/etcd/ca.crt --etcd-certfile=$pki/apiserver-etcd-client.crt --etcd-keyfile=$pki/apiserver-etcd-client.key \
		--tls-cert-file=$pki/apiserver.crt --tls-private-key-file=$pki/apiserver.key --client-ca-file=$pki/ca.crt --enable-bootstrap-token-auth \
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$pki/sa.pub --service-account-signing-key-file=$pki/sa.key \
		--service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --allow-privileged --profiling=false >"$out/apiserver.log" 2>&1 </dev/null &
	echo $! >/run/apiserver.pid
	"$real" init phase kubeconfig super-admin --config "$config"
	"$real" init phase kubeconfig admin --config "$config"
	export KUBECONFIG=/etc/kubernetes/super-admin.conf
	until kubectl get --raw /readyz; do sleep 0.2; done
	# As the phases upload-config and bootstrap-token do, which dial the machine's own address: here all is on loopback.
	kubectl create clusterrolebinding kubeadm:cluster-admins --clusterrole=cluster-admin --group=kubeadm:cluster-admins
	awk 'BEGIN { RS = "---\n" } /kind: ClusterConfiguration/' "$config" >/run/cluster-configuration
	kubectl --namespace kube-system create configmap kubeadm-config --from-file=ClusterConfiguration=/run/cluster-configuration
	export KUBECONFIG=/etc/kubernetes/admin.conf
	# In place of the certificate that a kubelet asks for with its token.
	kubectl create clusterrole stand-in:kubelet --verb=create,get,patch --resource=nodes,nodes/status,pods,pods/status
	kubectl create clusterrolebinding stand-in:kubelet --clusterrole=stand-in:kubelet --group=system:bootstrappers:kubeadm:default-node-token
	labels='"node-role.kubernetes.io/control-plane": ""' taints='{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}'
	node "$config"
	if external "$config"; then pods; fi
	cp /etc/kubernetes/admin.conf "$out/admin.conf"
	cp /etc/kubernetes/admin.conf @SHARED@/admin.conf
}

join() {
	labels='' taints='' controlPlane=''
	value() { sed -n "s|^ *$2: ||p" "$1" | head -1; }
	if grep -q '^controlPlane:' "$1"; then
		controlPlane=yes
		labels='"node-role.kubernetes.io/control-plane": ""' taints='{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}'
	fi
	config=$1
	set -- --server "https://$(value "$config" apiServerEndpoint)" --token "$(value "$config" token)" --insecure-skip-tls-verify=true
	node "$config" "$@"
	# A further control plane is a Node and Pods: all API requests go to the first.
	if test "$controlPlane"; then pods "$@"; fi
}

case $1 in
init | join) "$1" "$3" ;;
upgrade) test "$2" = node ;;
reset)
	for program in apiserver etcd; do if test -e /run/$program.pid; then kill "$(cat /run/$program.pid)"; fi; done
	rm -rf /etc/kubernetes /var/lib/etcd
	;;
esac
