#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# A stand-in for systemctl on a machine without systemd and kubelet: what is started again as a kubelet reports its version. The test fills in what is between at signs.
set -eu
case $* in
daemon-reload) ;;
"restart kubelet")
	echo kubelet >>@OUT@/kubeadm-ran
	kubectl --kubeconfig @SHARED@/admin.conf patch node "$(hostname)" --subresource=status --type=merge -p '{"status": {"nodeInfo": {"kubeletVersion": "'"$(kubeadm version -o short)"'"}}}'
	;;
*) exit 1 ;;
esac
