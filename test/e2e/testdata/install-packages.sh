#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A stand-in for the package manager of a host: it installs a version of kubeadm, kubelet and kubectl, with the unit of the packages of kubernetes.io, and imports the container images of that version.
set -eu
date +%s.%N >/var/log/lab/installs.log
echo "$KUBERNETES_VERSION" >>/var/log/lab/bootstraps.log
from=/opt/lab/$KUBERNETES_VERSION
for program in kubeadm kubelet kubectl; do ln -sf "$from/$program" /usr/bin/$program; done
mkdir -p /usr/lib/systemd/system/kubelet.service.d
cat >/usr/lib/systemd/system/kubelet.service <<-'END'
	[Unit]
	Description=kubelet: The Kubernetes Node Agent
	[Service]
	ExecStart=/usr/bin/kubelet
	Restart=always
	StartLimitInterval=0
	RestartSec=10
	[Install]
	WantedBy=multi-user.target
END
cat >/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf <<-'END'
	[Service]
	Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
	Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
	EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
	EnvironmentFile=-/etc/sysconfig/kubelet
	ExecStart=
	ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
END
systemctl daemon-reload
systemctl enable kubelet
for images in "$from"/images/*.tar; do ctr --namespace k8s.io images import "$images"; done
date +%s.%N >/var/log/lab/kubeadm-begins.log
